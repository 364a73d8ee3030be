"""The processes of the soak: etcd, gateways, prefill and decode instances."""

import faulthandler
import json
import signal
import subprocess
import time
import urllib.request
from pathlib import Path

from network import Network

CONTEXT = 1024


class Node:
    """One process at one address; killed, frozen and cut at will."""

    def __init__(self, network: Network, name: str, number: int, folder: Path):
        self.network, self.name = network, name
        self.address = network.address(number)
        self.log = folder / f"{name}.log"
        self.argv: list[str] = []
        self.process: subprocess.Popen | None = None

    def start(self):
        with self.log.open("ab") as log:
            self.process = self.network.start(self.address, self.argv, log)

    def signal(self, number: int):
        self.process.send_signal(number)

    def kill(self):
        self.process.kill()
        self.process.wait()

    def drain(self, limit_s: float = 60) -> int:
        """As an operator takes it away; its exit code."""
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(limit_s)


class Cluster:
    """etcd, two gateways, two prefill and three decode instances."""

    def __init__(self, network: Network, sluice: str, model: str, etcd: str, folder: Path):
        self.network, self.folder = network, folder
        numbers = iter(range(2, 250))
        def node(name: str) -> Node:
            return Node(network, name, next(numbers), folder)

        self.etcd = node("etcd")
        client, peer = f"http://{self.etcd.address}:2379", f"http://{self.etcd.address}:2380"
        self.etcd.argv = [etcd, "--data-dir", str(folder / "etcd"), "--listen-client-urls", client,
                          "--advertise-client-urls", client, "--listen-peer-urls", peer]
        token = folder / "token"
        token.write_text("a-secret-of-the-soak\n")
        token.chmod(0o600)
        join = ["--join", f"etcd://{self.etcd.address}:2379/soak", "--cluster-token-file",
                str(token), "--context", str(CONTEXT), "--log-level", "debug"]
        self.gateways = [node(f"g{i}") for i in range(2)]
        for gateway in self.gateways:
            gateway.argv = [sluice, "gateway", model, "--name", gateway.name, "--host",
                            gateway.address, "--port", "8080", "--listen",
                            f"{gateway.address}:7070", "--lease-seconds", "2",
                            "--hung-seconds", "10", *join]
        self.instances = [node(name) for name in ("p0", "p1", "d0", "d1", "d2")]
        for one in self.instances:
            role = "prefill" if one.name[0] == "p" else "decode"
            one.argv = [sluice, "instance", model, "--name", one.name, "--role", role,
                        "--kv-memory", "64MiB", "--threads", "1", "--drain-seconds", "20",
                        "--handoff-lease-seconds", "3", *join]
            if role == "decode":
                one.argv += ["--listen", f"{one.address}:7071"]
            elif one.name == "p1":
                one.argv += ["--no-shared-kv", "--kv-checksum"]  # over the wire

    def nodes(self) -> list[Node]:
        return [self.etcd, *self.gateways, *self.instances]

    def start(self):
        for node in self.nodes():
            node.start()
        self.wait_joined()

    def stop(self):
        for node in reversed(self.nodes()):
            if node.process and node.process.poll() is None:
                node.process.send_signal(signal.SIGCONT)
                node.kill()

    def memory(self, gateway: Node) -> dict[str, dict]:
        """The instances that a gateway knows; none while it does not answer."""
        try:
            url = f"http://{gateway.address}:8080/debug/memory"
            with urllib.request.urlopen(url, timeout=5) as answer:
                return {i["name"]: i for i in json.load(answer)["instances"]}
        except (OSError, ValueError):
            return {}

    def write_state(self, name: str):
        """What gateways and clients are at, for who looks why nothing ended for a while."""
        with (self.folder / f"{name}-clients").open("w") as file:
            faulthandler.dump_traceback(file)
        for gateway in self.gateways:
            for path in ("debug/memory", "debug/decisions", "metrics"):
                file = self.folder / f"{name}-{gateway.name}-{path.split('/')[-1]}"
                try:
                    url = f"http://{gateway.address}:8080/{path}"
                    with urllib.request.urlopen(url, timeout=5) as answer:
                        file.write_bytes(answer.read())
                except OSError as error:
                    file.write_text(f"{error}\n")

    def wait_up(self, node: Node, limit_s: float = 60):
        """A gateway that was started takes clients again."""
        deadline = time.monotonic() + limit_s
        while node in self.gateways and not self.memory(node) and time.monotonic() < deadline:
            time.sleep(0.05)

    def wait_joined(self, limit_s: float = 60):
        names = {one.name for one in self.instances}
        self._wait(limit_s, lambda seen: set(seen) == names, "not all instances have joined")

    def wait_empty(self, limit_s: float = 60):
        """Nothing is left anywhere: no sequence, granted block, reservation or kept KV."""
        self._wait(limit_s, lambda seen: not any(any(_holds(i).values()) for i in seen.values()),
                   "something is still held")

    def _wait(self, limit_s: float, good, what: str):
        for gateway in self.gateways:
            deadline = time.monotonic() + limit_s
            while True:
                seen = self.memory(gateway)
                if seen and good(seen):
                    break
                if dead := [n.name for n in self.nodes() if n.process.poll() is not None]:
                    raise AssertionError(f"ended: {dead}")
                if time.monotonic() > deadline:
                    held = {name: _holds(i) for name, i in seen.items()}
                    raise AssertionError(f"{gateway.name} after {limit_s} s: {what}: {held}")
                time.sleep(0.1)


def _holds(instance: dict) -> dict:
    blocks, handoffs = instance["blocks"], instance.get("handoffs", {})
    lost = blocks["total"] - blocks["granted"] - blocks["cached"] - blocks["free"]
    return {"running": len(instance["running"]), "granted": blocks["granted"], "lost blocks": lost,
            "leaving": handoffs.get("leaving", 0), "reserved": handoffs.get("reservations", 0)}

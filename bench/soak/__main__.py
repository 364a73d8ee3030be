"""A cluster under load while its parts are killed, frozen, drained and cut off, one after the
other.

    build/venv/bin/python bench/soak --minutes 15
    build/venv/bin/python bench/soak --faults 8 --seed 3

etcd, two gateways, two prefill and three decode instances, each a process in a network namespace
of its own. Every request must end in a whole answer that is the one of a single process token for
token, or in an explicit error; only who asked a gateway that died may see a broken connection.
After the load nothing may be left anywhere: sequences, granted blocks, reservations, kept KV.
Exit code 1 if any of that is not so.
"""

import argparse
import json
import os
import random
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(Path(__file__).parent), str(ROOT / "tests/e2e")]

import network  # noqa: E402

if __name__ == "__main__":
    network.enter()

from cluster import CONTEXT, Cluster, Node  # noqa: E402
from generation import greedy, prompt, steady  # noqa: E402
from load import Job, Load, Outage  # noqa: E402
from sluice_server import Server, binary, model_file  # noqa: E402


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="soak", description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    add = parser.add_argument
    add("--minutes", type=float, help="how long (default: 15, or as long as --faults take)")
    add("--faults", type=int, help="how many (default: as many as fit)")
    add("--streams", type=int, default=8, help="clients (default: %(default)s)")
    add("--jobs", type=int, default=16, help="different requests (default: %(default)s)")
    add("--seed", type=int, default=1, help="of requests and faults (default: %(default)s)")
    add("--out", help="folder for logs and soak.json (default: a temporary one)")
    options = parser.parse_args()
    if options.minutes is None:
        options.minutes = 1e9 if options.faults else 15
    if options.faults is None:
        options.faults = sys.maxsize
    return options


def make_jobs(folder: Path, count: int, seed: int) -> tuple[list[Job], str]:
    """Requests, and what one process alone says to each."""
    rng, jobs = random.Random(seed), []
    server = Server(folder / "alone.log", "--context", CONTEXT, "--threads", 1).start()
    try:
        with server.client() as client:
            for number in range(8 * count):
                tokens = rng.choice((12, 30, 60, 120))
                text = prompt(rng.choice((8, 30, 90, 240)), seed=seed * 10_000 + number)
                said = greedy(client, server.model_id(), text, tokens)
                if steady(said):
                    jobs.append(Job(text, tokens, said))
                if len(jobs) == count:
                    return jobs, server.model_id()
    finally:
        server.stop()
    raise SystemExit(f"only {len(jobs)} of {count} requests have answers that can be compared")


class Faults:
    """One fault at a time, each undone before the next."""

    def __init__(self, cluster: Cluster, load: Load, seed: int):
        self.cluster, self.load, self.rng = cluster, load, random.Random(f"faults/{seed}")
        self.counts: Counter[str] = Counter()
        self._kinds = {"kill": self._kill, "freeze": self._freeze, "drain": self._drain}
        if cluster.network.can_cut:
            self._kinds |= {"cut": self._cut, "part": self._part}

    def one(self):
        kind = self.rng.choice(list(self._kinds))
        node = self.rng.choice(self.cluster.instances if kind in ("drain", "part")
                               else self.cluster.nodes())
        outage = Outage(node.name, time.monotonic())
        self.load.outages.append(outage)
        self.counts[f"{kind} {node.name}"] += 1
        print(f"{time.strftime('%X')} {kind} {node.name}; {dict(self.load.outcomes)}", flush=True)
        ended = self.load.outcomes.total()
        self._kinds[kind](node)
        outage.end = time.monotonic()
        time.sleep(self.rng.uniform(0.5, 4))
        if self.load.outcomes.total() == ended:
            self.cluster.write_state(f"{self.counts.total()}-{kind}-{node.name}")

    def _hold(self):
        time.sleep(self.rng.choice((0.3, 1, 2.5, 5)))  # shorter and longer than the leases

    def _kill(self, node: Node):
        node.kill()
        self._hold()
        node.start()
        self.cluster.wait_up(node)

    def _freeze(self, node: Node):
        node.signal(signal.SIGSTOP)
        self._hold()
        node.signal(signal.SIGCONT)

    def _drain(self, node: Node):
        if (code := node.drain()) != 0:
            self.load.violations.append(f"{node.name} drained with exit code {code}")
        node.start()

    def _cut(self, node: Node):
        self.cluster.network.cut(node.address)
        self._hold()
        self.cluster.network.mend(node.address)

    def _part(self, node: Node):
        other = self.rng.choice([n for n in self.cluster.nodes() if n is not node])
        ends = (node.process, node.address, other.process, other.address)
        self.cluster.network.part(*ends)
        self._hold()
        self.cluster.network.join(*ends)


def soak(options: argparse.Namespace, folder: Path) -> dict:
    etcd = shutil.which("etcd")
    if not etcd:
        raise SystemExit("there is no etcd here (Debian: etcd-server)")
    net = network.Network()
    print(f"logs in {folder}; asking one process first", flush=True)
    jobs, model = make_jobs(folder, options.jobs, options.seed)
    cluster = Cluster(net, str(binary()), str(model_file()), etcd, folder)
    load = Load(cluster, jobs, model, options.streams, options.seed)
    faults = Faults(cluster, load, options.seed)
    begin = time.monotonic()
    try:
        cluster.start()
        load.start()
        done = 0
        while done < options.faults and time.monotonic() - begin < options.minutes * 60:
            faults.one()
            done += 1
        load.stop()
        try:
            cluster.wait_joined()
            cluster.wait_empty()
        except AssertionError as error:
            load.violations.append(str(error))
    finally:
        cluster.stop()
    pauses = sorted(load.pauses_ms) or [0.0]
    return {"seconds": round(time.monotonic() - begin), "links can be cut": net.can_cut,
            "faults": dict(sorted(faults.counts.items())), "requests": dict(load.outcomes),
            "explicit errors": dict(load.errors),
            "longest pause of a stream, ms": {"p50": round(statistics.median(pauses)),
                                              "p99": round(pauses[int(len(pauses) * 0.99)]),
                                              "max": round(pauses[-1])},
            "violations": load.violations}


def main() -> int:
    options = parse_arguments()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    folder = Path(options.out or tempfile.mkdtemp(prefix="sluice-soak-")).resolve()
    folder.mkdir(parents=True, exist_ok=True)
    shutil.rmtree(folder / "etcd", ignore_errors=True)
    report = soak(options, folder)
    (folder / "soak.json").write_text(json.dumps(report, indent=2) + "\n")
    print(json.dumps(report, indent=2))
    return 1 if report["violations"] else 0


if __name__ == "__main__":
    sys.exit(main())

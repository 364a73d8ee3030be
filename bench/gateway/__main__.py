"""What the HTTP side costs: sluice's gateway beside routers and llama-server's own HTTP layer.

    make bench-gateway
    python3 bench/gateway --rounds 5 --seconds 5

sluice is the whole gateway (HTTP, parsing, tokenizing, detokenizing, streaming, metrics) in one
process with an instance that computes nothing and makes a token a step for every request. Routers
stand before two such processes, which do that work for them; what is counted is the router's own
CPU time, and for latency its answer less that of the same process asked directly. llama-server
answers with a model of 260,000 parameters, if there is one: its computing is in its numbers. One
load for all, in turn, A B C D and back; requests that fail are counted and add nothing.

The routers are installed from PyPI into build/bench/gateway/routers.
"""

import argparse
import json
import os
import socket
import statistics
import subprocess
import sys
import time
import urllib.error
import urllib.request
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
FOLDER = ROOT / "build/bench/gateway"
ROUTERS = {"sglang-router": "0.3.2", "vllm-router": "0.1.17"}
TICKS = os.sysconf("SC_CLK_TCK")


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="gateway", description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    add = parser.add_argument
    add("--rounds", type=int, default=3, help="(default: %(default)s)")
    add("--seconds", type=float, default=4, help="of each measurement (default: %(default)s)")
    add("--streams", type=int, default=32, help="connections (default: %(default)s)")
    add("--step-us", type=int, default=0, help="of the instance; 0: as fast as its tokens are "
        "taken, so that several go out in one piece (default: %(default)s)")
    add("--tokens", type=int, default=64, help="a request (default: %(default)s)")
    add("--without", default="", help="peers to leave out, separated by commas")
    add("--binary", default=str(ROOT / "build/release/bench/gateway/gateway_bench"))
    add("--model", default=str(ROOT / "models/SmolLM2-135M-Instruct.Q4_1.gguf"),
        help="whose vocabulary is used (default: %(default)s)")
    add("--llama-server", default=str(ROOT / "build/deps/peers/bin/llama-server"))
    add("--llama-model", default=str(ROOT / "../shared/models/stories260K.gguf"))
    return parser.parse_args()


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


class Process:
    def __init__(self, name: str, port: int, argv: list[str]):
        self.name, self.port = name, port
        with (FOLDER / f"{name}.log").open("wb") as log:
            self.process = subprocess.Popen(argv, stdout=log, stderr=log, stdin=subprocess.DEVNULL)

    def wait_ready(self):
        body = b'{"model":"m","prompt":"a","max_tokens":1}'
        for _ in range(300):
            try:
                request = urllib.request.Request(f"http://127.0.0.1:{self.port}/v1/completions",
                                                 body, {"content-type": "application/json"})
                with urllib.request.urlopen(request, timeout=5):
                    return self
            except (OSError, urllib.error.URLError):
                if self.process.poll() is not None:
                    break
                time.sleep(0.1)
        raise SystemExit(f"{self.name} does not answer: see {FOLDER / self.name}.log")

    def cpu_seconds(self) -> float:
        fields = Path(f"/proc/{self.process.pid}/stat").read_text().rsplit(")", 1)[1].split()
        return (int(fields[11]) + int(fields[12])) / TICKS

    def stop(self):
        self.process.terminate()
        try:
            self.process.wait(10)
        except subprocess.TimeoutExpired:
            self.process.kill()


def router(name: str, version: str) -> Path:
    """The router's program, installed once."""
    venv = FOLDER / "routers" / name
    if not (venv / ".complete").exists():
        print(f"-- {name} {version} from PyPI", file=sys.stderr)
        subprocess.run(["/usr/bin/python3", "-m", "venv", venv], check=True)
        subprocess.run([venv / "bin/pip", "install", "-q", f"{name}=={version}"], check=True)
        (venv / ".complete").touch()
    return venv / "bin" / name


def start_all(options: argparse.Namespace) -> dict[str, Process]:
    without = options.without.split(",")
    servers = {}

    def own(name: str) -> Process:
        port = free_port()
        return Process(name, port, [options.binary, "serve", options.model, "--port", str(port),
                                    "--step-us", str(options.step_us)])

    servers["sluice"] = own("sluice")
    workers = [own("worker-0"), own("worker-1")]
    servers["worker"], servers["other worker"] = workers
    urls = [f"http://127.0.0.1:{w.port}" for w in workers]
    for name, version in ROUTERS.items():
        if name in without:
            continue
        port = free_port()
        launch = ["launch"] if name == "sglang-router" else []
        servers[name] = Process(name, port, [
            str(router(name, version)), *launch, "--host", "127.0.0.1", "--port", str(port),
            "--prometheus-host", "127.0.0.1", "--prometheus-port", str(free_port()), "--policy",
            "round_robin", "--worker-urls", *urls])
    if "llama-server" not in without and Path(options.llama_server).exists() \
            and Path(options.llama_model).exists():
        port = free_port()
        servers["llama-server"] = Process("llama-server", port, [
            options.llama_server, "-m", options.llama_model, "--host", "127.0.0.1", "--port",
            str(port), "-np", str(options.streams), "-c", str(options.streams * 256), "-t", "2"])
    for server in servers.values():
        server.wait_ready()
    return servers


def load(options: argparse.Namespace, server: Process, **flags) -> dict:
    argv = [options.binary, "load", "--port", str(server.port), "--seconds", str(options.seconds)]
    for name, value in flags.items():
        argv += [f"--{name}", str(value)]
    before = server.cpu_seconds()
    result = json.loads(subprocess.run(argv, capture_output=True, text=True, check=True).stdout)
    # The load has a second of warming up, which costs as much.
    result["cpu_s"] = (server.cpu_seconds() - before) * options.seconds / (options.seconds + 1)
    return result


def measure(options: argparse.Namespace, server: Process) -> dict:
    full = load(options, server, streams=options.streams, tokens=options.tokens)
    answer = {"requests/s": full["requests"] / full["seconds"],
              "tokens/s": full["tokens"] / full["seconds"],
              "tokens/CPU-s": full["tokens"] / max(full["cpu_s"], 1e-9),
              "first p50": full["first_p50_ms"], "failed": full["failed"]}
    one = load(options, server, streams=1, tokens=1)
    answer["1 token p50"] = one["all_p50_ms"]
    rate = answer["requests/s"] / 2
    half = load(options, server, streams=options.streams, tokens=options.tokens, rate=rate)
    answer |= {"half rate": rate, "half first p50": half["first_p50_ms"],
               "half first p99": half["first_p99_ms"]}
    answer["failed"] += one["failed"] + half["failed"]
    return answer


def spread(values: list[float]) -> str:
    middle = statistics.median(values)
    digits = 0 if middle >= 100 else 2
    return f"{middle:,.{digits}f} ({min(values):,.{digits}f}-{max(values):,.{digits}f})"


def main():
    options = parse_arguments()
    FOLDER.mkdir(parents=True, exist_ok=True)
    servers = start_all(options)
    shown = [name for name in servers if "worker" not in name]
    rounds: dict[str, list[dict]] = {name: [] for name in shown}
    try:
        for number in range(options.rounds):
            for name in shown if number % 2 == 0 else reversed(shown):
                rounds[name].append(one := measure(options, servers[name]))
                if name in ROUTERS:
                    direct = load(options, servers["worker"], streams=options.streams,
                                  tokens=options.tokens, rate=one["half rate"])
                    one["added p99"] = one["half first p99"] - direct["first_p99_ms"]
                else:
                    one["added p99"] = one["half first p99"]
                print(f"round {number} {name}: {one}", file=sys.stderr)
    finally:
        for server in servers.values():
            server.stop()
    columns = ["tokens/s", "tokens/CPU-s", "requests/s", "first p50", "1 token p50", "half rate",
               "half first p50", "half first p99", "added p99", "failed"]
    print("| server | " + " | ".join(columns) + " |\n|" + "---|" * (len(columns) + 1))
    for name in shown:
        cells = [spread([r[c] for r in rounds[name]]) for c in columns[:-1]]
        print(f"| {name} | " + " | ".join(cells) + f" | {sum(r['failed'] for r in rounds[name])} |")
    (FOLDER / "results.json").write_text(json.dumps(rounds, indent=1) + "\n")


if __name__ == "__main__":
    main()

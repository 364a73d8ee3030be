"""The simulator against the real server: the same requests through both, at several loads.

    python3 bench/calibrate --sluice build/release/apps/sluice --model M.gguf
        --loads 0.3,0.6,0.9   shares of what the simulated instance can just do
        --trace FILE          Azure's format (default: azure conv in SLUICE_TRACES)
        --profile FILE        a device profile (default: measured first, by `sluice profile`)

Arrivals and lengths are the trace's, lengths scaled to the context, arrivals to the load. An
answer's length is known to the sampler alone, of the server and of the simulator. Prompts are
random and share nothing. A cell is `real / simulated: error`. Standard library only.
"""

import argparse
import csv
import datetime
import gzip
import json
import os
import random
import statistics
import subprocess
import sys
import urllib.request
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "bench/serve_vs_llama_server"))

from client import Job, run_open_loop  # noqa: E402
from report import percentile  # noqa: E402
from servers import HOST, Server  # noqa: E402

BLOCK = 16


@dataclass
class Request:
    at: float  # seconds, at the trace's own rate
    prompt: int
    output: int


def parse_arguments():
    parser = argparse.ArgumentParser(prog="calibrate", description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sluice", default=str(ROOT / "build/release/apps/sluice"))
    parser.add_argument("--model", default=str(ROOT / "models/SmolLM2-135M-Instruct.Q4_1.gguf"))
    traces = os.environ.get("SLUICE_TRACES", str(ROOT / "../shared/traces"))
    parser.add_argument("--trace",
                        default=f"{traces}/azure/AzureLLMInferenceTrace_conv.csv.gz")
    parser.add_argument("--profile")
    parser.add_argument("--loads", default="0.3,0.6,0.9")
    parser.add_argument("--requests", type=int, default=150)
    parser.add_argument("--rounds", type=int, default=1, help="of the real server, at each load")
    parser.add_argument("--context", type=int, default=1024)
    parser.add_argument("--kv-tokens", type=int, default=16384)
    parser.add_argument("--max-running", type=int, default=32)
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--out", default=str(ROOT / "build/bench/calibrate"))
    return parser.parse_args()


def read_trace(options):
    """The first requests, their lengths scaled so that 99 in 100 fit the context."""
    opened = gzip.open if options.trace.endswith(".gz") else open
    with opened(options.trace, "rt") as text:
        rows = [row for _, row in zip(range(options.requests), csv.DictReader(text))]

    def seconds(row):
        whole, _, part = row["TIMESTAMP"].partition(".")
        return datetime.datetime.fromisoformat(whole).timestamp() + float(f"0.{part or 0}")

    sums = [int(row["ContextTokens"]) + int(row["GeneratedTokens"]) for row in rows]
    scale = min(1.0, (options.context - 16) / percentile(sums, 0.99))
    requests = []
    for row in rows:
        prompt = max(4, int(int(row["ContextTokens"]) * scale))
        output = max(2, int(int(row["GeneratedTokens"]) * scale))
        if prompt + output + 8 <= options.context:
            requests.append(Request(seconds(row) - seconds(rows[0]), prompt, output))
    return requests


def write_trace(requests, path):
    with path.open("w") as file:
        file.write("StartTimeOffset,ContextTokens,GeneratedTokens\n")
        for r in requests:
            file.write(f"{int(r.at * 1e9)},{r.prompt},{r.output}\n")


def cap_of(requests):
    """What everybody but the sampler is told: the power of two above the longest answer."""
    longest, cap = max(r.output for r in requests), 1
    while cap < longest:
        cap *= 2
    return cap


def kv_token_bytes(profile):
    return next(int(line.split()[1]) for line in Path(profile).read_text().splitlines()
                if line.startswith("kv_token_bytes"))


def profile_of(options, folder):
    if options.profile:
        return options.profile
    target = folder / "device.profile"
    print("measuring the device", file=sys.stderr)
    subprocess.run([options.sluice, "profile", options.model, "--threads", str(options.threads),
                    "--max-running", str(options.max_running), "--context", str(options.context),
                    "--output", str(target), "--log-level", "warning"], check=True)
    return target


class Simulated:
    def __init__(self, options, profile, trace, cap, folder):
        self._argv = [options.sluice, "simulate", "--trace", str(trace), "--policy", "forecast",
                      "--max-tokens", str(cap), "--no-spread-ticks", "--out", str(folder / "sim")]
        self._json = folder / "sim"
        self._cluster = folder / "cluster.yaml"
        self._cluster.write_text(
            f"instances:\n  - {{device: {Path(profile).resolve()}, kv_tokens: {options.kv_tokens}, "
            f"block_tokens: {BLOCK}, max_running: {options.max_running}, max_step_tokens: 512, "
            "min_chunk_tokens: 32, mixed_step_ms: 150, prefix_cache: true}\n")

    def run(self, rate):
        subprocess.run([*self._argv, "--cluster", str(self._cluster), "--rate", f"{rate:.6f}"],
                       check=True, capture_output=True)
        [file] = self._json.glob("*.json")
        return json.loads(file.read_text())["runs"][0]

    def full_rate(self):
        """The factor on the trace's rate at which the instance is just always busy."""
        low, high = 0.0, 1e-3
        while self.run(high)["utilization"] < 0.97:
            low, high = high, high * 2
        for _ in range(6):
            middle = (low + high) / 2
            low, high = (middle, high) if self.run(middle)["utilization"] < 0.97 else (low, middle)
        return high


def real(options, requests, rate, cap, kv_bytes, folder, seed):
    rng = random.Random(f"calibrate/{seed}")
    jobs = [Job(prompt=[rng.randrange(1000, 40_000) for _ in range(r.prompt)],
                output_tokens=r.output - 1, max_tokens=cap) for r in requests]  # its end is a token
    argv = [options.sluice, "serve", options.model, "--host", HOST, "--port", "{port}", "--threads",
            str(options.threads), "--benchmark", "--context", str(options.context), "--kv-memory",
            str(kv_bytes * options.kv_tokens), "--max-running", str(options.max_running),
            "--log-level", "warning"]
    with Server("sluice", argv, folder / "server.log") as server:
        with urllib.request.urlopen(f"http://{HOST}:{server.port}/v1/models", timeout=10) as answer:
            model = json.load(answer)["data"][0]["id"]
        outcomes = run_open_loop(jobs, [r.at / rate for r in requests], model, HOST, server.port)
    failed = [o.error for o in outcomes if o.error]
    if failed:
        raise SystemExit(f"{len(failed)} of {len(outcomes)} requests failed: {failed[0]}")
    return outcomes


def numbers(values):
    return {"mean": statistics.fmean(values), "p50": percentile(values, 0.5),
            "p99": percentile(values, 0.99)}


def main():
    options = parse_arguments()
    if not Path(options.trace).exists():
        print(f"calibrate: skipped, no {options.trace}; set SLUICE_TRACES")
        return
    folder = Path(options.out)
    folder.mkdir(parents=True, exist_ok=True)
    requests = read_trace(options)
    cap = cap_of(requests)
    write_trace(requests, folder / "trace.csv")
    profile = profile_of(options, folder)
    print("\n".join(Path(profile).read_text().splitlines()[:1]))
    simulated = Simulated(options, profile, folder / "trace.csv", cap, folder)
    full = simulated.full_rate()
    results = []
    print("| load | requests/s | | mean | p50 | p99 |\n|---|---|---|---|---|---|")
    for load in map(float, options.loads.split(",")):
        rate = load * full
        sim = simulated.run(rate)
        outcomes = [o for n in range(options.rounds)
                    for o in real(options, requests, rate, cap, kv_token_bytes(profile), folder, n)]
        seen = {
            "ttft_s": numbers([o.first - o.started for o in outcomes]),
            "tpot_s": numbers([(o.ended - o.first) / max(1, o.output_tokens - 1)
                               for o in outcomes]),
            "e2e_s": numbers([o.ended - o.started for o in outcomes])}
        a_second = (len(requests) - 1) / (requests[-1].at / rate)
        results.append({"load": load, "rate": rate, "real": seen, "simulated": sim})
        for metric, name in (("ttft_s", "TTFT"), ("tpot_s", "TPOT"), ("e2e_s", "E2E")):
            cells = [f"{1e3 * seen[metric][q]:.1f} / {1e3 * sim[metric][q]:.1f} ms: "
                     f"{100 * (sim[metric][q] / seen[metric][q] - 1):+.0f} %"
                     for q in ("mean", "p50", "p99")]
            first = f"{load:g} | {a_second:.2f}" if metric == "ttft_s" else " | "
            print(f"| {first} | {name} | " + " | ".join(cells) + " |", flush=True)
    (folder / "results.json").write_text(json.dumps(results, indent=1))


if __name__ == "__main__":
    main()

"""One run: a server with one policy, a closed loop of requests, what came of it."""

import functools
import json
import statistics
import subprocess
import threading
import time
import urllib.request
from dataclasses import asdict, dataclass
from pathlib import Path

from client import Job, Outcome, run_closed_loop
from report import percentile
from servers import HOST, Server


@dataclass
class Run:
    """Numbers of the time in which all streams were busy and the warm-up was over."""

    policy: str
    seconds: float
    requests: int
    failed: int
    errors: list[str]
    output_tokens_per_s: float
    goodput: float  # requests a second that met the SLO
    ttft_p50: float
    ttft_p99: float
    gap_p50: float
    gap_p99: float
    gap_p999: float
    worst_gap_p50: float  # of each request's longest gap, pauses and all
    worst_gap_p90: float
    worst_gap_p99: float
    preemptions_per_1000: float
    pauses_per_1000: float
    kv_used: float    # share of the blocks that hold tokens of running sequences
    kv_unused: float  # share that is granted and not written
    running: float    # sequences
    seed: int = 0

    def as_dict(self) -> dict:
        return asdict(self)


class Watch(threading.Thread):
    """Samples /debug/memory until it is told to stop."""

    def __init__(self, port: int):
        super().__init__(daemon=True)
        self._port = port
        self._done = threading.Event()
        self.samples: list[tuple[float, dict]] = []

    def run(self):
        while not self._done.wait(0.25):
            url = f"http://{HOST}:{self._port}/debug/memory"
            try:
                with urllib.request.urlopen(url, timeout=5) as answer:
                    self.samples.append((time.perf_counter(), json.load(answer)["instances"][0]))
            except OSError:
                continue  # it is busy; the next sample will do

    def stop(self):
        self._done.set()
        self.join()

    def between(self, begin: float, end: float) -> list[dict]:
        return [s for at, s in self.samples if begin <= at <= end]


@functools.cache
def kv_bytes_per_block(sluice: str, model: str) -> int:
    """From `sluice inspect`: one block more of memory is one more of tokens that fit."""
    def tokens(size: int) -> int:
        text = subprocess.run([sluice, "inspect", model, "--memory", str(size)],
                              capture_output=True, text=True, check=True).stdout
        return int(next(line.split()[3] for line in text.splitlines()
                        if line.startswith("tokens that fit")))
    low, high = 1, 1 << 34
    while low + 1 < high:  # the least size that holds a block
        middle = (low + high) // 2
        low, high = (low, middle) if tokens(middle) > 0 else (middle, high)
    return high


def server_argv(options, policy: str, flags: str, tokens: int, host_tokens: int) -> list[str]:
    block = kv_bytes_per_block(options.sluice, options.model)
    argv = [options.sluice, "serve", options.model, "--host", HOST, "--port", "{port}", "--threads",
            str(options.threads), "--benchmark", "--memory-policy", policy, "--context",
            str(options.context), "--kv-memory", str(block * (tokens // 16)), "--max-running",
            str(options.streams), "--log-level", "warning",
            # One instance: the memory policy alone decides when a request starts.
            "--policy", "round-robin", *options.sluice_args.split(), *flags.split()]
    if options.pace != "none":
        argv += ["--benchmark-step", options.pace]
    if host_tokens:
        argv += ["--kv-host-memory", str(block * (host_tokens // 16))]
    return argv


def token_times(outcome: Outcome) -> list[float]:
    times = [outcome.first]
    for gap in outcome.gaps:
        times.append(times[-1] + gap)
    return times


def meets(outcome: Outcome, slo: dict) -> bool:
    mean = (outcome.ended - outcome.first) / max(1, outcome.output_tokens - 1)
    return outcome.first - outcome.started <= slo["ttft_s"] and mean <= slo["mean_gap_s"]


def counter(sample: dict, *path: str) -> float:
    for key in path:
        sample = sample[key]
    return sample


def summarize(policy: str, outcomes: list[Outcome], watch: Watch, warm: int, slo) -> Run:
    good = [o for o in outcomes if not o.error]
    errors = sorted({o.error for o in outcomes if o.error})[:5]
    begin = sorted(o.ended for o in good)[warm]
    end = max(o.started for o in good)  # after that some streams have nothing to do
    inside = [o for o in good if begin <= o.ended <= end]
    gaps, tokens = [], 0
    for o in good:
        times = token_times(o)
        tokens += sum(begin <= t <= end for t in times)
        gaps += [g for g, t in zip(o.gaps, times[1:]) if begin <= t <= end]
    samples = watch.between(begin, end)
    if len(samples) < 2:
        raise RuntimeError(f"{end - begin:.2f} s between the warm-up's end and the last request "
                           "are too few: more --requests are needed")

    def grown(*path: str) -> float:
        return counter(samples[-1], *path) - counter(samples[0], *path)

    def share(of) -> float:
        return statistics.fmean(of(s["blocks"]) / s["blocks"]["total"] for s in samples)

    served = max(1, len(inside))
    worst = [max(o.gaps) for o in inside if o.gaps]
    ttfts = [o.first - o.started for o in inside]
    return Run(
        policy=policy, seconds=end - begin, requests=len(inside),
        failed=len(outcomes) - len(good), errors=errors, output_tokens_per_s=tokens / (end - begin),
        goodput=sum(meets(o, slo) for o in inside) / (end - begin) if slo else 0.0,
        ttft_p50=percentile(ttfts, 0.5), ttft_p99=percentile(ttfts, 0.99),
        gap_p50=percentile(gaps, 0.5), gap_p99=percentile(gaps, 0.99),
        gap_p999=percentile(gaps, 0.999), worst_gap_p50=percentile(worst, 0.5),
        worst_gap_p90=percentile(worst, 0.9), worst_gap_p99=percentile(worst, 0.99),
        preemptions_per_1000=1000 * grown("preemptions") / served,
        pauses_per_1000=1000 * grown("windows", "shortfall", "pause") / served,
        kv_used=share(lambda b: b["written"]),
        kv_unused=share(lambda b: b["granted"] - b["written"]),
        running=statistics.fmean(s["running_sequences"] for s in samples))


def measure(options, jobs: list[Job], policy: str, flags: str, tokens: int, host_tokens: int,
            slo) -> Run:
    argv = server_argv(options, policy, flags, tokens, host_tokens)
    with Server(f"sluice {policy}", argv, Path(options.out) / "server.log") as server:
        with urllib.request.urlopen(f"http://{HOST}:{server.port}/v1/models", timeout=10) as answer:
            model = json.load(answer)["data"][0]["id"]
        watch = Watch(server.port)
        watch.start()
        outcomes = run_closed_loop(jobs, options.streams, model, HOST, server.port)
        watch.stop()
    return summarize(policy, outcomes, watch, options.warm, slo)

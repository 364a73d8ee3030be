"""Decode-heavy lengths from public traces, scaled to a context."""

import csv
import gzip
import json
import os
import random
from pathlib import Path

from client import Job

SHAREGPT = "lengths/sharegpt_v3_lens.csv.gz"
DEEPSEEK = "servegen/deepseek-r1_lengths.jsonl.gz"


def _open(name: str):
    path = Path(os.environ.get("SLUICE_TRACES", "../shared/traces")) / name
    if not path.exists():
        raise SystemExit(f"no trace {path}: set SLUICE_TRACES to the folder of the traces")
    return gzip.open(path, "rt")


def _sharegpt(count: int, rng: random.Random) -> list[tuple[int, int]]:
    with _open(SHAREGPT) as text:
        rows = [(int(r["num_prefill_tokens"]), int(r["num_decode_tokens"]))
                for r in csv.DictReader(text)]
    return rng.choices(rows, k=count)


def _deepseek(count: int, rng: random.Random) -> list[tuple[int, int]]:
    """A client and a time by their share of the requests, then a length from each histogram."""
    with _open(DEEPSEEK) as text:
        windows = [json.loads(line) for line in text]
    sizes = [w["output_tokens"]["n"] or 1 for w in windows]

    def draw(histogram: dict) -> int:
        return rng.choices(histogram["v"], histogram.get("c") or histogram["p"])[0]

    drawn = rng.choices(windows, sizes, k=count)
    return [(draw(w["input_tokens"]), draw(w["output_tokens"])) for w in drawn]


WORKLOADS = {"sharegpt": _sharegpt, "deepseek-r1": _deepseek}


def make_jobs(options, workload: str, seed: int) -> list[Job]:
    """Requests whose prompts share no beginning. Equal seeds, equal requests.

    Lengths are multiplied so that prompt and output of 99 in 100 fit the context; the
    cap, which all requests have as max_tokens, is the longest output there is then.
    """
    draw = WORKLOADS[workload]
    totals = sorted(p + o for p, o in draw(20_000, random.Random(f"scale/{workload}")))
    scale = min(1.0, options.context / totals[int(len(totals) * 0.99)])
    rng = random.Random(f"{workload}/{seed}")
    cap = options.context * 3 // 4
    jobs = []
    for prompt, output in draw(options.requests, rng):
        length = min(max(2, round(prompt * scale)), options.context - cap)
        jobs.append(Job([rng.randrange(3, 500) for _ in range(length)],
                        min(max(1, round(output * scale)), cap), cap))
    return jobs


def demand_tokens(jobs: list[Job], streams: int) -> int:
    """KV that so many requests in flight hold in the mean if none of them ever waits.

    One that generates o tokens after p is there for o steps and holds p + o / 2 in the
    mean, and the longer it is there the likelier it is met.
    """
    steps = sum(j.output_tokens for j in jobs)
    held = sum(j.output_tokens * (len(j.prompt) + j.output_tokens / 2) for j in jobs)
    return round(streams * held / steps)

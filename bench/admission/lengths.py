"""Requests for the token world: prompt and output lengths from public traces.

    reasoning   ServeGen's DeepSeek-R1: prompt and output drawn from the histograms of one client
                and six hours, each taken as often as it was asked (mean output about 1,900)
    chat        ShareGPT's first turns (mean output about 330)
"""

import csv
import gzip
import json
import os
import random
from dataclasses import dataclass
from pathlib import Path

COUNT = 50_000


@dataclass(frozen=True)
class Workload:
    file: str
    cap: int  # the trace's longest output: max_tokens of every request

    def path(self):
        return traces_folder() / self.file


WORKLOADS = {
    "reasoning": Workload("servegen/deepseek-r1_lengths.jsonl.gz", 32_768),
    "chat": Workload("lengths/sharegpt_v3_lens.csv.gz", 2_384),
}


def traces_folder():
    return Path(os.environ.get("SLUICE_TRACES", "../shared/traces"))


def _reasoning(path, rng):
    with gzip.open(path, "rt") as text:
        rows = [json.loads(line) for line in text]
    weights = [row["output_tokens"]["n"] or 0 for row in rows]
    for row in rng.choices(rows, weights, k=COUNT):
        prompt, output = (rng.choices(row[field]["v"], row[field].get("c") or row[field]["p"])[0]
                          for field in ("input_tokens", "output_tokens"))
        yield prompt, output, row["client"]


def _chat(path, rng):
    with gzip.open(path, "rt") as text:
        rows = [(int(row["num_prefill_tokens"]), int(row["num_decode_tokens"]), 0)
                for row in csv.DictReader(text)]
    yield from rng.choices(rows, k=COUNT)


def write_lengths(name, target):
    """Draws the requests of a workload, always the same, into a text file."""
    draw = {"reasoning": _reasoning, "chat": _chat}[name]
    workload = WORKLOADS[name]
    with open(target, "w", encoding="ascii") as file:
        for prompt, output, client in draw(workload.path(), random.Random(f"admission/{name}")):
            output = min(max(int(output), 1), workload.cap)
            file.write(f"{max(int(prompt), 1)} {output} client-{client}\n")

"""Whether the length forecast's quantiles are met on every trace: each length is forecast before it
is seen, at ages 0, 100 and 400, at 10, 50 and 90 %."""

import csv
import gzip
import json
import os
import random
import re
import subprocess

from lengths import traces_folder

TEST = "LengthForecast.CalibratedOnAFileOfLengths"
MISSING = 77  # ctest: skipped
TRACES = {  # file: the column, or the key, of the output length
    "lengths/sharegpt_v3_lens.csv.gz": "num_decode_tokens",
    "lengths/sharegpt_val_predicted_len.csv.gz": "num_decode_tokens",
    "lengths/sharegpt_8k_filtered_llama2.csv.gz": "num_decode_tokens",
    "lengths/lmsys_chat_poisson0.25_llama.csv.gz": "GeneratedTokens",
    "lengths/summarization_poisson0.25_llama.csv.gz": "GeneratedTokens",
    "azure/AzureLLMInferenceTrace_conv.csv.gz": "GeneratedTokens",
    "azure/AzureLLMInferenceTrace_code.csv.gz": "GeneratedTokens",
    "mooncake/conversation_trace.jsonl.gz": "output_length",
    "flexlb/trace_30min.jsonl.gz": "ol",
    "servegen/deepseek-r1_lengths.jsonl.gz": "output_tokens",
}


def outputs(path, key):
    with gzip.open(path, "rt") as text:
        rows = csv.DictReader(text) if ".csv" in path.name else map(json.loads, text)
        rows = list(rows)
    if not isinstance(rows[0][key], dict):
        return [int(row[key]) for row in rows]
    histograms = [row[key] for row in rows]  # of one client and six hours
    rng = random.Random("calibration")
    drawn = rng.choices(histograms, [h["n"] or 0 for h in histograms], k=30_000)
    return [int(rng.choices(h["v"], h.get("c") or h["p"])[0]) for h in drawn]


def report(binary, only, folder):
    """Prints a line a trace whose name contains `only`; what the process should end with."""
    missed, missing = False, False
    print("| trace | lengths | furthest from the stated quantile, points | within 2, and chance |")
    print("|---|---|---|---|")
    for file, key in TRACES.items():
        if only not in file:
            continue
        path = traces_folder() / file
        if not path.exists():
            missing = True
            print(f"| {file} | missing | | |")
            continue
        lengths = outputs(path, key)
        target = folder / "lengths.txt"
        target.write_text("\n".join(map(str, lengths)), encoding="ascii")
        done = subprocess.run([binary, f"--gtest_filter={TEST}"], capture_output=True, text=True,
                              check=False, env={**os.environ, "SLUICE_LENGTHS": str(target)})
        missed = missed or done.returncode != 0
        worst = re.search(r"furthest: (\S+) points", done.stdout)
        print(f"| {file} | {len(lengths):,} | {worst[1] if worst else '?'} | "
              f"{'yes' if done.returncode == 0 else 'no'} |")
    return 1 if missed else MISSING if missing else 0

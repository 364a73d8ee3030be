#!/usr/bin/env python3
"""Makes a device profile for `sluice simulate` from tables of single-operator timings.

    tools/device_profile.py FOLDER SYSTEM MODEL [--tp N]

FOLDER holds SYSTEM/*_gemm_perf.csv.gz, *_context_attention_perf.csv.gz,
*_generation_attention_perf.csv.gz, *_custom_allreduce_perf.csv.gz and SYSTEM.yaml as NVIDIA's
aiconfigurator (Apache-2.0) publishes them, latencies in ms. Shapes that were not measured are
interpolated between their neighbours, in logarithms. The profile, on standard output, is described
in docs/simulation.md.
"""

import argparse
import csv
import gzip
import math
import re
import sys
from pathlib import Path

MODELS = {  # hidden, ffn, layers, heads, kv heads, head dim, vocabulary
    "8b": (4096, 14336, 32, 32, 8, 128, 128256),
    "70b": (8192, 28672, 80, 64, 8, 128, 128256),
}
TOKENS = [1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192]
MEMORY_SHARE = 0.9  # of the device, as servers take it by default
RESERVED = 3 << 30  # activations and graphs, bytes
STEP_OVERHEAD = {"h100_sxm": 0.9e-3, "h200_sxm": 0.9e-3, "a100_sxm": 1.2e-3}  # host work, s


def table(folder, pattern):
    paths = sorted(folder.glob(pattern))
    if not paths:
        sys.exit(f"device_profile: {folder} has no {pattern}")
    with gzip.open(paths[-1], "rt") as file:
        return list(csv.DictReader(file))


def between(points, x):
    """points: {x: y}, interpolated in logarithms, and extended with the last slope."""
    xs = sorted(points)
    if x in points:
        return points[x]
    i = min(max(sum(1 for v in xs if v < x), 1), len(xs) - 1)
    (x0, x1) = xs[i - 1], xs[i]
    slope = (math.log(points[x1]) - math.log(points[x0])) / (math.log(x1) - math.log(x0))
    return math.exp(math.log(points[x0]) + slope * (math.log(x) - math.log(x0)))


class Gemm:
    def __init__(self, rows):
        self.by = {}
        for r in rows:
            if r["gemm_dtype"] == "bfloat16":
                shape = self.by.setdefault((int(r["n"]), int(r["k"])), {})
                shape[int(r["m"])] = float(r["latency"]) * 1e-3
        self.ks = sorted({k for _, k in self.by})

    def at_k(self, m, n, k):
        return between({a: between(ms, m) for (a, b), ms in self.by.items() if b == k}, n)

    def __call__(self, m, n, k):
        return between({b: self.at_k(m, n, b) for b in self.ks if k / 4 <= b <= k * 4}, k)


def least_squares(rows):
    """rows: (features, y), weighted by 1/y; non-negative by dropping what comes out negative."""
    keep = list(range(len(rows[0][0])))
    while True:
        n = len(keep)
        a = [[0.0] * (n + 1) for _ in range(n)]
        for x, y in rows:
            f = [x[i] / y for i in keep]
            for i in range(n):
                for j in range(n):
                    a[i][j] += f[i] * f[j]
                a[i][n] += f[i]
        for i in range(n):
            pivot = max(range(i, n), key=lambda r: abs(a[r][i]))
            a[i], a[pivot] = a[pivot], a[i]
            for r in range(n):
                if r != i:
                    q = a[r][i] / a[i][i]
                    a[r] = [u - q * v for u, v in zip(a[r], a[i])]
        found = [a[i][n] / a[i][i] for i in range(n)]
        if min(found) >= 0:
            out = [0.0] * len(rows[0][0])
            for i, value in zip(keep, found):
                out[i] = value
            return out
        keep.pop(found.index(min(found)))


def attention(rows, heads, kv_heads, features):
    chosen = [r for r in rows if (int(r["num_heads"]), int(r["num_key_value_heads"])) ==
              (heads, kv_heads) and r["head_dim"] == "128" and r["kv_cache_dtype"] == "bfloat16" and
              r.get("window_size", "0") == "0"]
    return least_squares([(features(r), float(r["latency"]) * 1e-3) for r in chosen])


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("folder", type=Path)
    parser.add_argument("system")
    parser.add_argument("model", choices=MODELS)
    parser.add_argument("--tp", type=int, default=1)
    args = parser.parse_args()
    folder, tp = args.folder / args.system, args.tp
    hidden, ffn, layers, heads, kv_heads, dim, vocabulary = MODELS[args.model]
    gemm = Gemm(table(folder, "*gemm_perf.csv.gz"))
    reduce = {}
    if tp > 1:
        for r in table(folder, "*custom_allreduce_perf.csv.gz"):
            if int(r["num_gpus"]) == tp and r["allreduce_dtype"] in ("bfloat16", "half"):
                reduce[int(r["message_size"])] = float(r["latency"]) * 1e-3

    def layer(m):
        shapes = [((heads + 2 * kv_heads) * dim // tp, hidden), (hidden, heads * dim // tp),
                  (2 * ffn // tp, hidden), (hidden, ffn // tp)]
        seconds = sum(gemm(m, n, k) for n, k in shapes)
        # Norms, rotary embedding, activation: bound by memory, about ten reads and writes of a row.
        seconds += 20 * m * hidden / bandwidth + 8e-6
        return seconds + (2 * between(reduce, m * hidden) if tp > 1 else 0)

    text = (folder / f"{args.system}.yaml").read_text()
    bandwidth = float(re.search(r"mem_bw: (\d+)", text).group(1)) * 0.8
    capacity = float(re.search(r"mem_capacity: (\d+)", text).group(1))
    decode = attention(table(folder, "*generation_attention_perf.csv.gz"), heads // tp,
                       max(1, kv_heads // tp), lambda r: (1, int(r["batch_size"]),
                       int(r["batch_size"]) * (int(r["isl"]) + int(r["step"]))))
    prefill = attention(table(folder, "*context_attention_perf.csv.gz"), heads // tp,
                        max(1, kv_heads // tp), lambda r: (1, int(r["batch_size"]) * int(r["isl"]),
                        int(r["batch_size"]) * int(r["isl"]) ** 2 / 2))
    weights = 2 * (layers * (hidden * (heads * 2 + kv_heads * 2) * dim + 3 * hidden * ffn) +
                   2 * hidden * vocabulary)
    token_bytes = 2 * 2 * layers * kv_heads * dim
    kv_tokens = int((tp * (capacity * MEMORY_SHARE - RESERVED) - weights) / token_bytes)

    def line(name, *values):
        for at in range(0, len(values), 7):
            print(name, *(f"{v:.4g}" if isinstance(v, float) else v for v in values[at:at + 7]))

    name = f"{args.system.split('_')[0]}{f'x{tp}' if tp > 1 else ''}-{args.model}"
    print("sluice-device 1")
    line("name", name)
    line("kv_tokens", kv_tokens)
    line("kv_token_bytes", token_bytes)
    line("step_s", STEP_OVERHEAD[args.system] + (decode[0]) * layers)
    line("tokens", *TOKENS)
    line("dense_s", *(layers * layer(m) for m in TOKENS))
    line("head_s", *(gemm(m, vocabulary // tp, hidden) for m in TOKENS))
    line("decode_row_s", decode[1] * layers)
    line("decode_context_s", decode[2] * layers)
    line("prefill_chunk_s", prefill[0] * layers)
    line("prefill_token_s", prefill[1] * layers)
    line("prefill_pair_s", prefill[2] * layers)


if __name__ == "__main__":
    main()

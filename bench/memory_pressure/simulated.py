"""The same shortage in the simulator: no machine's noise, many requests and seeds in seconds.

One instance of a device whose steps take what `--pace` says, and more requests than it can
serve, so that somebody always waits. Ends are known to the simulated sampler alone, as on
the real server. All runs of one seed have the same requests.
"""

import csv
import subprocess
import tempfile
from pathlib import Path

from lengths import demand_tokens, make_jobs
from table import cell

HEAD = ("| policy | output tokens/s | good requests/s | preempted a 1,000 | ms a token p50 | "
        "p99 |\n" + "|---" * 6 + "|")


def _write_world(folder: Path, options, jobs, tokens: int) -> list[str]:
    base, prefill, row, thousand = (int(word) * 1e-6 for word in options.pace.split(","))
    blocks = tokens // 16
    (folder / "paced.profile").write_text(
        f"sluice-device 1\nname paced\nkv_tokens {blocks * 16}\nkv_token_bytes 1024\n"
        f"step_s {base}\ntokens 1 4096\ndense_s 1e-9 1e-9\nhead_s 1e-9 1e-9\n"
        f"decode_row_s {row}\ndecode_context_s {thousand / 1000}\nprefill_chunk_s 0\n"
        f"prefill_token_s {prefill}\nprefill_pair_s 0\n")
    (folder / "cluster.yaml").write_text(
        "instances:\n"
        f"  - {{count: 1, device: {folder}/paced.profile, block_tokens: 16, prefix_cache: false,"
        f" max_running: {options.streams}, max_step_tokens: 512, min_chunk_tokens: 32}}\n"
        f"scheduler: {{queue_limit: 1000000, max_waiting: {options.streams}}}\n")
    with open(folder / "lengths.csv", "w") as text:
        text.write("num_prefill_tokens,num_decode_tokens\n")
        text.writelines(f"{len(j.prompt)},{j.output_tokens}\n" for j in jobs)
    slo = f"ttft=1000000s,prefill=0,tpot={2 * base}s"
    return [options.sluice, "simulate", "--trace", f"{folder}/lengths.csv", "--cluster",
            f"{folder}/cluster.yaml", "--policy", "forecast", "--rate", "60", "--max-tokens",
            str(jobs[0].max_tokens), "--slo", slo, "--out", f"{folder}/out"]


def _run(options, jobs, tokens: int) -> list[dict]:
    policies = [p for p in options.policies.split(",") if not p.endswith("+pause")]
    with tempfile.TemporaryDirectory() as name:
        argv = _write_world(Path(name), options, jobs, tokens)
        subprocess.run([*argv, "--memory-policy", ",".join(policies)], check=True,
                       capture_output=True)
        with open(Path(name) / "out/runs.csv") as text:
            rows = list(csv.DictReader(text))
    for row in rows:
        seconds, count = float(row["seconds"]), float(row["requests"])
        row["tokens"] = float(row["output_tokens_per_s"])
        row["good"] = float(row["good"]) / seconds
        row["preempted"] = 1000 * float(row["preemptions"]) / count
        row["p50"], row["p99"] = float(row["tpot_p50_s"]), float(row["tpot_p99_s"])
    return rows


def compare(options, say):
    for workload in options.workloads.split(","):
        seeds = [int(s) for s in options.seeds.split(",")]
        jobs = {seed: make_jobs(options, workload, seed) for seed in seeds}
        demand = sum(demand_tokens(jobs[s], options.streams) for s in seeds) // len(seeds)
        for pressure in (float(p) for p in options.pressures.split(",")):
            runs: dict[str, list[dict]] = {}
            for seed in seeds:
                for row in _run(options, jobs[seed], int(demand / pressure)):
                    runs.setdefault(row["memory"], []).append(row)
            say(f"\n{workload}, memory for 1/{pressure:g} of the demand "
                f"({int(demand / pressure):,} tokens), {options.requests} requests, "
                f"{len(seeds)} seeds\n\n{HEAD}")
            for policy, mine in runs.items():
                cells = [policy, cell(mine, "tokens"), cell(mine, "good", 1, 1),
                         cell(mine, "preempted"), cell(mine, "p50", 1e3, 1),
                         cell(mine, "p99", 1e3, 1)]
                say("| " + " | ".join(cells) + " |")

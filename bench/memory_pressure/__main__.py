"""Memory policies side by side on the real server, with less KV memory than the load wants.

    python3 bench/memory_pressure --quick
    python3 bench/memory_pressure --pressures 1.2,1.5,2 --seeds 1,2,3
    python3 bench/memory_pressure --simulate --requests 2000 --seeds 1,2,3,4,5,6

For every workload a server with ample memory is measured first: its median gap between
tokens is the unit of the SLO. Then, for every pressure and seed, each policy serves the
same requests in the same order by a server of its own. A request ends after its trace's
length by a forced end-of-text that only the sampler knows; policies see the trace's cap
as max_tokens, but for `oracle`. Standard library only.
"""

import argparse
import json
import os
import platform
import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "bench/serve_vs_llama_server"))

import simulated  # noqa: E402
from lengths import demand_tokens, make_jobs  # noqa: E402
from measure import Run, measure  # noqa: E402
from table import markdown  # noqa: E402

POLICIES = ["windowed", "windowed+pause", "paged", "paged-watermark", "reserve", "ratio",
            "peak-ema", "past-future", "oracle"]


def default_model() -> str:
    """The smallest there is: its steps are short, and padded to those of `--pace`."""
    tiny = ROOT / "../shared/models/stories260K.gguf"
    model = tiny if tiny.exists() else ROOT / "models/SmolLM2-135M-Instruct.Q4_1.gguf"
    return str(model.resolve())


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="memory_pressure", description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    add = parser.add_argument
    add("--model", default=default_model(), help="GGUF file (default: %(default)s)")
    add("--workloads", default="deepseek-r1,sharegpt", help="(default: %(default)s)")
    add("--pressures", default="1.2,1.5,2", help="demand over memory (default: %(default)s)")
    add("--policies", default=",".join(POLICIES), help="each may have flags for its server "
        "after a colon: windowed:--mixed-step-ratio=1.5 (default: %(default)s)")
    add("--seeds", default="1,2,3", help="(default: %(default)s)")
    add("--streams", type=int, default=40, help="requests in flight (default: %(default)s)")
    add("--requests", type=int, default=330, help="a run (default: %(default)s)")
    add("--warm", type=int, default=110, help="requests answered before counting begins "
        "(default: %(default)s)")
    add("--context", type=int, default=1024, help="tokens a request may have; lengths are scaled "
        "to it (default: %(default)s)")
    add("--threads", type=int, default=1, help="of the server (default: %(default)s)")
    add("--pace", default="12000,100,30,300", help="what a step takes at least, microseconds: "
        "base, a prefill token, a decode row, 1,000 tokens of context; 'none': as fast as the "
        "machine is (default: %(default)s)")
    add("--sluice", default=os.environ.get("SLUICE_BIN", str(ROOT / "build/release/apps/sluice")))
    add("--sluice-args", default="", help="more flags for every server, separated by spaces")
    add("--quick", action="store_true", help="one workload, one pressure, one seed, few requests")
    add("--simulate", action="store_true", help="in the simulator instead of the real server, "
        "on a device of `--pace`, with requests that come faster than they can be served")
    add("--append", action="store_true", help="keep results.json's runs of other cases and "
        "seeds, and its SLO")
    add("--out", default=str(ROOT / "build/bench/memory_pressure"))
    options = parser.parse_args()
    options.sluice = str(Path(options.sluice).resolve())
    if options.quick:
        options.workloads, options.pressures, options.seeds = "sharegpt", "1.5", "1"
        options.requests, options.warm = 200, 80
    return options


def machine() -> dict:
    cpu = next((line.split(":")[1].strip() for line in open("/proc/cpuinfo")
                if line.startswith("model name")), "")
    return {"cpu": cpu, "cores": os.cpu_count(), "kernel": platform.release(),
            "load_average_at_start": os.getloadavg()}


def say(text: str):
    print(text, flush=True)


def run_one(options, jobs, policy: str, tokens: int, slo=None) -> Run:
    name, _, flags = policy.partition(":")
    host = tokens if name.endswith("+pause") else 0
    return measure(options, jobs, name.removesuffix("+pause"), flags, tokens, host, slo)


def measure_ample(options, workload: str, jobs) -> dict:
    ample = run_one(options, jobs, "windowed", options.streams * options.context)
    say(f"{workload}: with ample memory {ample.output_tokens_per_s:.0f} tokens/s, gap p50 "
        f"{ample.gap_p50 * 1e3:.2f} ms p99 {ample.gap_p99 * 1e3:.2f} ms")
    slo = {"ttft_s": 1000 * ample.gap_p50, "mean_gap_s": 2 * ample.gap_p50}
    return {"workload": workload, "pressure": 0, "policy": "ample", "slo": slo,
            "kv_tokens": options.streams * options.context, "runs": [ample.as_dict()]}


def run_workload(options, workload: str, known: dict | None):
    """Yields rows as they are measured. `known`: the row of ample memory, if there is one."""
    seeds = [int(s) for s in options.seeds.split(",")]
    jobs = {seed: make_jobs(options, workload, seed) for seed in seeds}
    demand = sum(demand_tokens(jobs[s], options.streams) for s in seeds) // len(seeds)
    ample = known or measure_ample(options, workload, jobs[seeds[0]])
    slo = ample["slo"]
    yield [ample]
    say(f"{workload}: {options.streams} requests in flight hold {demand} tokens in the mean")
    for pressure in (float(p) for p in options.pressures.split(",")):
        tokens = max(int(demand / pressure), max(max(len(j.prompt) + j.max_tokens for j in all_jobs)
                                                 for all_jobs in jobs.values()) + 64)
        for seed in seeds:  # policies in turn: what the machine does else hits all of them
            rows = []
            for policy in options.policies.split(","):
                run = run_one(options, jobs[seed], policy, tokens, slo)
                run.seed = seed
                rows.append({"workload": workload, "pressure": pressure, "policy": policy,
                             "slo": slo, "kv_tokens": tokens, "runs": [run.as_dict()]})
                say(f"  1/{pressure} seed {seed} {policy:16s} {run.output_tokens_per_s:7.0f} "
                    f"tokens/s  goodput {run.goodput:5.2f}/s  gap p50 {run.gap_p50 * 1e3:6.2f} p99 "
                    f"{run.gap_p99 * 1e3:7.2f} ms  preempted {run.preemptions_per_1000:6.1f} "
                    f"paused {run.pauses_per_1000:6.1f}  used {run.kv_used:.2f}  failed "
                    f"{run.failed}")
            yield rows


def merge(old: list[dict], fresh: list[dict]) -> list[dict]:
    """Of one case the runs of all seeds; a seed that was run again replaces itself."""
    def key(row: dict):
        return row["workload"], row["pressure"], row["policy"]

    before = {key(r): r for r in old}
    for row in fresh:
        seeds = {run["seed"] for run in row["runs"]}
        kept = [r for r in before.get(key(row), {"runs": []})["runs"] if r["seed"] not in seeds]
        before[key(row)] = {**row, "runs": kept + row["runs"]}
    return list(before.values())


def main():
    options = parse_arguments()
    if options.simulate:
        simulated.compare(options, say)
        return
    out = Path(options.out)
    out.mkdir(parents=True, exist_ok=True)
    results = out / "results.json"
    rows = json.loads(results.read_text())["rows"] if options.append and results.exists() else []
    begun, facts = time.time(), machine()
    for workload in options.workloads.split(","):
        known = next((r for r in rows if r["workload"] == workload and not r["pressure"]), None)
        for fresh in run_workload(options, workload, known):
            rows = merge(rows, fresh)
            flags = {k: v for k, v in vars(options).items() if k not in ("sluice", "out", "model")}
            flags["model"] = Path(options.model).name
            results.write_text(json.dumps(
                {"machine": facts, "options": flags, "seconds": round(time.time() - begun, 1),
                 "rows": rows}, indent=1) + "\n")
            (out / "table.md").write_text(markdown(rows))
    say((out / "table.md").read_text())


if __name__ == "__main__":
    main()

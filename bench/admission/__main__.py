"""Memory policies side by side, without compute: tokens, preemptions, use of memory.

    python3 bench/admission --binary build/release/bench/admission/admission_bench
        --quick            one seed and a tenth of the steps
        --only TEXT        cases, policies or rules whose name contains it
        --informed         classes and hints of clients instead of the policies
        --rules            the rules of a window's length instead of the policies
        --calibration TEST the forecast's quantiles on every trace, by memory_test, instead:
                           exits with 1 where one is missed, with 77 where a trace is not there
        --timeline SVG     draw windows, demand, grants and use of one run instead

Each cell is the mean over the seeds; (least-most) where they differ. Tokens are those generated in
the measured steps, as a share of the oracle's in the same world with the same seed.
"""

import argparse
import json
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import calibration
import timeline
from lengths import WORKLOADS, write_lengths

# name: workload, pool, steps of warm-up, measured steps. A request of the reasoning trace takes
# 1,900 steps in the mean and 32,768 at most.
CASES = {
    "reasoning, 430,000 tokens": ("reasoning", 430_000, 30_000, 40_000),
    "reasoning, 120,000 tokens": ("reasoning", 120_000, 50_000, 100_000),
    "chat, 430,000 tokens": ("chat", 430_000, 4_000, 6_000),
    "chat, 120,000 tokens": ("chat", 120_000, 4_000, 10_000),
}
POLICIES = ["windowed", "paged", "paged-watermark", "reserve", "ratio", "peak-ema", "past-future",
            "oracle"]
INFORMED = {  # what a client may say, and what it is worth
    "windowed": [],
    "windowed, clients as classes": ["--classes"],
    "windowed, hints within a factor of 4": ["--hints", "4"],
    "windowed, hints within a factor of 1.5": ["--hints", "1.5"],
}
RULES = {
    "bounded (default)": [],
    "earliest completion": ["--length-rule", "completion"],
    "mean remaining": ["--length-rule", "mean"],
    "longest remaining": ["--length-rule", "longest"],
    "fixed 1": ["--length-rule", "fixed", "--fixed-steps", "1"],
    "fixed 16": ["--length-rule", "fixed", "--fixed-steps", "16"],
    "fixed 64": ["--length-rule", "fixed", "--fixed-steps", "64"],
    "fixed 256": ["--length-rule", "fixed", "--fixed-steps", "256"],
}


class Runner:
    def __init__(self, args, folder):
        self.args = args
        self.folder = folder

    def lengths(self, workload):
        target = self.folder / f"{workload}.txt"
        if not target.exists():
            write_lengths(workload, target)
        return target

    def run(self, case, options, seed):
        workload, pool, warm_up, steps = CASES[case]
        if self.args.quick:
            warm_up, steps = warm_up // 5, steps // 10
        return self.simulate(workload, pool, warm_up, steps, options, seed)

    def simulate(self, workload, pool, warm_up, steps, options, seed):
        command = [self.args.binary, "--lengths", self.lengths(workload), "--pool", pool,
                   "--cap", WORKLOADS[workload].cap, "--warm-up", warm_up, "--steps", steps,
                   "--seed", seed, *options, *self.args.option]
        done = subprocess.run([str(word) for word in command], capture_output=True, text=True,
                              check=False)
        if done.returncode != 0:
            sys.exit(f"{' '.join(str(word) for word in command)}\n{done.stderr}")
        return json.loads(done.stdout)


def spread(values, form):
    mean = form.format(sum(values) / len(values))
    least, most = form.format(min(values)), form.format(max(values))
    return mean if least == most else f"{mean} ({least}-{most})"


def row_of(name, runs, oracle):
    per_thousand = [1000 * r["preemptions"] / max(r["finished"], 1) for r in runs]
    return "| {} | {} | {} | {} | {} | {} | {} | {} | {} |".format(
        name,
        spread([100 * r["tokens"] / o["tokens"] for r, o in zip(runs, oracle)], "{:.1f}"),
        spread(per_thousand, "{:.1f}"),
        spread([100 * r["recomputed"] / r["tokens"] for r in runs], "{:.1f}"),
        spread([r["warm_up_preemptions"] for r in runs], "{:.0f}"),
        spread([100 * r["written"] for r in runs], "{:.1f}"),
        spread([100 * r["unused"] for r in runs], "{:.1f}"),
        spread([r["steps"] / r["windows"] for r in runs], "{:.1f}"),
        spread([r["plan_us"] for r in runs], "{:.0f}"))


def table(runner, case, rows):
    seeds = [1] if runner.args.quick else [1, 2, 3, 4, 5]
    runner.lengths(CASES[case][0])  # once, before runs side by side ask for it
    with ThreadPoolExecutor(runner.args.jobs) as pool:
        jobs = {name: [pool.submit(runner.run, case, options, seed) for seed in seeds]
                for name, options in {"oracle": ["--policy", "oracle"], **rows}.items()}
        runs = {name: [job.result() for job in these] for name, these in jobs.items()}
    finished = sum(r["finished"] for r in runs["oracle"])
    print(f"\n**{case}**: {len(seeds)} seeds, the oracle finished {finished:,} requests\n")
    print("| | tokens, % of oracle's | preemptions per 1,000 | recomputed, % of"
          " tokens | in the warm-up | pool written, % |"
          " granted, unwritten, % | steps a window | us a plan |")
    print("|---|---|---|---|---|---|---|---|---|")
    for name in rows:
        print(row_of(name, runs[name], runs["oracle"]))
    sys.stdout.flush()


def main():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--binary")
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--rules", action="store_true")
    parser.add_argument("--informed", action="store_true")
    parser.add_argument("--timeline", metavar="SVG")
    parser.add_argument("--calibration", metavar="TEST")
    parser.add_argument("--only", default="")
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--option", action="append", default=[], help="passed to every run")
    args = parser.parse_args()
    args.option = [word for option in args.option for word in option.split()]

    if args.calibration:
        with tempfile.TemporaryDirectory() as folder:
            sys.exit(calibration.report(args.calibration, args.only, Path(folder)))
    missing = sorted({str(w.path()) for w in WORKLOADS.values() if not w.path().exists()})
    if missing:
        print(f"bench/admission: skipped, no {', '.join(missing)}; set SLUICE_TRACES")
        return
    rows = {name: ["--policy", name] for name in POLICIES}
    if args.rules or args.informed:
        rows = RULES if args.rules else INFORMED
    matching = {name: options for name, options in rows.items() if args.only in name}
    cases = [case for case in CASES if args.only in case]
    with tempfile.TemporaryDirectory() as folder:
        runner = Runner(args, Path(folder))
        if args.timeline:
            timeline.draw(runner, Path(args.timeline))
            return
        for case in cases or CASES:
            table(runner, case, matching or rows)


if __name__ == "__main__":
    main()

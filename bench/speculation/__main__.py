"""The server with and without --speculative ngram: same requests, in turn, A B then B A.

    python3 bench/speculation --quick
    python3 bench/speculation --model M.gguf --streams 1,16 --rounds 3

Workloads, from the best case to the worst:
  copy    a text and the request to say it again, greedy: the answer stands in the prompt
  open    prose to go on with, greedy: small models soon repeat themselves
  random  the same at temperature 1: hardly anything is said twice
A cell is tokens a second with / without: median of the rounds' ratios (least-most). Standard
library only.
"""

import argparse
import json
import os
import re
import statistics
import sys
import time
import urllib.request
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "bench/serve_vs_llama_server"))

from client import Job, run_closed_loop  # noqa: E402
from servers import HOST, Server, post_json  # noqa: E402
from workload import prose  # noqa: E402

SIDES = ["off", "ngram"]
WORKLOADS = ["copy", "open", "random"]
COUNTERS = ["drafts", "draft_tokens", "accepted_tokens"]


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="speculation", description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    add = parser.add_argument
    add("--model", default="", help="GGUF file (default: the first *.gguf below models/)")
    add("--streams", default="1,16", help="concurrent streams (default: %(default)s)")
    add("--workload", default=",".join(WORKLOADS), help="(default: %(default)s)")
    add("--rounds", type=int, default=3, help="rounds of both sides (default: %(default)s)")
    add("--tokens", type=int, default=200, help="of a text and of an answer (default: %(default)s)")
    add("--requests-per-stream", type=int, default=2, help="(default: %(default)s)")
    add("--min-requests", type=int, default=6, help="requests a round, at least (default: "
        "%(default)s)")
    add("--threads", type=int, default=os.cpu_count(), help="(default: cores)")
    add("--quick", action="store_true", help="1 and 4 streams, one round")
    add("--sluice", default=os.environ.get("SLUICE_BIN", str(ROOT / "build/release/apps/sluice")))
    add("--sluice-args", default="", help="more flags for sluice, separated by spaces")
    add("--out", default=str(ROOT / "build/bench/speculation"), help="folder for results and logs")
    options = parser.parse_args()
    if options.quick:
        options.streams, options.rounds, options.min_requests = "1,4", 1, 3
    if not options.model:
        found = sorted(str(p) for p in (ROOT / "models").glob("*.gguf"))
        options.model = found[0] if found else ""
    return options


def make_jobs(options, server: Server, workload: str, count: int, seed: str) -> list[Job]:
    def tokenize(text: str) -> list[int]:
        return post_json(server.port, "/tokenize",
                         {"prompt": text, "add_special_tokens": False})["tokens"]

    jobs = []
    for i in range(count):
        text = prose(options.tokens, f"{seed}/{i}")
        if workload == "copy":
            begin = " ".join(text.split()[:8])
            prompt = f"The text is:\n\n{text}\n\nOnce more, word for word:\n\n{begin}"
        else:
            prompt = text
        extra = {"temperature": 1, "seed": i} if workload == "random" else {}
        jobs.append(Job(tokenize(prompt), options.tokens, extra=extra))
    return jobs


def counters(server: Server) -> list[float]:
    with urllib.request.urlopen(f"http://{HOST}:{server.port}/metrics", timeout=10) as answer:
        page = answer.read().decode()
    # None before the instance has said anything of itself.
    found = [re.search(rf"^sluice_speculative_{name}_total\{{.*\}} (\S+)$", page, re.M)
             for name in COUNTERS]
    return [float(match[1]) if match else 0.0 for match in found]


def measure(options, side: str, workload: str, streams: int, number: int) -> dict:
    count = max(options.min_requests, streams * options.requests_per_stream)
    argv = [options.sluice, "serve", options.model, "--host", HOST, "--port", "{port}",
            "--threads", str(options.threads), "--context", "1024", "--max-running", str(streams),
            "--kv-memory", f"{24 * (streams + 1)}MiB", "--speculative", side,
            *options.sluice_args.split()]
    with Server(side, argv, Path(options.out) / f"{side}.log") as server:
        jobs = make_jobs(options, server, workload, count, f"{workload}/{number}")
        with urllib.request.urlopen(f"http://{HOST}:{server.port}/v1/models", timeout=10) as answer:
            model = json.load(answer)["data"][0]["id"]
        run_closed_loop([Job(jobs[0].prompt[:64], 8)], 1, model, HOST, server.port)
        before = counters(server)
        begun = time.perf_counter()
        outcomes = run_closed_loop(jobs, streams, model, HOST, server.port)
        seconds = time.perf_counter() - begun
        guessed = [b - a for a, b in zip(before, counters(server))]
    # From the first token to the last: prompts take as long on either side.
    decode = sum(o.ended - o.first for o in outcomes)
    failed = [o.error for o in outcomes if o.error]
    return {"side": side, "workload": workload, "streams": streams, "round": number,
            "tokens_per_s": sum(o.output_tokens for o in outcomes) / seconds,
            "ms_per_token": 1e3 * decode / max(1, sum(o.output_tokens - 1 for o in outcomes)),
            **dict(zip(COUNTERS, guessed)), "requests": count, "errors": failed}


def row(runs: list[dict], workload: str, streams: int) -> str:
    def of(side: str, field: str) -> list[float]:
        return [r[field] for r in runs if (r["side"], r["workload"], r["streams"]) ==
                (side, workload, streams)]

    def cell(field: str, form: str) -> str:
        ratios = [b / a for a, b in zip(of("off", field), of("ngram", field))]
        return (f"{statistics.median(of('ngram', field)):{form}} / "
                f"{statistics.median(of('off', field)):{form}}: {statistics.median(ratios):.2f} "
                f"({min(ratios):.2f}-{max(ratios):.2f})")

    tokens = sum(of("ngram", "draft_tokens"))
    right = sum(of("ngram", "accepted_tokens")) / tokens if tokens else 0
    asked = sum(of("ngram", "requests")) * OPTIONS.tokens
    failed = sum(map(len, of("ngram", "errors"))) + sum(map(len, of("off", "errors")))
    return (f"| {workload} | {streams} | {cell('tokens_per_s', '.1f')} | "
            f"{cell('ms_per_token', '.2f')} | {tokens / asked:.2f} | {100 * right:.0f} % | "
            f"{failed} |")


def main() -> int:
    if not OPTIONS.model or not Path(OPTIONS.sluice).exists():
        print("no model or no sluice: give --model FILE.gguf and --sluice FILE")
        return 2
    Path(OPTIONS.out).mkdir(parents=True, exist_ok=True)
    runs, rows = [], ["| workload | streams | output tokens/s | ms a token | guesses a token | "
                      "right | failed |", "|---|---|---|---|---|---|---|"]
    for workload in OPTIONS.workload.split(","):
        for streams in map(int, OPTIONS.streams.split(",")):
            for number in range(OPTIONS.rounds):
                for side in SIDES if number % 2 == 0 else reversed(SIDES):
                    run = measure(OPTIONS, side, workload, streams, number)
                    runs.append(run)
                    print(f"{workload} x{streams} round {number + 1} {side:5s} "
                          f"{run['tokens_per_s']:7.1f} tokens/s "
                          f"{run['ms_per_token']:6.2f} ms a token, "
                          f"{run['draft_tokens']:.0f} guesses, {run['accepted_tokens']:.0f} right",
                          *run["errors"][:3], flush=True)
            rows.append(row(runs, workload, streams))
    (Path(OPTIONS.out) / "results.json").write_text(json.dumps(runs, indent=1) + "\n")
    (Path(OPTIONS.out) / "table.md").write_text("\n".join(rows) + "\n")
    print("\n" + "\n".join(rows))
    return 1 if any(r["errors"] for r in runs) else 0


OPTIONS = parse_arguments()

if __name__ == "__main__":
    sys.exit(main())

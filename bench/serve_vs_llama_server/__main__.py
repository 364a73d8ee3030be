"""sluice and llama-server side by side: same GGUF, threads and requests, interleaved.

    python3 bench/serve_vs_llama_server --quick
    python3 bench/serve_vs_llama_server --model A.gguf --model B.gguf --streams 1,4,16,32

For every case (model, lengths, with or without system prompt, streams) it first
tries llama-server's settings (KV cache split by slot or unified, several -ub) and
keeps its best, then runs rounds of A B A B, each in a fresh process, with new
prompts each round. Requests are greedy with a fixed number of tokens (ignore_eos),
so both sides do the same work; failed ones are counted. Standard library only.
"""

import argparse
import json
import os
import platform
import re
import resource
import subprocess
import sys
import time
import urllib.request
from pathlib import Path

from client import Job, run_closed_loop
from report import Round, markdown, summarize
from servers import HOST, Server, llama_argv, post_json, sluice_argv
from workload import lengths_of, make_jobs

ROOT = Path(__file__).resolve().parents[2]

# llama-server's settings, tried dimension by dimension; each keeps the best of those before.
LLAMA_SETTINGS = [
    [["--no-kv-unified"], ["--kv-unified"]],
    [[], ["-ub", "128"], ["-ub", "1024"]],
    [[], ["--cache-ram", "0"]],
]


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="serve_vs_llama_server", description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    add = parser.add_argument
    add("--model", action="append", default=[], help="GGUF file; may be repeated (default: "
        "every *.gguf below models/)")
    add("--streams", default="1,4,16,32", help="concurrent streams (default: %(default)s)")
    add("--workload", default="sharegpt,azure_conv,azure_code",
        help="sharegpt, azure_conv, azure_code or fixed:PROMPTxOUTPUT (default: %(default)s)")
    add("--system", default="0,1000", help="tokens of the shared system prompt (default: "
        "%(default)s)")
    add("--context", type=int, default=2048, help="tokens a request may have beside the system "
        "prompt; lengths are scaled to it (default: %(default)s)")
    add("--rounds", type=int, default=3, help="rounds of both servers (default: %(default)s)")
    add("--requests-per-stream", type=int, default=3, help="(default: %(default)s)")
    add("--min-requests", type=int, default=8, help="requests a round, at least (default: "
        "%(default)s)")
    add("--threads", type=int, default=os.cpu_count(), help="of each server (default: cores)")
    add("--seed", type=int, default=1)
    add("--quick", action="store_true", help="one short case: 4 streams, 2 rounds, no tuning")
    add("--no-tune", action="store_true", help="llama-server with --llama-args only")
    add("--only", choices=["sluice", "llama-server"], help="measure one side")
    add("--sluice", default=os.environ.get("SLUICE_BIN", str(ROOT / "build/release/apps/sluice")))
    add("--llama-server", default=os.environ.get("LLAMA_SERVER",
                                                 str(ROOT / "build/deps/peers/bin/llama-server")))
    add("--sluice-args", default="", help="more flags for sluice, separated by spaces")
    add("--llama-args", default="", help="more flags for llama-server, separated by spaces")
    add("--out", default=str(ROOT / "build/bench/serve_vs_llama_server"), help="folder for "
        "results.json, table.md and logs")
    options = parser.parse_args()
    if options.quick:
        options.streams, options.workload, options.system = "4", "sharegpt", "0"
        options.rounds, options.requests_per_stream, options.no_tune = 2, 2, True
        options.context = min(options.context, 512)
    if not options.model:
        options.model = sorted(str(p) for p in (ROOT / "models").glob("*.gguf"))
    return options


def kv_bytes_per_token(options, model: str) -> int:
    """From `sluice inspect`, so that both sides get memory for the same number of tokens."""
    text = subprocess.run([options.sluice, "inspect", model], capture_output=True, text=True,
                          check=True).stdout
    if match := re.search(r"([\d.]+) (B|KiB|MiB) a token", text):
        unit = {"B": 1, "KiB": 1 << 10, "MiB": 1 << 20}[match[2]]
        return int(float(match[1]) * unit)
    raise SystemExit(f"`sluice inspect` names no KV bytes a token:\n{text}")


class Case:
    """One row of the table: makes servers and jobs, measures one round of one side."""

    def __init__(self, options, model: str, workload: str, system_tokens: int, streams: int):
        self.options = options
        self.model = model
        self.workload = workload
        self.system_tokens = system_tokens
        self.streams = streams
        self.slot_context = options.context + (-(-system_tokens // 256) * 256)
        self.count = max(options.min_requests, streams * options.requests_per_stream)
        self.scale = 1.0
        self.llama_extra: list[str] = options.llama_args.split()

    def label(self) -> str:
        return (f"{Path(self.model).stem} {self.workload} system={self.system_tokens} "
                f"x{self.streams}")

    def server(self, name: str, extra: list[str]) -> Server:
        o = self.options
        log = Path(o.out) / f"{name}.log"
        if name == "llama-server":
            argv = llama_argv(o.llama_server, self.model, self.streams, self.slot_context,
                              o.threads, extra)
        else:
            kv = kv_bytes_per_token(o, self.model) * self.streams * self.slot_context
            argv = sluice_argv(o.sluice, self.model, self.streams, self.slot_context, o.threads,
                               kv, [*o.sluice_args.split(), *extra])
        return Server(name, argv, log)

    def jobs(self, server: Server, seed: str, count: int) -> list[Job]:
        lengths, self.scale = lengths_of(self.workload, self.options.context, count,
                                         self.options.seed)

        def tokenize(text: str) -> list[int]:
            body = {"content": text, "prompt": text, "add_special": False,
                    "add_special_tokens": False}
            return post_json(server.port, "/tokenize", body)["tokens"]

        return make_jobs(lengths, self.system_tokens, seed, tokenize)

    def measure(self, name: str, number: int, extra: list[str], count: int) -> Round:
        with self.server(name, extra) as server:
            jobs = self.jobs(server, f"{self.options.seed}/{number}", count)
            warm = [Job(jobs[-1].prompt[-8:], 4)]
            model = Path(self.model).stem if name == "llama-server" else served_model(server)
            run_closed_loop(warm, 1, model, HOST, server.port)
            cpu_server, cpu_client = server.cpu_seconds(), own_cpu()
            outcomes = run_closed_loop(jobs, self.streams, model, HOST, server.port)
            return summarize(name, number, outcomes, server.peak_rss_bytes(),
                             server.cpu_seconds() - cpu_server, own_cpu() - cpu_client,
                             server.start_seconds)

    def tune_llama(self):
        """Keeps the fastest settings on one request a stream of this very case."""
        tried: dict[str, float] = {}
        count = max(4, self.streams)

        def rate(extra: list[str]) -> float:
            key = " ".join(extra)
            if key not in tried:
                tried[key] = self.measure("llama-server", 0, extra, count).output_tokens_per_s
                say(f"    tuning llama-server {key or '(defaults)'}: {tried[key]:.1f} tokens/s")
            return tried[key]

        for settings in LLAMA_SETTINGS:
            self.llama_extra = max((self.llama_extra + s for s in settings), key=rate)


def served_model(server: Server) -> str:
    with urllib.request.urlopen(f"http://{HOST}:{server.port}/v1/models", timeout=10) as answer:
        return json.load(answer)["data"][0]["id"]


def own_cpu() -> float:
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return usage.ru_utime + usage.ru_stime


def say(text: str):
    print(text, flush=True)


def run_case(case: Case) -> dict:
    options = case.options
    say(f"{case.label()}: {case.count} requests a round")
    names = [options.only] if options.only else ["llama-server", "sluice"]
    if "llama-server" in names and not options.no_tune:
        case.tune_llama()
    rounds: list[Round] = []
    for number in range(1, options.rounds + 1):
        # A B, then B A: neither side always runs on the warmer machine.
        for name in names if number % 2 else reversed(names):
            extra = case.llama_extra if name == "llama-server" else []
            r = case.measure(name, number, extra, case.count)
            rounds.append(r)
            say(f"  round {number} {name:12s} {r.output_tokens_per_s:7.1f} tokens/s  "
                f"TTFT p50 {r.ttft_p50 * 1e3:6.0f} ms  gap p50 {r.gap_p50 * 1e3:5.1f} ms p99 "
                f"{r.gap_p99 * 1e3:6.1f} ms  RSS {r.peak_rss_bytes >> 20} MiB  CPU "
                f"{r.server_cpu:.1f} s + client {r.client_cpu:.2f} s  failed {r.failed} of "
                f"{r.requests}")
            for error in r.errors:
                say(f"    {error}")
    return {"model": Path(case.model).stem, "workload": case.workload,
            "length_scale": round(case.scale, 4), "system_tokens": case.system_tokens,
            "streams": case.streams, "slot_context": case.slot_context,
            "llama_settings": " ".join(case.llama_extra), "rounds": rounds}


def machine() -> dict:
    model = next((line.split(":")[1].strip() for line in open("/proc/cpuinfo")
                  if line.startswith("model name")), "")
    return {"cpu": model, "cores": os.cpu_count(), "kernel": platform.release(),
            "load_average_at_start": os.getloadavg()}


def write(options, cases: list[dict], begun: float, facts: dict):
    out = Path(options.out)
    plain = [{**c, "rounds": [r.as_dict() for r in c["rounds"]]} for c in cases]
    flags = {k: v for k, v in vars(options).items() if k not in ("sluice", "llama_server", "out")}
    flags["model"] = [Path(m).name for m in options.model]
    (out / "results.json").write_text(json.dumps(
        {"machine": facts, "options": flags, "seconds": round(time.time() - begun, 1),
         "cases": plain}, indent=1) + "\n")
    (out / "table.md").write_text(markdown(cases))


def main() -> int:
    options = parse_arguments()
    needed = [options.sluice] if options.only != "llama-server" else []
    needed += [options.llama_server] if options.only != "sluice" else []
    for file in [*needed, *options.model]:
        if not Path(file).exists():
            say(f"{file} does not exist")
            return 2
    if not options.model:
        say("no model: give --model FILE.gguf")
        return 2
    Path(options.out).mkdir(parents=True, exist_ok=True)
    begun, facts, cases = time.time(), machine(), []
    for model in options.model:
        for workload in options.workload.split(","):
            for system in map(int, options.system.split(",")):
                for streams in map(int, options.streams.split(",")):
                    cases.append(run_case(Case(options, model, workload, system, streams)))
                    write(options, cases, begun, facts)
    say("\n" + markdown(cases) + f"\nwritten to {options.out}/")
    return 1 if any(r.failed for c in cases for r in c["rounds"] if r.server == "sluice") else 0


if __name__ == "__main__":
    sys.exit(main())

"""sluice beside vLLM on the CPU: the same weights, requests, threads and cores, in turn.

    python3 bench/vllm_cpu --vllm VENV/bin/vllm --vllm-model FOLDER --model M.gguf --streams 1,16

FOLDER holds the weights of M.gguf as safetensors (transformers can make them from the GGUF;
vLLM's CPU backend does not serve GGUF). vLLM takes minutes to start, so it stays up while
rounds go A B, then B A, with new prompts in each (it keeps prefixes); the side that is not
asked idles. Cells are sluice / vLLM: median of the rounds' ratios (least-most). Standard
library only.
"""

import argparse
import json
import os
import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "bench/serve_vs_llama_server"))

from client import Job, run_closed_loop  # noqa: E402
from report import Round, markdown, summarize  # noqa: E402
from servers import HOST, Server, post_json, sluice_argv  # noqa: E402
from workload import lengths_of, make_jobs  # noqa: E402


class VllmServer(Server):
    """vLLM is several processes: what it costs is the sum of theirs."""

    def _tree(self) -> list[int]:
        parents = {}
        for entry in Path("/proc").glob("[0-9]*/stat"):
            try:
                text = entry.read_text()
            except OSError:
                continue  # it has ended
            parents[int(entry.parent.name)] = int(text[text.rindex(")") + 2:].split()[1])
        found = [self.pid]
        for pid in found:
            found += [child for child, parent in parents.items() if parent == pid]
        return found

    def peak_rss_bytes(self) -> int:
        return sum(self.peak_of(pid) for pid in self._tree())

    def cpu_seconds(self) -> float:
        return sum(self.cpu_of(pid) for pid in self._tree())


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="vllm_cpu", description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    add = parser.add_argument
    add("--vllm", required=True, help="vLLM's program")
    add("--vllm-model", required=True, help="folder of safetensors")
    add("--vllm-args", default="", help="more of its flags, separated by spaces")
    add("--dtype", default="bfloat16", help="vLLM's (default: %(default)s)")
    add("--model", action="append", required=True, help="GGUF file; may be repeated")
    add("--streams", default="1,16", help="concurrent streams (default: %(default)s)")
    add("--workload", default="sharegpt", help="as of serve_vs_llama_server (default: %(default)s)")
    add("--context", type=int, default=1024, help="(default: %(default)s)")
    add("--rounds", type=int, default=2, help="(default: %(default)s)")
    add("--requests-per-stream", type=int, default=1, help="(default: %(default)s)")
    add("--min-requests", type=int, default=8, help="a round (default: %(default)s)")
    add("--threads", type=int, default=os.cpu_count(), help="(default: cores)")
    add("--seed", type=int, default=1)
    add("--sluice", default=os.environ.get("SLUICE_BIN", str(ROOT / "build/release/apps/sluice")))
    add("--out", default=str(ROOT / "build/bench/vllm_cpu"), help="folder for results and logs")
    return parser.parse_args()


def vllm_server(o, most_streams: int) -> VllmServer:
    argv = [o.vllm, "serve", o.vllm_model, "--served-model-name", "peer", "--host", HOST, "--port",
            "{port}", "--max-model-len", str(o.context), "--max-num-seqs", str(most_streams),
            "--dtype", o.dtype, *o.vllm_args.split()]
    environment = {"HF_HUB_OFFLINE": "1", "TRANSFORMERS_OFFLINE": "1", "VLLM_NO_USAGE_STATS": "1",
                   "VLLM_CPU_KVCACHE_SPACE": "2", "CUDA_VISIBLE_DEVICES": "",
                   "VLLM_CPU_OMP_THREADS_BIND": f"0-{o.threads - 1}"}
    return VllmServer("vllm", argv, Path(o.out) / "vllm.log", environment, ready_seconds=600)


def sluice_server(o, model: str, streams: int) -> Server:
    argv = sluice_argv(o.sluice, model, streams, o.context, o.threads, 2 << 30, [])
    return Server("sluice", argv, Path(o.out) / "sluice.log")


def measure(o, server: Server, name: str, sluice_model: str, streams: int, number: int) -> Round:
    model = "peer" if name == "vllm" else sluice_model
    count = max(o.min_requests, streams * o.requests_per_stream)
    lengths, _ = lengths_of(o.workload, o.context - 8, count, o.seed)

    def tokenize(text: str) -> list[int]:
        body = {"model": model, "prompt": text, "add_special_tokens": False}
        return post_json(server.port, "/tokenize", body)["tokens"]

    jobs = make_jobs(lengths, 0, f"{o.seed}/{sluice_model}/{streams}/{number}", tokenize)
    run_closed_loop([Job(jobs[-1].prompt[-8:], 4)], 1, model, HOST, server.port)
    before = server.cpu_seconds()
    outcomes = run_closed_loop(jobs, streams, model, HOST, server.port)
    return summarize(name, number, outcomes, server.peak_rss_bytes(),
                     server.cpu_seconds() - before, 0.0, server.start_seconds)


def measure_sluice(o, model: str, streams: int, number: int) -> Round:
    with sluice_server(o, model, streams) as server:
        return measure(o, server, "sluice", Path(model).stem, streams, number)


def main() -> int:
    o = parse_arguments()
    streams = [int(n) for n in o.streams.split(",")]
    Path(o.out).mkdir(parents=True, exist_ok=True)
    cases = []
    with vllm_server(o, max(streams)) as vllm:
        print(f"vLLM is up after {vllm.start_seconds:.0f} s", flush=True)
        for model in o.model:
            for count in streams:
                rounds = []
                for number in range(1, o.rounds + 1):
                    for name in ("vllm", "sluice") if number % 2 else ("sluice", "vllm"):
                        rounds.append(measure_sluice(o, model, count, number) if name == "sluice"
                                      else measure(o, vllm, name, Path(model).stem, count, number))
                        r = rounds[-1]
                        print(f"  {Path(model).stem} x{count} {name:7s} "
                              f"{r.output_tokens_per_s:7.1f} tokens/s  TTFT p50 "
                              f"{r.ttft_p50 * 1e3:6.0f} ms  gap p50 {r.gap_p50 * 1e3:5.1f} p99 "
                              f"{r.gap_p99 * 1e3:6.1f} ms  failed {r.failed} {r.errors}",
                              flush=True)
                cases.append({"model": Path(model).stem, "workload": o.workload,
                              "system_tokens": 0, "streams": count, "rounds": rounds})
    table = markdown(cases, "vllm")
    (Path(o.out) / "table.md").write_text(table)
    plain = [{**c, "rounds": [r.as_dict() for r in c["rounds"]]} for c in cases]
    version = subprocess.run([o.vllm, "--version"], capture_output=True, text=True,
                             check=False).stdout.strip()
    (Path(o.out) / "results.json").write_text(json.dumps(
        {"vllm": version, "dtype": o.dtype, "cases": plain, "at": time.time()}, indent=1) + "\n")
    print("\n" + table)
    return 1 if any(r.failed for c in cases for r in c["rounds"]) else 0


if __name__ == "__main__":
    sys.exit(main())

"""Results as tables for people: a workload and pressure each, medians over the seeds."""

import statistics


def cell(runs: list[dict], key: str, scale: float = 1.0, digits: int = 0) -> str:
    values = sorted(r[key] * scale for r in runs)
    text = f"{statistics.median(values):,.{digits}f}"
    if len(values) > 1 and f"{values[0]:,.{digits}f}" != f"{values[-1]:,.{digits}f}":
        text += f" ({values[0]:,.{digits}f}-{values[-1]:,.{digits}f})"
    return text


def _row(row: dict) -> str:
    runs = row["runs"]
    for run in runs:
        run["gap_ratio"] = run["gap_p99"] / run["gap_p50"] if run["gap_p50"] else 0.0
    cells = [row["policy"], cell(runs, "output_tokens_per_s"), cell(runs, "goodput", 1, 1),
             cell(runs, "preemptions_per_1000"), cell(runs, "pauses_per_1000"),
             cell(runs, "gap_p50", 1e3, 2), cell(runs, "gap_p99", 1e3, 1),
             cell(runs, "gap_ratio", 1, 1), cell(runs, "ttft_p50", 1e3),
             cell(runs, "kv_used", 100), cell(runs, "kv_unused", 100, 1),
             cell(runs, "running", 1, 1)]
    failed = sum(r["failed"] for r in runs)
    if failed:
        cells[0] += f" ({failed} failed)"
    return "| " + " | ".join(cells) + " |"


HEAD = ("| policy | output tokens/s | goodput requests/s | preempted a 1,000 | paused a 1,000 | "
        "gap p50 ms | gap p99 ms | p99 / p50 | TTFT p50 ms | KV used % | granted unwritten % | "
        "running |\n" + "|---" * 12 + "|")


def markdown(rows: list[dict]) -> str:
    """Cells are the median of the seeds and, in brackets, the least and the most."""
    parts = []
    cases = sorted({(r["workload"], r["pressure"]) for r in rows if r["pressure"]})
    for workload, pressure in cases:
        mine = [r for r in rows if (r["workload"], r["pressure"]) == (workload, pressure)]
        slo = mine[0]["slo"]
        tokens = mine[0]["kv_tokens"]
        parts.append(f"{workload}, memory for 1/{pressure:g} of the demand ({tokens:,} tokens). "
                     f"SLO: first token within {slo['ttft_s']:.2f} s, mean gap at most "
                     f"{slo['mean_gap_s'] * 1e3:.1f} ms\n\n{HEAD}\n"
                     + "\n".join(_row(r) for r in mine) + "\n")
    return "\n".join(parts)

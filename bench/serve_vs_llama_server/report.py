"""From outcomes to numbers, and from rounds to a table of ratios with their spread."""

import statistics
from dataclasses import asdict, dataclass

from client import Outcome


@dataclass
class Round:
    """One server's numbers in one round of one case. Times in seconds."""

    server: str
    round: int
    requests: int
    failed: int
    errors: list[str]
    wall: float
    output_tokens: int
    output_tokens_per_s: float
    full_load_tokens_per_s: float
    ttft_p50: float
    ttft_p99: float
    gap_p50: float
    gap_p99: float
    cached_tokens: int
    peak_rss_bytes: int
    server_cpu: float
    client_cpu: float
    start_seconds: float

    def as_dict(self) -> dict:
        return asdict(self)


def percentile(values: list[float], share: float) -> float:
    """The least value that at least `share` of all do not exceed; 0 without values."""
    if not values:
        return 0.0
    ordered = sorted(values)
    rank = -(-len(ordered) * share // 1)
    return ordered[min(len(ordered) - 1, max(0, int(rank) - 1))]


def full_load_rate(good: list[Outcome]) -> float:
    """Tokens a second while every stream was busy: until the last request was sent.

    Tokens of a request count by the share of its generation that lies before that.
    """
    end = max(o.started for o in good)
    begin = min(o.started for o in good)
    if end - begin < 1.0:
        return 0.0
    tokens = 0.0
    for o in good:
        generation = max(o.ended - o.first, 1e-9)
        tokens += o.output_tokens * min(1.0, max(0.0, end - o.first) / generation)
    return tokens / (end - begin)


def summarize(server: str, number: int, outcomes: list[Outcome], peak_rss: int, server_cpu: float,
              client_cpu: float, start_seconds: float) -> Round:
    good = [o for o in outcomes if not o.error]
    bad = [o.error for o in outcomes if o.error]
    wall = max(o.ended for o in outcomes) - min(o.started for o in outcomes)
    tokens = sum(o.output_tokens for o in good)
    gaps = [gap for o in good for gap in o.gaps]
    first = [o.first - o.started for o in good]
    return Round(server, number, len(outcomes), len(bad), sorted(set(bad))[:5], wall, tokens,
                 tokens / wall, full_load_rate(good) if good else 0.0, percentile(first, 0.5),
                 percentile(first, 0.99), percentile(gaps, 0.5), percentile(gaps, 0.99),
                 sum(o.cached_tokens for o in good), peak_rss, server_cpu, client_cpu,
                 start_seconds)


def _ratios(ours: list[Round], theirs: list[Round], field: str) -> list[float]:
    pairs = zip(sorted(ours, key=lambda r: r.round), sorted(theirs, key=lambda r: r.round))
    return [getattr(a, field) / getattr(b, field) for a, b in pairs if getattr(b, field)]


def spread(values: list[float]) -> str:
    """Median with the least and the most of the rounds."""
    if not values:
        return "-"
    return f"{statistics.median(values):.2f} ({min(values):.2f}-{max(values):.2f})"


def _both(ours: list[Round], theirs: list[Round], field: str, factor: float, form: str) -> str:
    def middle(rounds):
        return format(statistics.median(getattr(r, field) for r in rounds) * factor, form)
    return f"{middle(ours)} / {middle(theirs)}"


def _numbers(ours: list[Round], theirs: list[Round]) -> list[str]:
    def cell(field, factor, form):
        return f"{_both(ours, theirs, field, factor, form)}: {spread(_ratios(ours, theirs, field))}"
    failed = f"{sum(r.failed for r in ours)} / {sum(r.failed for r in theirs)}"
    return [cell("output_tokens_per_s", 1, ".1f"), cell("ttft_p50", 1e3, ".0f"),
            cell("ttft_p99", 1e3, ".0f"), cell("gap_p50", 1e3, ".1f"),
            cell("gap_p99", 1e3, ".1f"), cell("peak_rss_bytes", 2.0**-20, ".0f"), failed]


_COLUMNS = ["model", "lengths", "system prompt", "streams", "output tokens/s", "TTFT p50 ms",
            "TTFT p99 ms", "gap p50 ms", "gap p99 ms", "peak RSS MiB", "failed"]


def markdown(cases: list[dict], other: str = "llama-server") -> str:
    """Every cell is `sluice / the other: median ratio (least-most over rounds)`."""
    lines = [f"Cells: sluice / {other}: median of the rounds' ratios (least-most).", "",
             "| " + " | ".join(_COLUMNS) + " |", "|" + "---|" * len(_COLUMNS)]
    for case in cases:
        ours = [r for r in case["rounds"] if r.server == "sluice"]
        theirs = [r for r in case["rounds"] if r.server == other]
        head = [case["model"], case["workload"], str(case["system_tokens"]), str(case["streams"])]
        if ours and theirs:
            lines.append("| " + " | ".join(head + _numbers(ours, theirs)) + " |")
        elif theirs:
            rate = spread([r.output_tokens_per_s for r in theirs])
            cells = head + [f"{other} only: {rate}"] + ["-"] * 6
            lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines) + "\n"

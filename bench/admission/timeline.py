"""A time line of windows: what was granted, what was written of it, what the plan saw coming."""

import csv

WIDTH, HEIGHT, LEFT, TOP, RIGHT, BOTTOM = 900, 380, 62, 46, 16, 66
STEPS = 480
POOL = 20_000
BLOCK = 16
FLOOR = 800  # blocks where the picture begins: below, all is written
COLORS = {"written": "#2f6f9f", "granted": "#a9cfe6", "peak": "#c0504d", "pool": "#333333",
          "window": "#e4e4e4", "demand": "#3a8f5c"}


def draw(runner, target):
    """Chat requests in a pool of 20,000 tokens, past the warm-up; the same picture every time."""
    csv_file = runner.folder / "timeline.csv"
    runner.simulate("chat", POOL, 3_000, STEPS, ["--timeline", csv_file], seed=3)
    with open(csv_file, encoding="ascii") as text:
        rows = [{key: int(value) for key, value in row.items()} for row in csv.DictReader(text)]
    target.write_text(svg(rows), encoding="utf-8")
    print(f"{target}: {len(rows)} steps, {sum(row['opened'] for row in rows)} windows")


def svg(rows):
    total = POOL // BLOCK
    across = (WIDTH - LEFT - RIGHT) / len(rows)
    up = (HEIGHT - TOP - BOTTOM) / (total * 1.05 - FLOOR)

    def x(step):
        return LEFT + step * across

    def y(blocks):
        return HEIGHT - BOTTOM - max(blocks - FLOOR, 0) * up

    def area(key):
        points = [(x(i), y(row[key])) for i, row in enumerate(rows) for i in (i, i + 1)]
        inner = " ".join(f"{a:.1f},{b:.1f}" for a, b in points)
        return (f'<polygon fill="{COLORS[key]}" points="{x(0):.1f},{y(0):.1f} {inner} '
                f'{x(len(rows)):.1f},{y(0):.1f}"/>')

    parts = [f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" '
             f'font-family="sans-serif" font-size="12">',
             f'<rect width="{WIDTH}" height="{HEIGHT}" fill="#ffffff"/>',
             area("granted"), area("written")]
    starts = [i for i, row in enumerate(rows) if row["opened"]]
    for begin, end in zip(starts, starts[1:] + [len(rows)]):
        row = rows[begin]
        held = row["granted"] - row["demand"]
        parts.append(f'<line x1="{x(begin):.1f}" x2="{x(begin):.1f}" y1="{TOP}" '
                     f'y2="{HEIGHT - BOTTOM}" stroke="{COLORS["window"]}" stroke-width="0.8"/>')
        # What the plan asked for, on top of what was held at its boundary.
        parts.append(f'<line x1="{x(begin) + 1:.1f}" x2="{x(begin) + 1:.1f}" y1="{y(held):.1f}" '
                     f'y2="{y(row["granted"]):.1f}" stroke="{COLORS["demand"]}" '
                     f'stroke-width="2"/>')
        parts.append(f'<line x1="{x(begin):.1f}" x2="{x(end):.1f}" y1="{y(row["peak"]):.1f}" '
                     f'y2="{y(row["peak"]):.1f}" stroke="{COLORS["peak"]}" stroke-width="1.6"/>')
    parts.append(f'<line x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{y(total):.1f}" y2="{y(total):.1f}" '
                 f'stroke="{COLORS["pool"]}" stroke-dasharray="5 3"/>')
    parts += labels(rows, total, x, y)
    return "\n".join(parts + ["</svg>"]) + "\n"


def labels(rows, total, x, y):
    for blocks in range(FLOOR, total + 1, 50):
        yield (f'<text x="{LEFT - 8}" y="{y(blocks) + 4:.1f}" text-anchor="end">{blocks:,}</text>')
    for step in range(0, len(rows) + 1, 60):
        yield (f'<text x="{x(step):.1f}" y="{HEIGHT - BOTTOM + 16}" text-anchor="middle">{step}'
               '</text>')
    yield (f'<text x="{(LEFT + WIDTH - RIGHT) / 2}" y="{HEIGHT - BOTTOM + 32}" '
           'text-anchor="middle">steps</text>')
    middle = (TOP + HEIGHT - BOTTOM) / 2
    yield (f'<text x="14" y="{middle}" text-anchor="middle" '
           f'transform="rotate(-90 14 {middle})">KV blocks of 16 tokens</text>')
    yield (f'<text x="{LEFT}" y="20" font-size="14">Windows of one instance, a full queue of chat'
           '</text>')
    legend = [("written", "written"), ("granted", "granted, not written yet"),
              ("demand", "demand of a window, granted at once"),
              ("peak", "likely peak ahead"), ("pool", "the pool")]
    at = LEFT
    for key, text in legend:
        yield f'<rect x="{at}" y="{HEIGHT - 20}" width="11" height="11" fill="{COLORS[key]}"/>'
        yield f'<text x="{at + 15}" y="{HEIGHT - 10}">{text}</text>'
        at += 30 + 6.4 * len(text)

"""Two engines in one process behind the global scheduler."""

import csv
import json
import time

from generation import assert_same, greedy, in_parallel, prompt
from sluice_server import run_sluice

COUNT = 12


def decisions(server, count: int) -> list[dict]:
    """So many at least; what is shown may be 120 ms old."""
    deadline = time.monotonic() + 10
    while True:
        status, body = server.get("/debug/decisions")
        assert status == 200
        made = json.loads(body)["decisions"]
        if len(made) >= count or time.monotonic() > deadline:
            return made
        time.sleep(0.05)


def test_both_instances_get_work_and_say_why(start):
    server = start("--context", 1024, "--instances", 2)
    model = server.model_id()
    jobs = [prompt(40 + 5 * i, seed=500 + i) for i in range(COUNT)]
    with server.client() as client:
        together = in_parallel([lambda t=t: greedy(client, model, t, 32) for t in jobs])
        alone = [greedy(client, model, t, 32) for t in jobs[:3]]
    for expected, got in zip(alone, together):
        assert_same(expected, got)
    server.wait_idle()

    made = decisions(server, COUNT)
    assert len(made) >= COUNT
    assert len({d["instance"] for d in made}) == 2
    for decision in made:
        assert decision["policy"] == "forecast"
        assert decision["outcome"]
        assert len(decision["candidates"]) == 2
        chosen = [c for c in decision["candidates"] if c["instance"] == decision["instance"]]
        assert chosen[0]["rejection"] == "none" and chosen[0]["report_age_ms"] >= 0
    assert len(server.debug_memory()) == 2

    seen = server.metrics()
    placements = sum(v for k, v in seen.items() if k.startswith("sluice_placements_total{"))
    assert placements >= COUNT
    assert any('reason="' in k for k in seen if k.startswith("sluice_placements_total{"))
    engines = [v for k, v in seen.items() if k.startswith("vllm:generation_tokens_total{")]
    assert len(engines) == 2 and all(engines), "both generated"


def test_the_policy_can_be_chosen(start):
    server = start("--context", 512, "--instances", 2, "--policy", "round-robin")
    model = server.model_id()
    with server.client() as client:
        for i in range(4):
            greedy(client, model, prompt(10, i), 2)
    made = decisions(server, 4)
    assert {d["policy"] for d in made} == {"round-robin"}
    instances = [d["instance"] for d in made]
    assert sorted(instances.count(i) for i in set(instances)) == [2, 2]


def test_decisions_are_made_again_by_other_policies(start, tmp_path):
    server = start("--context", 512, "--instances", 3)
    model = server.model_id()
    with server.client() as client:
        in_parallel([lambda i=i: greedy(client, model, prompt(20 + 40 * (i % 4), i % 5), 8)
                     for i in range(24)])
    server.wait_idle()
    decisions(server, 24)
    file = tmp_path / "decisions.json"
    file.write_bytes(server.get("/debug/decisions?inputs=1")[1])

    done = run_sluice("replay", file, "--policy", "forecast,round-robin", "--out", tmp_path)
    assert done.returncode == 0, done.stderr
    assert "(as recorded)" in done.stdout
    with (tmp_path / "replay.csv").open() as text:
        rows = list(csv.DictReader(text))
    ours = [row for row in rows if row["policy"] == "forecast"]
    assert len(ours) >= 24
    for row in ours:
        assert row["chosen"] == row["recorded"] != "", "who decided decides the same again"
        assert float(row["ttft_s"]) == float(row["recorded_ttft_s"]) > 0
        assert row["instances_known"] == row["instances"] == "3"
    others = [row for row in rows if row["policy"] == "round-robin"]
    assert {row["chosen"] for row in others} == {"0", "1", "2"}
    assert any(row["chosen"] != row["recorded"] for row in others)
    made = json.loads((tmp_path / "replay.json").read_text())["choices"]
    assert len(made) == len(rows)

    bad = json.loads(file.read_text())
    bad["decisions"][2]["inputs"]["loads"][1]["wait_s"] = "long"
    file.write_text(json.dumps(bad))
    refused = run_sluice("replay", file)
    assert refused.returncode == 2
    assert "decisions[2].inputs.loads[1].wait_s" in refused.stderr

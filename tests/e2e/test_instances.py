"""Two engines in one process behind the global scheduler."""

import json
import time

from generation import assert_same, greedy, in_parallel, prompt

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

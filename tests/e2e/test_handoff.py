"""Prefill and decode engines in one process: what a client sees is what one engine says."""

import json

from generation import assert_same, greedy, in_parallel, prompt

COUNT = 10


def total(metrics: dict, name: str) -> float:
    return sum(v for k, v in metrics.items() if k.startswith(name + "{"))


def start_apart(start, *flags):
    return start("--context", 1024, "--prefill", 1, "--decode", 2, *flags)


def test_outputs_equal_those_of_one_engine(start):
    apart, single = start_apart(start), start("--context", 1024)
    model = apart.model_id()
    jobs = [prompt(30 + 20 * i, seed=700 + i) for i in range(COUNT)]
    with apart.client() as a, single.client() as s:
        answers = in_parallel([lambda t=t: greedy(a, model, t, 24) for t in jobs])
        for text, answer in zip(jobs, answers):
            assert_same(greedy(s, model, text, 24), answer)
    apart.wait_idle()

    seen = apart.metrics()
    moved = sum(v for k, v in seen.items()
                if k.startswith("sluice_handoffs_total{") and 'outcome="moved"' in k
                and 'transport="local"' in k)
    assert moved >= COUNT // 2, "most were handed over"
    assert total(seen, "sluice_handoff_bytes_total") > 0
    assert total(seen, "sluice_reservations") == 0
    for instance in apart.debug_memory():
        assert instance["blocks"]["granted"] == 0
        assert instance["handoffs"]["leaving"] == 0
        assert instance["handoffs"]["reservations"] == 0
    assert [i["role"] for i in apart.debug_memory()] == ["prefill", "decode", "decode"]


def test_both_placements_are_on_record(start):
    server = start_apart(start)
    with server.client() as client:
        greedy(client, server.model_id(), prompt(60, seed=3), 20)
    server.wait_idle()
    made = json.loads(server.get("/debug/decisions")[1])["decisions"]
    roles = {d["role"]: d for d in made}
    assert roles["prefill"]["by"] == "global" and roles["prefill"]["instance"] == 0
    assert roles["decode"]["by"] == 0 and roles["decode"]["instance"] in (1, 2)
    assert roles["prefill"]["request"] == roles["decode"]["request"]
    assert roles["decode"]["policy"] == "least-peak"


def test_seeded_sampling_and_a_grammar_go_along(start):
    apart, single = start_apart(start), start("--context", 1024)
    model = apart.model_id()
    schema = {"type": "object", "properties": {"name": {"type": "string", "maxLength": 20},
                                               "age": {"type": "integer"}},
              "required": ["name", "age"], "additionalProperties": False}

    def ask(client):
        return client.chat.completions.create(
            model=model, seed=11, temperature=1.1, max_tokens=60, frequency_penalty=0.4,
            messages=[{"role": "user", "content": "Invent a person."}],
            response_format={"type": "json_schema",
                             "json_schema": {"name": "person", "schema": schema}}
        ).choices[0].message.content

    with apart.client() as a, single.client() as s:
        assert ask(a) == ask(s)


def test_a_client_that_leaves_frees_both_sides(start):
    server = start_apart(start)
    model = server.model_id()
    with server.client() as client:
        for i in range(6):
            stream = client.completions.create(model=model, prompt=prompt(80, seed=i),
                                               max_tokens=600, stream=True,
                                               extra_body={"ignore_eos": True})
            for n, _ in enumerate(stream):
                if n >= i:
                    break
            stream.close()
    server.wait_idle()
    for instance in server.debug_memory():
        assert instance["blocks"]["granted"] == 0
        assert instance["handoffs"]["reservations"] == 0

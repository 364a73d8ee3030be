"""--speculative ngram: the same answers, in fewer steps."""

import json

import pytest

from generation import assert_same, greedy, in_parallel, prompt
from sluice_server import Server

TEXT = ("Once upon a time there was a small engine that lived by the river. It pulled the bread to "
        "the village every morning and the paper to the city every evening. ")
# Its answers stand in what was said before.
REPEATS = [TEXT * 3, "1, 2, 3, 4, 1, 2, 3, 4, 1, 2, 3, 4, 1, 2,", prompt(20, seed=4) * 3,
           '[{"name": "a", "size": 1}, {"name": "b", "size": 2}, {"name": "c", "size": 3}, ']


@pytest.fixture(scope="module")
def speculative(log_folder):
    running = Server(log_folder / "speculative.log", "--speculative", "ngram", "--context", 1024)
    try:
        yield running.start()
    finally:
        running.stop()


def counter(server, name: str) -> float:
    page = server.request("GET", "/metrics")[1].decode()
    return sum(float(line.rsplit(" ", 1)[1]) for line in page.splitlines()
               if line.startswith(f"sluice_speculative_{name}_total{{"))


def test_answers_are_those_without(server, speculative):
    with server.client() as plain, speculative.client() as guessing:
        model = server.model_id()
        expected = [greedy(plain, model, text, 80) for text in REPEATS]
        alone = [greedy(guessing, model, text, 80) for text in REPEATS]
        together = in_parallel([lambda t=t: greedy(guessing, model, t, 80) for t in REPEATS])
    for e, a, t in zip(expected, alone, together):
        assert_same(e, a)
        assert_same(e, t)
    assert counter(speculative, "accepted_tokens") > 50
    assert counter(speculative, "draft_tokens") >= counter(speculative, "accepted_tokens")
    assert counter(speculative, "drafts") > 0
    speculative.wait_idle()


def test_several_tokens_of_a_step_are_streamed_and_counted(speculative):
    with speculative.client() as client:
        stream = client.completions.create(
            model=speculative.model_id(), prompt=REPEATS[1], max_tokens=60, temperature=0,
            stream=True, logprobs=2, stream_options={"include_usage": True},
            extra_body={"ignore_eos": True})
        tokens, usage = [], None
        for chunk in stream:
            usage = chunk.usage or usage
            for choice in chunk.choices:
                tokens += choice.logprobs.tokens if choice.logprobs else []
    assert len(tokens) == 60
    assert usage.completion_tokens == 60


def test_a_stop_string_ends_the_answer_inside_a_step(server, speculative):
    for s in (server, speculative):
        with s.client() as client:
            answer = client.completions.create(
                model=s.model_id(), prompt=REPEATS[1], max_tokens=60, temperature=0, stop=["3"],
                extra_body={"ignore_eos": True})
        assert "3" not in answer.choices[0].text
        assert answer.choices[0].finish_reason == "stop"
        s.wait_idle()


def test_a_schema_holds_with_guesses(speculative):
    schema = {"type": "array", "minItems": 6, "maxItems": 6,
              "items": {"type": "object", "additionalProperties": False,
                        "required": ["name", "size"],
                        "properties": {"name": {"enum": ["a", "b"]}, "size": {"enum": [1, 2]}}}}
    with speculative.client() as client:
        answer = client.chat.completions.create(
            model=speculative.model_id(), max_tokens=300, temperature=0.8, seed=3,
            messages=[{"role": "user", "content": "Six things: " + REPEATS[3]}],
            response_format={"type": "json_schema",
                             "json_schema": {"name": "list", "schema": schema}})
    things = json.loads(answer.choices[0].message.content)
    assert len(things) == 6
    assert all(set(thing) == {"name", "size"} for thing in things)

"""Many requests at once: equal to the single ones, under pressure and without."""

import json
import threading
import time

import openai
import pytest

from generation import assert_same, greedy, in_parallel, prompt
from sluice_server import model_file, run_sluice

# KV of the default model (SmolLM2-135M: 30 layers, 3 KV heads of 64, f16).
KV_BYTES_PER_TOKEN = 30 * 2 * 3 * 64 * 2


def kv_memory(tokens: int) -> str:
    return f"{-(-tokens * KV_BYTES_PER_TOKEN // (1 << 20))}MiB"


def mixed_jobs(count: int) -> list[tuple[str, int]]:
    return [(prompt(words=5 + 11 * (i % 9), seed=100 + i), 8 + 4 * (i % 7)) for i in range(count)]


def test_thirty_two_mixed_requests_equal_the_single_ones(start):
    # Without prefix cache the second pass computes everything, in a mixed batch.
    server = start("--context", 1024, "--max-running", 32, "--no-prefix-cache")
    model = server.model_id()
    with server.client() as client:
        jobs = mixed_jobs(32)
        alone = [greedy(client, model, text, count) for text, count in jobs]
        together = in_parallel([lambda t=t, c=c: greedy(client, model, t, c) for t, c in jobs])
    for expected, got in zip(alone, together):
        assert got.cached_tokens == 0
        assert_same(expected, got)
    equal = sum(a.tokens == b.tokens for a, b in zip(alone, together))
    assert equal >= 16, f"only {equal} of 32 are equal token for token"
    server.wait_idle()


def test_streams_that_share_a_prefix_equal_the_single_ones(server, client, model):
    shared = prompt(250, seed=7)
    jobs = [f"{shared} Then {word}" for word in
            ("one", "two", "three", "four", "five", "six", "seven", "eight")]
    alone = [greedy(client, model, text, 16) for text in jobs]
    together = in_parallel([lambda t=t: greedy(client, model, t, 16) for t in jobs])
    for expected, got in zip(alone, together):
        assert_same(expected, got)
        assert got.cached_tokens > 200
    server.wait_idle()


def test_a_long_prompt_does_not_stop_running_streams(start):
    server = start("--context", 2048)
    model = server.model_id()
    with server.client() as client:
        stream = client.completions.create(
            model=model, prompt=prompt(5, 1), max_tokens=400, temperature=0, stream=True,
            extra_body={"ignore_eos": True})
        arrivals = []
        begun = threading.Event()

        def read():
            for _ in stream:
                arrivals.append(time.monotonic())
                if len(arrivals) == 20:
                    begun.set()

        reader = threading.Thread(target=read)
        reader.start()
        assert begun.wait(120)
        sent = time.monotonic()
        greedy(client, model, prompt(800, 2), 1)
        answered = time.monotonic()
        reader.join(300)
    between = [t for t in arrivals if sent < t < answered]
    assert len(between) >= 5, f"{len(between)} tokens while the prompt of 800 words came in"


def test_memory_pressure_changes_no_answer(start):
    jobs = [(prompt(120, seed=300 + i), 96) for i in range(12)]

    def run(*flags):
        server = start("--context", 512, *flags)
        model = server.model_id()
        with server.client() as client:
            answers = in_parallel([lambda t=t, c=c: greedy(client, model, t, c)
                                   for t, c in jobs])
        server.wait_idle()
        return answers, server

    plenty, _ = run("--kv-memory", kv_memory(12 * 512))
    # Room for about three of the twelve at their full length.
    tight, server = run("--kv-memory", kv_memory(800))
    for expected, got in zip(plenty, tight):
        assert got.finish_reason == "length"
        assert_same(expected, got)
    assert server.metrics()["sluice_windows_total"] > 0


def test_more_context_than_memory_is_refused_at_start_with_the_numbers():
    result = run_sluice("serve", model_file(), "--port", 0, "--context", 4096, "--kv-memory",
                        kv_memory(600))
    assert result.returncode == 2
    assert "4096" in result.stderr and "enough for 624 tokens" in result.stderr


def test_without_a_context_given_it_is_what_the_memory_holds(start):
    server = start("--kv-memory", kv_memory(600))
    limit = json.loads(server.get("/v1/models")[1])["data"][0]["max_model_len"]
    assert 590 <= limit <= 624
    status, answer = server.post("/v1/completions", {
        "model": server.model_id(), "prompt": prompt(700, 1), "max_tokens": 10})
    assert status == 400, answer
    assert str(limit) in answer["error"]["message"]
    # One that just fits is served to its end.
    status, answer = server.post("/v1/completions", {
        "model": server.model_id(), "prompt": [40] * (limit - 8), "max_tokens": 8,
        "ignore_eos": True})
    assert status == 200, answer
    assert answer["usage"]["total_tokens"] == limit
    server.wait_idle()


def test_a_full_queue_answers_429_with_retry_after(start):
    server = start("--context", 1024, "--max-running", 1, "--queue-limit", 2)
    model = server.model_id()
    body = json.dumps({"model": model, "prompt": prompt(20, 1), "max_tokens": 150,
                       "ignore_eos": True, "temperature": 0}).encode()

    def one():
        return server.request("POST", "/v1/completions", body,
                              {"Content-Type": "application/json"})

    answers = in_parallel([one] * 12)
    statuses = sorted(status for status, _, _ in answers)
    assert set(statuses) == {200, 429}, statuses
    assert statuses.count(200) >= 3
    for status, text, headers in answers:
        if status == 429:
            assert int(headers["Retry-After"]) >= 1
            assert json.loads(text)["error"]["message"]
    server.wait_idle(60)
    assert one()[0] == 200, "afterwards there is room again"


def test_the_client_sees_rate_limit_error(start):
    server = start("--context", 1024, "--max-running", 1, "--queue-limit", 1)
    model = server.model_id()
    with server.client() as client:
        def one():
            try:
                greedy(client, model, prompt(20, 1), 100)
                return "done"
            except openai.RateLimitError as error:
                assert error.response.headers["retry-after"]
                return "busy"

        assert set(in_parallel([one] * 8)) == {"done", "busy"}


@pytest.mark.parametrize("stream", [True, False])
def test_a_client_that_leaves_frees_its_memory(server, stream):
    import socket

    body = json.dumps({"model": server.model_id(), "prompt": prompt(50, 9), "max_tokens": 1500,
                       "ignore_eos": True, "stream": stream}).encode()
    before = server.wait_idle()
    connections = []
    for _ in range(4):
        connection = socket.create_connection(("127.0.0.1", server.port))
        connection.sendall(b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application"
                           b"/json\r\nContent-Length: %d\r\n\r\n" % len(body) + body)
        connections.append(connection)
    deadline = time.monotonic() + 30
    while server.metrics()["vllm:num_requests_running"] < 4:
        assert time.monotonic() < deadline, "the four never ran"
        time.sleep(0.05)
    if stream:
        assert connections[0].recv(1000)
    for connection in connections:
        connection.close()
    left = time.monotonic()
    after = server.wait_idle(limit_s=5)
    assert time.monotonic() - left < 5
    made = after["vllm:generation_tokens_total"] - before["vllm:generation_tokens_total"]
    assert made < 4 * 1500, "they were cancelled, not finished"

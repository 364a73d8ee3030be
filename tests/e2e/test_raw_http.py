"""The bytes on the wire, as curl and other clients see them."""

import json
import shutil
import socket
import subprocess
import time

import pytest


def http(path: str, body: bytes, *extra: bytes) -> bytes:
    head = [b"POST %s HTTP/1.1" % path.encode(), b"Host: localhost",
            b"Content-Type: application/json", b"Content-Length: %d" % len(body), *extra]
    return b"\r\n".join(head) + b"\r\n\r\n" + body


def unchunk(data: bytes) -> bytes:
    out = b""
    while data:
        size, _, data = data.partition(b"\r\n")
        length = int(size.split(b";")[0], 16)
        if length == 0:
            break
        out, data = out + data[:length], data[length + 2:]
    return out


def read_answer(file) -> tuple[int, dict, bytes]:
    """One answer with a Content-Length from a socket's file."""
    status = int(file.readline().split()[1])
    headers = {}
    while line := file.readline().strip():
        name, _, value = line.partition(b":")
        headers[name.decode().lower()] = value.strip().decode()
    return status, headers, file.read(int(headers["content-length"]))


def completion(model: str, **kwargs) -> bytes:
    return json.dumps({"model": model, "prompt": "Once upon", "max_tokens": 6, "temperature": 0,
                       "ignore_eos": True, **kwargs}).encode()


def test_sse_bytes(server, model):
    body = completion(model, stream=True)
    answer = server.raw(http("/v1/completions", body, b"Connection: close"))
    head, _, rest = answer.partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 200 ")
    headers = dict(line.lower().split(b": ", 1) for line in head.split(b"\r\n")[1:])
    assert headers[b"content-type"].startswith(b"text/event-stream")
    assert b"no-cache" in headers[b"cache-control"]
    text = unchunk(rest) if headers.get(b"transfer-encoding") == b"chunked" else rest
    events = text.split(b"\n\n")
    assert events.pop() == b""
    assert events.pop() == b"data: [DONE]"
    assert len(events) >= 2
    for event in events:
        assert event.startswith(b"data: {") and b"\n" not in event
        chunk = json.loads(event[6:])
        assert chunk["object"] == "text_completion"
        assert "error" not in chunk


def test_first_token_comes_before_the_last_is_made(server, model):
    body = completion(model, stream=True, max_tokens=200)
    with socket.create_connection(("127.0.0.1", server.port), timeout=60) as connection:
        connection.sendall(http("/v1/completions", body, b"Connection: close"))
        begun = time.monotonic()
        seen, first = b"", None
        while piece := connection.recv(4096):
            seen += piece
            if first is None and b"data: {" in seen:
                first = time.monotonic() - begun
    assert seen.count(b"data: {") > 50, "token by token, not in one piece"
    assert first < (time.monotonic() - begun) / 3


def test_one_connection_serves_request_after_request(server, model):
    with socket.create_connection(("127.0.0.1", server.port), timeout=60) as connection:
        file = connection.makefile("rb")
        texts = set()
        for _ in range(20):
            connection.sendall(http("/v1/completions", completion(model)))
            status, headers, body = read_answer(file)
            assert status == 200
            assert headers["content-type"].startswith("application/json")
            texts.add(json.loads(body)["choices"][0]["text"])
    assert len(texts) == 1


def test_pipelined_requests_are_answered_in_order(server):
    with socket.create_connection(("127.0.0.1", server.port), timeout=60) as connection:
        connection.sendall(b"".join(
            http("/tokenize", json.dumps({"content": "x " * n, "prompt": "x " * n}).encode())
            for n in (1, 5, 9)))
        file = connection.makefile("rb")
        counts = [len(json.loads(read_answer(file)[2])["tokens"]) for _ in range(3)]
    assert counts == sorted(counts) and len(set(counts)) == 3


def test_chunked_request_body(server, model):
    body = completion(model)
    chunks = b"".join(b"%x\r\n%s\r\n" % (len(p), p) for p in (body[:7], body[7:])) + b"0\r\n\r\n"
    answer = server.raw(b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nConnection: close\r\n"
                        b"Content-Type: application/json\r\nTransfer-Encoding: chunked\r\n\r\n"
                        + chunks)
    assert answer.startswith(b"HTTP/1.1 200 ")


def test_a_slow_sender_is_served_and_blocks_nobody(server, model):
    data = http("/v1/completions", completion(model), b"Connection: close")
    with socket.create_connection(("127.0.0.1", server.port), timeout=60) as slow:
        for at in range(0, len(data), 40):
            slow.sendall(data[at:at + 40])
            if at == 80:
                assert server.get("/health")[0] == 200
            time.sleep(0.05)
        assert slow.recv(100).startswith(b"HTTP/1.1 200 ")


def test_many_idle_connections_do_not_hinder(server, model):
    idle = [socket.create_connection(("127.0.0.1", server.port)) for _ in range(500)]
    try:
        status, answer = server.post("/v1/completions", json.loads(completion(model)))
        assert status == 200 and answer["choices"][0]["text"]
    finally:
        for connection in idle:
            connection.close()


def test_head_and_preflight(server):
    answer = server.raw(b"HEAD /health HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
    head, _, body = answer.partition(b"\r\n\r\n")
    assert head.split()[1] == b"200" and body == b""
    status, _, headers = server.request("OPTIONS", "/v1/chat/completions", headers={
        "Origin": "http://localhost:3000", "Access-Control-Request-Method": "POST"})
    assert status in (200, 204)
    assert headers["Access-Control-Allow-Origin"] in ("*", "http://localhost:3000")


def test_request_id_comes_back(server):
    _, _, headers = server.request("GET", "/v1/models", headers={"x-request-id": "abc-123"})
    assert headers["x-request-id"] == "abc-123"


@pytest.mark.skipif(shutil.which("curl") is None, reason="no curl here")
def test_curl(server, model):
    out = subprocess.run(
        ["curl", "-sN", f"{server.url}/v1/chat/completions", "-H", "Content-Type: application/json",
         "-d", json.dumps({"model": model, "stream": True, "max_tokens": 5,
                           "messages": [{"role": "user", "content": "hi"}]})],
        capture_output=True, text=True, timeout=60, check=True).stdout
    assert out.startswith("data: {") and out.endswith("data: [DONE]\n\n")

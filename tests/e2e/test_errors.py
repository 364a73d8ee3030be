"""Bad input: a clear error with the limit in it; the server goes on and loses nothing."""

import json

import openai
import pytest

CHAT = "/v1/chat/completions"
TEXT = "/v1/completions"
HELLO = [{"role": "user", "content": "hi"}]


@pytest.fixture(autouse=True)
def unharmed(server):
    """Whatever a test sends, afterwards the server answers and no memory is lost."""
    yield
    status, answer = server.post(TEXT, {"model": server.model_id(), "prompt": "Hello",
                                        "max_tokens": 2})
    assert status == 200, answer
    server.wait_idle()


def assert_error(status: int, body: bytes, expected: int, *words: str):
    assert status == expected, body[:500]
    error = json.loads(body)["error"]
    assert set(error) >= {"message", "type", "param", "code"}
    assert isinstance(error["message"], str) and len(error["message"]) > 8
    for word in words:
        assert word.lower() in error["message"].lower(), error["message"]


def post(server, path, body, **headers):
    data = body if isinstance(body, bytes) else json.dumps(body).encode()
    status, text, _ = server.request("POST", path, data,
                                     {"Content-Type": "application/json", **headers})
    return status, text


@pytest.mark.parametrize("change,word", [
    ({"temperature": "hot"}, "temperature"),
    ({"temperature": -1}, "temperature"),
    ({"temperature": 1e9}, "temperature"),
    ({"top_p": 1.5}, "top_p"),
    ({"top_p": -0.1}, "top_p"),
    ({"n": 0}, "n"),
    ({"n": 100000}, "n"),
    ({"max_tokens": -5}, "max_tokens"),
    ({"max_tokens": 1.5}, "max_tokens"),
    ({"max_tokens": "many"}, "max_tokens"),
    ({"presence_penalty": 99}, "presence_penalty"),
    ({"frequency_penalty": -99}, "frequency_penalty"),
    ({"stop": 7}, "stop"),
    ({"stop": ["x"] * 1000}, "stop"),
    ({"stop": ["x" * 100000]}, "stop"),
    ({"seed": "seven"}, "seed"),
    ({"stream": "yes"}, "stream"),
    ({"logit_bias": {"0": 1000}}, "logit_bias"),
    ({"logit_bias": {"word": 1}}, "logit_bias"),
    ({"logit_bias": {"99999999": 1}}, "logit_bias"),
    ({"logit_bias": [1]}, "logit_bias"),
])
@pytest.mark.parametrize("path", [CHAT, TEXT])
def test_parameters_out_of_range(server, model, path, change, word):
    body = {"model": model, "max_tokens": 4, **change}
    body.update({"messages": HELLO} if path == CHAT else {"prompt": "hi"})
    assert_error(*post(server, path, body), 400, word)


@pytest.mark.parametrize("change,word", [
    ({"messages": []}, "messages"),
    ({"messages": None}, "messages"),
    ({"messages": "hi"}, "messages"),
    ({"messages": [7]}, "messages"),
    ({"messages": [{"content": "hi"}]}, "role"),
    ({"messages": [{"role": "user"}]}, "content"),
    ({"messages": [{"role": "user", "content": 7}]}, "content"),
    ({"messages": [{"role": "user",
                    "content": [{"type": "image_url", "image_url": {"url": "x"}}]}]},
     "image_url"),
    ({"top_logprobs": 1000, "logprobs": True}, "top_logprobs"),
    ({"top_logprobs": -1, "logprobs": True}, "top_logprobs"),
    ({"response_format": {"type": "poem"}}, "response_format"),
    ({"response_format": {"type": "json_schema"}}, "schema"),
    ({"response_format": {"type": "json_schema",
                          "json_schema": {"name": "x", "schema": {"type": "nonsense"}}}}, "schema"),
    ({"response_format": {"type": "json_schema",
                          "json_schema": {"name": "x", "schema": {"$ref": "#/nowhere"}}}}, "ref"),
    ({"grammar": "root ::= ((("}, "grammar"),
    ({"grammar": "other ::= \"x\""}, "grammar"),
    ({"tools": "hammer"}, "tools"),
    ({"tools": [{"type": "function"}]}, "function"),
    ({"tool_choice": {"type": "function", "function": {"name": "absent"}},
      "tools": [{"type": "function", "function": {"name": "present", "parameters": {}}}]},
     "absent"),
    ({"tool_choice": "required"}, "tool"),
    ({"stream_options": {"include_usage": True}}, "stream"),
])
def test_chat_that_makes_no_sense(server, model, change, word):
    assert_error(*post(server, CHAT, {"model": model, "messages": HELLO, "max_tokens": 4,
                                      **change}), 400, word)


@pytest.mark.parametrize("prompt", ["", [], [[]], {"a": 1}, 7, [1.5], [-1], [99999999], ["a", 1]])
def test_prompts_that_make_no_sense(server, model, prompt):
    assert_error(*post(server, TEXT, {"model": model, "prompt": prompt, "max_tokens": 4}), 400,
                 "prompt")


def test_prompt_is_required(server, model):
    assert_error(*post(server, TEXT, {"model": model, "max_tokens": 4}), 400, "prompt")


@pytest.mark.parametrize("body", [
    b"", b"{", b"null", b"[]", b'"text"', b"{'single': 1}", b'{"model": }', b"\x00\x01\x02",
    b'{"messages": [' + b"[" * 100000, b'{"a": 1}{"b": 2}', b"NaN",
])
@pytest.mark.parametrize("path", [CHAT, TEXT, "/tokenize", "/detokenize", "/apply-template"])
def test_bodies_that_are_not_a_json_object(server, path, body):
    assert_error(*post(server, path, body), 400)


@pytest.mark.parametrize("bad", [b"\xff\xfe", b"\xc3", b"\xed\xa0\x80", b"\xf8\x88\x80\x80\x80"])
def test_bad_utf8(server, model, bad):
    body = b'{"model": "%s", "prompt": "a%sb", "max_tokens": 2}' % (model.encode(), bad)
    assert_error(*post(server, TEXT, body), 400)


def test_lone_surrogate_escape(server, model):
    body = b'{"model": "%s", "prompt": "a\\ud800b", "max_tokens": 2}' % model.encode()
    assert_error(*post(server, TEXT, body), 400)


def test_context_exceeded_names_both_numbers(server, client, model):
    with pytest.raises(openai.BadRequestError) as caught:
        client.chat.completions.create(model=model, max_tokens=4, messages=[
            {"role": "user", "content": "word " * 5000}])
    assert "2048" in str(caught.value)
    assert caught.value.code == "context_length_exceeded"


def test_max_tokens_beyond_the_context_is_bounded_or_refused(server, model):
    status, body = post(server, TEXT, {"model": model, "prompt": "Good", "max_tokens": 100000,
                                       "stop": ["e"]})
    if status != 200:
        assert_error(status, body, 400, "2048")


def test_unknown_model(server, client):
    with pytest.raises(openai.NotFoundError) as caught:
        client.chat.completions.create(model="nope", messages=HELLO, max_tokens=2)
    assert "nope" in str(caught.value)
    with pytest.raises(openai.NotFoundError):
        client.models.retrieve("nope")


@pytest.mark.parametrize("method,path,expected", [
    ("GET", "/v1/nothing", 404), ("GET", "/../../etc/passwd", 404), ("POST", "/v1/models", 405),
    ("GET", CHAT, 405), ("DELETE", TEXT, 405), ("PUT", "/metrics", 405),
])
def test_routes_and_methods(server, method, path, expected):
    status, body, headers = server.request(method, path, b"{}" if method != "GET" else None)
    assert_error(status, body, expected)
    if expected == 405:
        assert headers["Allow"]


def test_a_huge_body_is_413_before_it_is_read(server):
    answer = server.raw(b"POST /v1/completions HTTP/1.1\r\nHost: x\r\n"
                        b"Content-Type: application/json"
                        b"\r\nContent-Length: 10000000000\r\n\r\n{")
    head, _, body = answer.partition(b"\r\n\r\n")
    assert head.split()[1] == b"413"
    assert_error(413, body, 413)


def test_a_huge_chunked_body_is_413(server):
    piece = b"100000\r\n" + b" " * (1 << 20) + b"\r\n"
    head = (b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n")
    try:
        answer = server.raw(head + piece * 80)
    except (BrokenPipeError, ConnectionResetError):
        return  # refused while still sending
    assert answer.split()[1] == b"413"


def test_long_headers_are_refused(server):
    answer = server.raw(b"GET /health HTTP/1.1\r\nHost: x\r\nX: " + b"a" * 1_000_000 + b"\r\n\r\n")
    assert answer.split()[1] in (b"431", b"400")


@pytest.mark.parametrize("data", [b"HELLO\r\n\r\n", b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
                                  b"GET / HTTP/9.9\r\n\r\n", b"GET\r\n\r\n"])
def test_bytes_that_are_not_http(server, data):
    answer = server.raw(data + b"\r\n\r\n")
    assert answer == b"" or answer.split()[1][:1] in (b"4", b"5")


def test_a_body_shorter_than_promised_harms_nobody(server):
    import socket

    with socket.create_connection(("127.0.0.1", server.port)) as connection:
        connection.sendall(b"POST /v1/completions HTTP/1.1\r\nHost: x\r\n"
                           b"Content-Length: 1000\r\n\r\n{\"prompt\"")
        connection.shutdown(socket.SHUT_WR)
        connection.settimeout(30)
        connection.recv(1000)


def test_unauthorized_without_the_key(start):
    server = start("--context", 512, "--api-key", "open-sesame")
    for path in ("/health", "/ready"):
        assert server.get(path)[0] == 200
    assert_error(*server.get("/v1/models"), 401)
    for header in ("Bearer wrong", "Bearer ", "open-sesame", "Basic open-sesame"):
        status, body = server.get("/v1/models", headers={"Authorization": header})
        assert_error(status, body, 401)
        assert b"open-sesame" not in body
    assert server.get("/v1/models", headers={"Authorization": "Bearer open-sesame"})[0] == 200
    with server.client(api_key="open-sesame") as good:
        model = good.models.list().data[0].id
        assert good.completions.create(model=model, prompt="Hi", max_tokens=2).choices[0].text
    with server.client(api_key="guess") as bad, pytest.raises(openai.AuthenticationError):
        bad.completions.create(model=model, prompt="Hi", max_tokens=2)

"""Anthropic's Messages on the real model."""

import json

HELLO = [{"role": "user", "content": "Say hello."}]
ROLL = {"name": "roll_dice", "description": "Rolls dice.",
        "input_schema": {"type": "object", "required": ["count"], "properties": {
            "count": {"type": "integer", "minimum": 1, "maximum": 9}}}}


def test_a_message(server):
    status, answer = server.post("/v1/messages", {
        "model": server.model_id(), "max_tokens": 8, "system": "Be brief.", "messages": HELLO})
    assert status == 200, answer
    assert answer["type"] == "message" and answer["role"] == "assistant"
    assert answer["content"][0]["type"] == "text" and answer["content"][0]["text"]
    assert answer["stop_reason"] in ("end_turn", "max_tokens")
    assert answer["usage"]["input_tokens"] + answer["usage"]["cache_read_input_tokens"] > 10


def test_a_stream_says_the_same(server):
    body = {"model": server.model_id(), "max_tokens": 12, "temperature": 0, "messages": HELLO}
    _, whole = server.post("/v1/messages", body)
    _, raw, headers = server.request("POST", "/v1/messages",
                                     json.dumps({**body, "stream": True}).encode(),
                                     {"Content-Type": "application/json"})
    assert headers["Content-Type"].startswith("text/event-stream")
    events = [json.loads(line[6:]) for line in raw.decode().splitlines()
              if line.startswith("data: ")]
    assert events[0]["type"] == "message_start" and events[-1]["type"] == "message_stop"
    text = "".join(e["delta"]["text"] for e in events if e["type"] == "content_block_delta")
    assert text == whole["content"][0]["text"]


def test_a_tool_is_used_and_its_result_read(server):
    question = {"role": "user", "content": "Roll two dice."}
    body = {"model": server.model_id(), "max_tokens": 96, "temperature": 0, "tools": [ROLL]}
    one_call = {"type": "any", "disable_parallel_tool_use": True}
    status, answer = server.post("/v1/messages", {**body, "messages": [question],
                                                  "tool_choice": one_call})
    assert status == 200, answer
    assert answer["stop_reason"] == "tool_use"
    use = next(block for block in answer["content"] if block["type"] == "tool_use")
    assert use["name"] == "roll_dice" and 1 <= use["input"]["count"] <= 9
    status, answer = server.post("/v1/messages", {**body, "max_tokens": 8, "messages": [
        question, {"role": "assistant", "content": answer["content"]},
        {"role": "user", "content": [{"type": "tool_result", "tool_use_id": use["id"],
                                      "content": "3 and 5"}]}]})
    assert status == 200, answer


def test_an_error_has_their_form(server):
    status, answer = server.post("/v1/messages", {"model": server.model_id(), "messages": HELLO})
    assert status == 400
    assert answer["type"] == "error" and answer["error"]["type"] == "invalid_request_error"
    assert "max_tokens" in answer["error"]["message"]

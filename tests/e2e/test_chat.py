"""Chat completions through the OpenAI client."""

import json

import jsonschema
import openai
import pytest

from generation import Generation, assert_same, in_parallel

QUESTION = [{"role": "user", "content": "Name three colours."}]
WEATHER = [{"role": "user", "content": "What is the weather in Paris?"}]
WEATHER_TOOL = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "Gets the weather of a city.",
        "parameters": {
            "type": "object",
            "properties": {"city": {"type": "string", "maxLength": 20}},
            "required": ["city"],
            "additionalProperties": False,
        },
    },
}
TIME_TOOL = {
    "type": "function",
    "function": {
        "name": "get_time",
        "parameters": {
            "type": "object",
            "properties": {"hours": {"type": "integer", "minimum": 0, "maximum": 23}},
            "required": ["hours"],
        },
    },
}
PERSON = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "minLength": 1, "maxLength": 12},
        "age": {"type": "integer", "minimum": 0, "maximum": 150},
        "kind": {"enum": ["cat", "dog"]},
    },
    "required": ["name", "age", "kind"],
    "additionalProperties": False,
}


@pytest.fixture(scope="module", autouse=True)
def asked_before(client, model):
    """The prefix cache has the questions, whichever test comes first: a prompt that is computed
    whole may round a near-tie the other way than one of which a token is computed."""
    for question in (QUESTION, WEATHER):
        ask(client, model, messages=question)


def ask(client, model, **kwargs):
    arguments = {"messages": QUESTION, "max_tokens": 24, "temperature": 0, **kwargs}
    return client.chat.completions.create(model=model, **arguments)


def test_answer_has_the_shape_that_clients_read(client, model):
    answer = ask(client, model)
    assert answer.object == "chat.completion"
    assert answer.model == model
    assert answer.id
    choice = answer.choices[0]
    assert choice.message.role == "assistant"
    assert choice.message.content.strip()
    assert choice.finish_reason in ("stop", "length")
    usage = answer.usage
    assert usage.prompt_tokens > 5
    assert 1 <= usage.completion_tokens <= 24
    assert usage.total_tokens == usage.prompt_tokens + usage.completion_tokens


def test_stream_says_the_same_as_the_whole_answer(client, model):
    whole = ask(client, model)
    chunks = list(ask(client, model, stream=True, stream_options={"include_usage": True}))
    assert {c.id for c in chunks} == {chunks[0].id}
    assert {c.object for c in chunks} == {"chat.completion.chunk"}
    assert chunks[0].choices[0].delta.role == "assistant"
    text = "".join(c.choices[0].delta.content or "" for c in chunks if c.choices)
    assert text == whole.choices[0].message.content
    reasons = [c.choices[0].finish_reason for c in chunks if c.choices]
    assert reasons[-1] == whole.choices[0].finish_reason
    assert not any(reasons[:-1])
    assert chunks[-1].choices == []
    assert chunks[-1].usage.completion_tokens == whole.usage.completion_tokens
    assert not any(c.usage for c in chunks[:-1])


def test_stream_without_include_usage_has_no_usage(client, model):
    assert not any(c.usage for c in ask(client, model, stream=True))


@pytest.mark.parametrize("name", ["max_tokens", "max_completion_tokens"])
def test_length_limit_is_exact(client, model, name):
    arguments = {"messages": QUESTION, "temperature": 0, "extra_body": {"ignore_eos": True}}
    answer = client.chat.completions.create(model=model, **arguments, **{name: 17})
    assert answer.usage.completion_tokens == 17
    assert answer.choices[0].finish_reason == "length"


def test_min_tokens_holds_back_the_end(client, model):
    short = ask(client, model, messages=[{"role": "user", "content": "Say only: ok"}],
                max_tokens=200)
    wanted = short.usage.completion_tokens + 20
    longer = ask(client, model, messages=[{"role": "user", "content": "Say only: ok"}],
                 max_tokens=250, extra_body={"min_tokens": wanted})
    assert longer.usage.completion_tokens >= wanted


def test_system_and_history_change_the_answer(client, model):
    history = [{"role": "system", "content": "You are a pirate."},
               {"role": "user", "content": "My name is Ada."},
               {"role": "assistant", "content": "Ahoy Ada!"},
               {"role": "user", "content": [{"type": "text", "text": "Greet me."}]}]
    answer = ask(client, model, messages=history)
    assert answer.usage.prompt_tokens > ask(client, model).usage.prompt_tokens
    assert answer.choices[0].message.content != ask(client, model).choices[0].message.content


def test_several_choices(client, model):
    answer = ask(client, model, n=3, temperature=1.0, seed=5)
    assert [c.index for c in answer.choices] == [0, 1, 2]
    assert len({c.message.content for c in answer.choices}) >= 2
    assert answer.usage.completion_tokens > 3


def test_several_choices_in_a_stream(client, model):
    texts = {}
    ended = set()
    for chunk in ask(client, model, n=3, temperature=1.0, seed=5, stream=True):
        choice = chunk.choices[0]
        texts[choice.index] = texts.get(choice.index, "") + (choice.delta.content or "")
        if choice.finish_reason:
            assert choice.index not in ended
            ended.add(choice.index)
    whole = ask(client, model, n=3, temperature=1.0, seed=5)
    assert ended == {0, 1, 2}
    assert [texts[i] for i in range(3)] == [c.message.content for c in whole.choices]


def test_several_greedy_choices_are_equal(client, model):
    assert len({c.message.content for c in ask(client, model, n=2).choices}) == 1


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("begin,length", [(6, 1), (9, 3), (14, 7)])
def test_stop_string_ends_the_text_before_it(client, model, begin, length, stream):
    whole = ask(client, model, max_tokens=32).choices[0].message.content
    stop = whole[begin:begin + length]
    expected = whole[:whole.index(stop)]
    answer = ask(client, model, max_tokens=32, stop=[stop], stream=stream)
    if stream:
        chunks = [c for c in answer if c.choices]
        text = "".join(c.choices[0].delta.content or "" for c in chunks)
        reason = chunks[-1].choices[0].finish_reason
    else:
        text, reason = answer.choices[0].message.content, answer.choices[0].finish_reason
    assert (text or "") == expected
    assert reason == "stop"


def test_the_first_of_several_stop_strings_wins(client, model):
    whole = ask(client, model, max_tokens=32).choices[0].message.content
    early, late = whole[10:13], whole[20:24]
    answer = ask(client, model, max_tokens=32, stop=["never found", late, early])
    assert answer.choices[0].message.content == whole[:min(whole.index(early), whole.index(late))]


def test_stop_that_never_comes_loses_no_text(client, model):
    whole = ask(client, model)
    # Its beginning does come, so it is held back and must be given out at the end.
    stop = whole.choices[0].message.content[-4:] + "\x01"
    answer = ask(client, model, stop=stop)
    assert answer.choices[0].message.content == whole.choices[0].message.content
    assert answer.choices[0].finish_reason == whole.choices[0].finish_reason


def test_logprobs_are_a_distribution(client, model):
    answer = ask(client, model, logprobs=True, top_logprobs=5)
    entries = answer.choices[0].logprobs.content
    assert len(entries) in (answer.usage.completion_tokens, answer.usage.completion_tokens - 1)
    for entry in entries:
        top = [t.logprob for t in entry.top_logprobs]
        assert len(top) == 5
        assert top == sorted(top, reverse=True)
        assert entry.logprob == pytest.approx(top[0], abs=1e-4), "greedy takes the best"
        assert entry.token == entry.top_logprobs[0].token
        assert all(value <= 0 for value in top)
        assert sum(2.718281828459045 ** value for value in top) <= 1.001
    data = b"".join(bytes(e.bytes) for e in entries)
    assert data.decode().startswith(answer.choices[0].message.content)


def test_logprobs_without_alternatives(client, model):
    entries = ask(client, model, logprobs=True).choices[0].logprobs.content
    assert entries and all(e.top_logprobs == [] and e.logprob <= 0 for e in entries)


def test_stream_has_the_same_logprobs(client, model):
    whole = ask(client, model, logprobs=True, top_logprobs=2).choices[0].logprobs.content
    streamed = [e for c in ask(client, model, logprobs=True, top_logprobs=2, stream=True)
                if c.choices and c.choices[0].logprobs for e in c.choices[0].logprobs.content]
    assert [e.token for e in streamed] == [e.token for e in whole]
    assert [e.logprob for e in streamed] == pytest.approx([e.logprob for e in whole], abs=0.02)


def test_seed_gives_the_same_text_alone_and_in_a_busy_batch(client, model):
    def sample(seed):
        return ask(client, model, temperature=1.0, seed=seed).choices[0].message.content

    alone = [sample(seed) for seed in range(4)]
    assert len(set(alone)) > 1, "different seeds, different texts"
    assert [sample(seed) for seed in range(4)] == alone
    busy = in_parallel([lambda s=s: sample(s) for s in range(16)])
    assert busy[:4] == alone


def test_logit_bias_bans_and_forces(server, client, model):
    first = ask(client, model, logprobs=True).choices[0].logprobs.content[0].token
    status, answer = server.post("/tokenize", {"content": first, "prompt": first,
                                               "add_special": False, "add_special_tokens": False})
    assert status == 200 and len(answer["tokens"]) == 1
    token = answer["tokens"][0]
    banned = ask(client, model, logit_bias={str(token): -100}, logprobs=True)
    assert first not in [e.token for e in banned.choices[0].logprobs.content]
    forced = ask(client, model, max_tokens=4, logit_bias={str(token): 100}, logprobs=True)
    assert [e.token for e in forced.choices[0].logprobs.content] == [first] * 4


def test_json_object(client, model):
    answer = ask(client, model, max_tokens=150, response_format={"type": "json_object"},
                 messages=[{"role": "user", "content": "Describe a cat as JSON with its name."}],
                 frequency_penalty=1.0)
    if answer.choices[0].finish_reason == "stop":
        assert isinstance(json.loads(answer.choices[0].message.content), dict)
    else:
        assert answer.choices[0].message.content.lstrip().startswith("{")


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("temperature", [0, 1.5])
def test_json_schema_is_kept(client, model, stream, temperature):
    answer = ask(client, model, max_tokens=150, temperature=temperature, seed=3, stream=stream,
                 messages=[{"role": "user", "content": "Invent a pet."}],
                 response_format={"type": "json_schema",
                                  "json_schema": {"name": "pet", "schema": PERSON}})
    if stream:
        text = "".join(c.choices[0].delta.content or "" for c in answer if c.choices)
    else:
        text = answer.choices[0].message.content
        assert answer.choices[0].finish_reason == "stop"
    jsonschema.validate(json.loads(text), PERSON)


def test_many_schemas_at_once(client, model):
    def one(i):
        schema = {"type": "object", "properties": {f"field_{i}": {"enum": [f"value_{i}"]}},
                  "required": [f"field_{i}"], "additionalProperties": False}
        answer = ask(client, model, max_tokens=80, response_format={
            "type": "json_schema", "json_schema": {"name": "x", "schema": schema}})
        return json.loads(answer.choices[0].message.content)

    answers = in_parallel([lambda i=i: one(i) for i in range(6)])
    assert answers == [{f"field_{i}": f"value_{i}"} for i in range(6)]


def tool_calls_of(stream) -> list[dict]:
    calls = {}
    for chunk in stream:
        for delta in (chunk.choices[0].delta.tool_calls or []) if chunk.choices else []:
            call = calls.setdefault(delta.index, {"id": "", "name": "", "arguments": ""})
            call["id"] += delta.id or ""
            if delta.function:
                call["name"] += delta.function.name or ""
                call["arguments"] += delta.function.arguments or ""
    return [calls[i] for i in sorted(calls)]


@pytest.mark.parametrize("choice", ["required",
                                    {"type": "function", "function": {"name": "get_weather"}}])
def test_a_forced_tool_call_is_valid(client, model, choice):
    answer = ask(client, model, messages=WEATHER, tools=[WEATHER_TOOL], tool_choice=choice,
                 max_tokens=120)
    assert answer.choices[0].finish_reason == "tool_calls"
    call = answer.choices[0].message.tool_calls[0]
    assert call.type == "function" and call.id
    assert call.function.name == "get_weather"
    jsonschema.validate(json.loads(call.function.arguments),
                        WEATHER_TOOL["function"]["parameters"])


def test_the_named_tool_is_called_not_another(client, model):
    answer = ask(client, model, messages=WEATHER, tools=[WEATHER_TOOL, TIME_TOOL], max_tokens=120,
                 tool_choice={"type": "function", "function": {"name": "get_time"}})
    call = answer.choices[0].message.tool_calls[0]
    assert call.function.name == "get_time"
    jsonschema.validate(json.loads(call.function.arguments), TIME_TOOL["function"]["parameters"])


def test_a_tool_call_in_a_stream(client, model):
    arguments = {"messages": WEATHER, "tools": [WEATHER_TOOL], "tool_choice": "required",
                 "max_tokens": 120}
    whole = ask(client, model, **arguments).choices[0].message.tool_calls[0]
    chunks = list(ask(client, model, **arguments, stream=True))
    calls = tool_calls_of(chunks)
    assert len(calls) == 1
    assert calls[0]["name"] == whole.function.name and calls[0]["id"]
    assert json.loads(calls[0]["arguments"]) == json.loads(whole.function.arguments)
    assert [c.choices[0].finish_reason for c in chunks if c.choices][-1] == "tool_calls"


@pytest.mark.parametrize("choice", ["auto", "none"])
def test_tools_that_need_not_be_called(client, model, choice):
    answer = ask(client, model, tools=[WEATHER_TOOL], tool_choice=choice, max_tokens=48)
    message = answer.choices[0].message
    if message.tool_calls:
        assert choice == "auto"
        assert {c.function.name for c in message.tool_calls} == {"get_weather"}
        for call in message.tool_calls:
            json.loads(call.function.arguments)
    else:
        assert message.content
        assert answer.choices[0].finish_reason in ("stop", "length")


def test_a_tool_result_can_be_answered(client, model):
    call = {"id": "call_1", "type": "function",
            "function": {"name": "get_weather", "arguments": '{"city": "Paris"}'}}
    history = [*WEATHER, {"role": "assistant", "content": None, "tool_calls": [call]},
               {"role": "tool", "tool_call_id": "call_1", "content": "18 degrees, rain"}]
    assert ask(client, model, messages=history, tools=[WEATHER_TOOL]).choices[0].message


def test_text_outside_ascii_arrives_whole(client, model):
    text = "Grüße, 世界! 🦙🌊 naïve"
    grammar = f'root ::= "{text}"'
    for stream in (False, True):
        answer = ask(client, model, max_tokens=80, stream=stream,
                     extra_body={"grammar": grammar})
        if stream:
            pieces = [c.choices[0].delta.content or "" for c in answer if c.choices]
            assert "\ufffd" not in "".join(pieces)
            assert "".join(pieces) == text
        else:
            assert answer.choices[0].message.content == text


def test_usage_counts_cached_tokens(server, client, model):
    messages = [{"role": "system", "content": "You know rivers. " * 30},
                {"role": "user", "content": "Which river is long?"}]
    cold = ask(client, model, messages=messages, logprobs=True, top_logprobs=5)
    warm = ask(client, model, messages=messages, logprobs=True, top_logprobs=5)
    assert warm.usage.prompt_tokens == cold.usage.prompt_tokens
    cached = warm.usage.prompt_tokens_details.cached_tokens
    assert cached >= warm.usage.prompt_tokens - 32
    assert cached < warm.usage.prompt_tokens, "at least one token is computed for its logits"
    length = min(len(a.choices[0].logprobs.content) for a in (cold, warm))
    assert_same(spoken(cold, length), spoken(warm, length))


def spoken(answer, length: int) -> Generation:
    """The first tokens of a chat's answer, in a form that can be compared."""
    content = answer.choices[0].logprobs.content[:length]
    return Generation(answer.choices[0].message.content, [t.token for t in content],
                      [{o.token: o.logprob for o in t.top_logprobs} for t in content], 0, "")


def test_responses_endpoint(client, model):
    try:
        answer = client.responses.create(model=model, input="Say hi", max_output_tokens=12)
    except openai.NotFoundError:
        pytest.skip("this build has no /v1/responses")
    assert answer.output_text
    assert answer.usage.output_tokens <= 12
    with client.responses.stream(model=model, input="Say hi", max_output_tokens=12) as stream:
        events = [event.type for event in stream]
    assert events[0] == "response.created"
    assert events[-1] in ("response.completed", "response.incomplete")

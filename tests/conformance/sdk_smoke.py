"""One small check for every part of the API that OpenAI's Python client offers.

    sdk_smoke.py BASE_URL MODEL [--strict]

Prints a line a check and the score. With --strict the exit code is 1 unless all
pass but those that need another kind of model (embeddings).
"""

import argparse
import json
import sys
import traceback

import openai
from pydantic import BaseModel

CHECKS = []
OTHER_MODELS = {"embeddings"}


def check(function):
    CHECKS.append(function)
    return function


class Api:
    """The client with the arguments that nearly every check uses."""

    def __init__(self, url: str, model: str):
        self.client = openai.OpenAI(base_url=url, api_key="none", max_retries=0, timeout=180)
        self.model = model

    def chat(self, **kwargs):
        defaults = {"messages": [{"role": "user", "content": "Greet me."}], "max_tokens": 16,
                    "temperature": 0}
        return self.client.chat.completions.create(model=self.model, **{**defaults, **kwargs})

    def complete(self, **kwargs):
        defaults = {"prompt": "It was a dark", "max_tokens": 8, "temperature": 0}
        return self.client.completions.create(model=self.model, **{**defaults, **kwargs})

    def refused(self, kind, **kwargs):
        try:
            self.chat(**kwargs)
        except kind as error:
            assert error.body and error.message
            return
        raise AssertionError("was accepted")


class City(BaseModel):
    name: str
    inhabitants: int


ROLL = {"type": "function", "function": {
    "name": "roll_dice", "description": "Rolls dice.",
    "parameters": {"type": "object", "required": ["count"],
                   "properties": {"count": {"type": "integer", "minimum": 1, "maximum": 9}}}}}
ROLL_PLEASE = {"messages": [{"role": "user", "content": "Roll two dice."}], "max_tokens": 96,
               "tools": [ROLL]}


def arguments_of(call) -> dict:
    assert call.function.name == "roll_dice"
    return json.loads(call.function.arguments)


@check
def models_list(api):
    assert api.model in [m.id for m in api.client.models.list()]


@check
def models_retrieve(api):
    assert api.client.models.retrieve(api.model).id == api.model


@check
def chat(api):
    assert api.chat().choices[0].message.content


@check
def chat_max_completion_tokens(api):
    answer = api.client.chat.completions.create(
        model=api.model, messages=[{"role": "user", "content": "Count."}], max_completion_tokens=4)
    assert answer.usage.completion_tokens <= 4


@check
def chat_stream(api):
    chunks = list(api.chat(stream=True))
    assert "".join(c.choices[0].delta.content or "" for c in chunks)
    assert chunks[-1].choices[0].finish_reason


@check
def chat_stream_usage(api):
    last = list(api.chat(stream=True, stream_options={"include_usage": True}))[-1]
    assert last.choices == [] and last.usage.completion_tokens > 0


@check
def chat_stream_helper(api):
    with api.client.chat.completions.stream(
            model=api.model, max_tokens=8, messages=[{"role": "user", "content": "Hi"}]) as stream:
        text = "".join(event.delta for event in stream if event.type == "content.delta")
    assert text


@check
def chat_several_choices(api):
    assert len(api.chat(n=3, temperature=1).choices) == 3


@check
def chat_stop(api):
    whole = api.chat().choices[0].message.content
    answer = api.chat(stop=whole[4:6]).choices[0]
    assert answer.finish_reason == "stop"
    assert answer.message.content == whole[:whole.index(whole[4:6])]


@check
def chat_seed(api):
    texts = {api.chat(seed=3, temperature=1).choices[0].message.content for _ in range(3)}
    assert len(texts) == 1


@check
def chat_logprobs(api):
    first = api.chat(logprobs=True, top_logprobs=4).choices[0].logprobs.content[0]
    assert len(first.top_logprobs) == 4 and first.logprob <= 0


@check
def chat_logit_bias(api):
    assert api.chat(logit_bias={"30": -100}).choices


@check
def chat_json_object(api):
    answer = api.chat(max_tokens=200, response_format={"type": "json_object"}).choices[0]
    assert isinstance(json.loads(answer.message.content), dict)


@check
def chat_parse_schema(api):
    answer = api.client.chat.completions.parse(
        model=api.model, max_tokens=100, temperature=0, response_format=City,
        messages=[{"role": "user", "content": "Oslo has 700000 inhabitants."}])
    assert answer.choices[0].message.parsed.name


@check
def chat_tool_required(api):
    answer = api.chat(**ROLL_PLEASE, tool_choice="required").choices[0]
    assert answer.finish_reason == "tool_calls"
    assert 1 <= arguments_of(answer.message.tool_calls[0])["count"] <= 9


@check
def chat_tool_named_stream(api):
    text = ""
    for chunk in api.chat(**ROLL_PLEASE, stream=True, tool_choice={
            "type": "function", "function": {"name": "roll_dice"}}):
        for call in chunk.choices[0].delta.tool_calls or [] if chunk.choices else []:
            text += call.function.arguments or ""
    assert "count" in json.loads(text)


@check
def chat_tool_result(api):
    call = {"id": "c1", "type": "function",
            "function": {"name": "roll_dice", "arguments": '{"count": 2}'}}
    answer = api.chat(tools=[ROLL], messages=[
        {"role": "user", "content": "Roll two dice."},
        {"role": "assistant", "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "c1", "content": "3 and 5"}])
    assert answer.choices[0].message


@check
def completions(api):
    assert api.complete().choices[0].text


@check
def completions_stream(api):
    assert "".join(c.choices[0].text for c in api.complete(stream=True) if c.choices)


@check
def completions_prompt_list(api):
    assert [c.index for c in api.complete(prompt=["a", "b", "c"]).choices] == [0, 1, 2]


@check
def completions_token_ids(api):
    assert api.complete(prompt=[40, 41, 42]).usage.prompt_tokens == 3


@check
def completions_echo_logprobs(api):
    choice = api.complete(echo=True, logprobs=2).choices[0]
    assert choice.text.startswith("It was a dark")
    assert "".join(choice.logprobs.tokens).startswith("It was a dark")
    assert choice.logprobs.token_logprobs[0] is None, "nothing precedes the first token"


@check
def responses(api):
    answer = api.client.responses.create(model=api.model, input="Greet me.", max_output_tokens=16)
    assert answer.output_text


@check
def responses_stream(api):
    with api.client.responses.stream(model=api.model, input="Greet me.",
                                     max_output_tokens=16) as stream:
        events = [event.type for event in stream]
    assert events[0] == "response.created"
    assert "response.output_text.delta" in events


@check
def embeddings(api):
    assert api.client.embeddings.create(model=api.model, input="a").data[0].embedding


@check
def error_temperature(api):
    api.refused(openai.BadRequestError, temperature="warm")


@check
def error_no_messages(api):
    api.refused(openai.BadRequestError, messages=[])


@check
def error_model(api):
    try:
        api.client.chat.completions.create(model="absent", max_tokens=1,
                                           messages=[{"role": "user", "content": "x"}])
    except openai.NotFoundError:
        return
    raise AssertionError("was accepted")


@check
def error_context(api):
    api.refused(openai.BadRequestError, messages=[{"role": "user", "content": "far " * 50000}])


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("url")
    parser.add_argument("model")
    parser.add_argument("--strict", action="store_true")
    options = parser.parse_args()
    api, failed = Api(options.url, options.model), set()
    for function in CHECKS:
        try:
            function(api)
            print("pass", function.__name__)
        except Exception as error:  # a check may fail in any way; the next one still runs
            failed.add(function.__name__)
            where = traceback.extract_tb(error.__traceback__)[-1]
            print("FAIL", function.__name__, "|", type(error).__name__,
                  " ".join(str(error).split())[:200] or f"line {where.lineno}: {where.line}")
    print(f"sdk smoke: {len(CHECKS) - len(failed)} of {len(CHECKS)}")
    return 1 if options.strict and failed - OTHER_MODELS else 0


if __name__ == "__main__":
    sys.exit(main())

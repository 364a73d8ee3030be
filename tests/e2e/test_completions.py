"""Plain completions, tokens and templates."""

import math
import re

import pytest

from generation import assert_same, greedy, prompt


def complete(client, model, text="Once upon a time", **kwargs):
    arguments = {"max_tokens": 16, "temperature": 0, **kwargs}
    return client.completions.create(model=model, prompt=text, **arguments)


def tokenize(server, text: str) -> list[int]:
    status, answer = server.post("/tokenize", {"content": text, "prompt": text})
    assert status == 200
    return answer["tokens"]


def test_completion(client, model):
    answer = complete(client, model)
    assert answer.object == "text_completion"
    assert answer.choices[0].text
    assert answer.choices[0].finish_reason in ("stop", "length")
    assert answer.usage.prompt_tokens >= 4


def test_stream_says_the_same(client, model):
    whole = complete(client, model)
    chunks = list(complete(client, model, stream=True, stream_options={"include_usage": True}))
    assert "".join(c.choices[0].text for c in chunks if c.choices) == whole.choices[0].text
    assert chunks[-1].usage == whole.usage or (
        chunks[-1].usage.completion_tokens == whole.usage.completion_tokens)


def test_many_prompts_in_one_request(client, model):
    texts = ["Once upon a time", "The capital of France is", "1 2 3 4"]
    together = complete(client, model, texts)
    assert [c.index for c in together.choices] == [0, 1, 2]
    for text, choice in zip(texts, together.choices):
        assert choice.text == complete(client, model, text).choices[0].text


def test_prompts_times_choices_are_numbered_prompt_first(client, model):
    answer = complete(client, model, ["Once", "Twice"], n=2)
    assert [c.index for c in answer.choices] == [0, 1, 2, 3]
    assert answer.choices[0].text == answer.choices[1].text
    assert answer.choices[2].text == answer.choices[3].text


def test_token_ids_are_a_prompt(server, client, model):
    tokens = tokenize(server, "The capital of France is")
    by_ids = complete(client, model, tokens)
    assert by_ids.usage.prompt_tokens == len(tokens)
    assert by_ids.choices[0].text == complete(client, model, "The capital of France is") \
        .choices[0].text
    both = complete(client, model, [tokens, tokens[:3]])
    assert both.choices[0].text == by_ids.choices[0].text


def test_echo_comes_first(client, model):
    plain = complete(client, model)
    echoed = complete(client, model, echo=True)
    assert echoed.choices[0].text == "Once upon a time" + plain.choices[0].text


def test_a_prompts_log_probabilities_are_those_of_its_generation(server, client, model):
    """What was generated greedily, given back as a prompt, is scored as when it was drawn."""
    start = tokenize(server, "The capital of France is")
    drawn = complete(client, model, start, logprobs=2, max_tokens=40,
                     extra_body={"return_token_ids": True, "ignore_eos": True}).choices[0]
    tokens = start + drawn.token_ids
    asked = complete(client, model, tokens, logprobs=2, max_tokens=0, echo=True)
    scored = asked.choices[0].logprobs
    assert asked.usage.completion_tokens == 0
    assert len(scored.token_logprobs) == len(tokens)
    assert scored.token_logprobs[0] is None and scored.top_logprobs[0] is None
    # Rows computed one by one and in a batch differ by the weights' own rounding.
    for one, other in zip(scored.token_logprobs[len(start):], drawn.logprobs.token_logprobs):
        assert one == pytest.approx(other, abs=0.35)
    again = complete(client, model, tokens, max_tokens=1, extra_body={"prompt_logprobs": 0})
    entries = again.choices[0].prompt_logprobs
    assert entries[0] is None
    for token, entry, value in zip(tokens[1:], entries[1:], scored.token_logprobs[1:]):
        assert entry[str(token)]["logprob"] == pytest.approx(value, abs=0.05)
        assert entry[str(token)]["rank"] >= 1


def test_what_may_be_written_is_limited(client, model):
    by_regex = complete(client, model, "My address is", temperature=1, seed=1,
                        extra_body={"structured_outputs": {"regex": r"\d{1,3}(\.\d{1,3}){3}"}})
    assert re.fullmatch(r"\d{1,3}(\.\d{1,3}){3}", by_regex.choices[0].text)
    plain = complete(client, model, logprobs=0, extra_body={"return_token_ids": True}).choices[0]
    banned = complete(client, model, extra_body={"bad_words": [plain.logprobs.tokens[0].strip()]})
    assert not banned.choices[0].text.startswith(plain.logprobs.tokens[0])
    ended = complete(client, model, extra_body={"stop_token_ids": [plain.token_ids[3]]}).choices[0]
    assert plain.text.startswith(ended.text) and len(ended.text) < len(plain.text)
    assert ended.finish_reason == "stop" and ended.stop_reason == plain.token_ids[3]
    only = complete(client, model, max_tokens=3, extra_body={"allowed_token_ids": [42],
                                                             "return_token_ids": True})
    assert only.choices[0].token_ids == [42, 42, 42]


def test_the_best_of_several_is_the_likeliest(client, model):
    def mean(choice):
        return sum(choice.logprobs.token_logprobs) / len(choice.logprobs.token_logprobs)
    settings = {"temperature": 1, "seed": 5, "logprobs": 0, "max_tokens": 8,
                "extra_body": {"ignore_eos": True}}
    several = complete(client, model, n=4, **settings)
    best = complete(client, model, best_of=4, **settings)
    assert mean(best.choices[0]) == pytest.approx(max(map(mean, several.choices)), abs=0.02)
    assert best.usage.completion_tokens == 32


def test_logprobs(client, model):
    answer = complete(client, model, logprobs=3)
    logprobs = answer.choices[0].logprobs
    count = answer.usage.completion_tokens
    assert len(logprobs.tokens) == len(logprobs.token_logprobs) == len(logprobs.top_logprobs)
    assert count - 1 <= len(logprobs.tokens) <= count
    assert "".join(logprobs.tokens).startswith(answer.choices[0].text)
    assert logprobs.text_offset == sorted(logprobs.text_offset)
    for value, top in zip(logprobs.token_logprobs, logprobs.top_logprobs):
        assert 3 <= len(top) <= 4
        assert value == pytest.approx(max(top.values()), abs=1e-4)
        assert sum(map(math.exp, top.values())) <= 1.001


@pytest.mark.parametrize("sampling", [
    {"temperature": 0.7}, {"temperature": 1.2, "top_p": 0.5},
    {"temperature": 1.0, "extra_body": {"top_k": 5}},
    {"temperature": 1.0, "extra_body": {"min_p": 0.2}},
    {"temperature": 1.0, "extra_body": {"typical_p": 0.5}},
    {"temperature": 1.0, "presence_penalty": 1.5, "frequency_penalty": 0.5},
    {"temperature": 0.8, "extra_body": {"repetition_penalty": 1.3}},
])
def test_every_way_of_sampling_repeats_with_its_seed(client, model, sampling):
    def sample(seed):
        return complete(client, model, "My favourite", seed=seed, **sampling).choices[0].text

    assert sample(11) == sample(11)
    others = {sample(seed) for seed in range(6)}
    assert len(others) > 1


def test_top_k_of_one_is_greedy(client, model):
    sampled = complete(client, model, temperature=2.0, seed=1, extra_body={"top_k": 1})
    assert sampled.choices[0].text == complete(client, model).choices[0].text


def test_repetition_penalty_breaks_a_loop(client, model):
    text = "yes yes yes yes yes yes yes yes yes yes"
    def most_frequent(**kwargs) -> int:
        tokens = complete(client, model, text, max_tokens=48, logprobs=1,
                          **kwargs).choices[0].logprobs.tokens
        return max(map(tokens.count, tokens))

    assert most_frequent(extra_body={"repetition_penalty": 1.5}) < most_frequent()


def test_grammar_is_kept(client, model):
    for seed in range(4):
        answer = complete(client, model, "Is water wet? ", temperature=1.5, seed=seed,
                          extra_body={"grammar": 'root ::= "maybe" | "surely not"'})
        assert answer.choices[0].text in ("maybe", "surely not")


def test_ignore_eos_generates_to_the_limit(client, model):
    answer = complete(client, model, "Good bye.", max_tokens=120, extra_body={"ignore_eos": True})
    assert answer.usage.completion_tokens == 120
    assert answer.choices[0].finish_reason == "length"


def test_tokens_round_trip(server):
    for text in ("Hello, world!", "naïve 🦙 世界", "  spaces\n\ttabs "):
        tokens = tokenize(server, text)
        assert tokens and all(isinstance(t, int) for t in tokens)
        status, answer = server.post("/detokenize", {"tokens": tokens})
        assert status == 200
        assert answer.get("content", answer.get("prompt")) == text


def test_apply_template_gives_the_prompt_that_chat_uses(server, client, model):
    messages = [{"role": "user", "content": "Name three colours."}]
    status, answer = server.post("/apply-template", {"messages": messages})
    assert status == 200
    text = answer["prompt"]
    assert "Name three colours." in text and text != "Name three colours."
    chat = client.chat.completions.create(model=model, messages=messages, max_tokens=16,
                                          temperature=0)
    raw = complete(client, model, text, max_tokens=16)
    assert raw.choices[0].text == chat.choices[0].message.content
    assert raw.usage.prompt_tokens == chat.usage.prompt_tokens


def test_a_last_message_is_continued(server, client, model):
    messages = [{"role": "user", "content": "Name three colours."},
                {"role": "assistant", "content": "Red, gre"}]
    _, answer = server.post("/apply-template",
                            {"messages": messages, "continue_final_message": True})
    assert answer["prompt"].endswith("assistant\nRed, gre")
    status, answer = server.post("/apply-template", {"messages": messages[:1],
                                                     "continue_final_message": True})
    assert status == 400 and "assistant" in answer["error"]["message"]


def test_a_chat_template_of_the_users_own(start, tmp_path):
    template = tmp_path / "template.jinja"
    template.write_text("{% for m in messages %}[{{ m.role }}] {{ m.content }}\n{% endfor %}"
                        "{% if add_generation_prompt %}[assistant] {% endif %}")
    server = start("--chat-template", template, "--context", 512)
    _, answer = server.post("/apply-template", {"messages": [{"role": "user", "content": "Hi"}]})
    assert answer["prompt"] == "[user] Hi\n[assistant] "


def test_models_are_listed(client, model):
    assert model in [m.id for m in client.models.list().data]
    found = client.models.retrieve(model)
    assert found.id == model and found.object == "model"


def test_cold_and_warm_prefix_give_the_same_text(client, model):
    text = prompt(300, seed=1)
    cold = greedy(client, model, text, 32)
    warm = greedy(client, model, text, 32)
    assert cold.cached_tokens < 32
    assert warm.cached_tokens > 200
    assert_same(cold, warm)
    assert greedy(client, model, text, 32).tokens == warm.tokens


def test_a_prefix_cut_inside_a_block_is_exact(server, client, model):
    tokens = tokenize(server, prompt(200, seed=2))
    greedy(client, model, tokens, 2)
    for cut in (33, 47, 100, 101):
        tail = tokenize(server, f" Cut at {cut}, the sky was")
        together = greedy(client, model, tokens[:cut] + tail, 16)
        assert together.cached_tokens <= cut
        again = greedy(client, model, tokens[:cut] + tail, 16)
        assert_same(together, again)


def test_no_prompt_is_the_beginning_of_a_text(server, model):
    status, answer = server.post("/v1/completions", {
        "model": model, "prompt": None, "max_tokens": 4, "temperature": 0, "ignore_eos": True})
    assert status == 200, answer
    assert answer["usage"]["prompt_tokens"] == 1 and answer["usage"]["completion_tokens"] == 4

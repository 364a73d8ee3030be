"""Greedy generations that can be compared, whatever shared the batch with them."""

import concurrent.futures
from dataclasses import dataclass

# Two tokens whose log-probabilities are closer than this may swap when the same numbers are added
# up in another order (in another batch, or after a prefix from the cache); from there on two greedy
# texts may differ. With 4-bit weights and 8-bit activations such orders move a log-probability by
# up to 0.17, here as in llama-server; both tokens move.
NEAR_TIE = 0.35


@dataclass
class Generation:
    text: str
    tokens: list[str]
    top: list[dict[str, float]]
    cached_tokens: int
    finish_reason: str


def greedy(client, model: str, prompt, max_tokens: int, **extra) -> Generation:
    """Exactly max_tokens greedy tokens, with their alternatives."""
    answer = client.completions.create(model=model, prompt=prompt, max_tokens=max_tokens,
                                       temperature=0, logprobs=5,
                                       extra_body={"ignore_eos": True, **extra})
    choice = answer.choices[0]
    details = answer.usage.prompt_tokens_details
    assert answer.usage.completion_tokens == max_tokens
    return Generation(choice.text, choice.logprobs.tokens, choice.logprobs.top_logprobs,
                      (details.cached_tokens or 0) if details else 0, choice.finish_reason)


def assert_same(expected: Generation, got: Generation):
    """Equal tokens, or a near-tie where they part."""
    assert len(expected.tokens) == len(got.tokens)
    for i, (a, b) in enumerate(zip(expected.tokens, got.tokens)):
        if a == b:
            continue
        alternatives = expected.top[i]
        assert b in alternatives, (
            f"token {i}: {b!r} is not even among the alternatives {alternatives}")
        gap = alternatives[a] - alternatives[b]
        assert abs(gap) < NEAR_TIE, f"token {i}: {a!r} became {b!r}, {gap:.3f} apart"
        return


def steady(generation: Generation) -> bool:
    """Nowhere is the choice so open that a near-tie could be with a token that is not listed."""
    return all(max(top.values()) - min(top.values()) > NEAR_TIE for top in generation.top)


def in_parallel(calls: list):
    """Runs functions at the same time; their results in order."""
    with concurrent.futures.ThreadPoolExecutor(max_workers=max(1, len(calls))) as pool:
        return [f.result() for f in [pool.submit(call) for call in calls]]


def prompt(words: int, seed: int) -> str:
    """Deterministic prose; different seeds share no beginning."""
    vocabulary = ("river stone garden window letter market bridge forest winter morning teacher "
                  "city story paper engine harbour lantern island valley kitchen").split()
    state = seed * 7919 + 13
    picked = [f"Note {seed}:"]
    for _ in range(words):
        state = (state * 1103515245 + 12345) % (1 << 31)
        picked.append(vocabulary[(state >> 16) % len(vocabulary)])
    return " ".join(picked)

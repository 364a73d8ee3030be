"""Requests whose lengths come from public traces, scaled to a context.

Scaling: every length of a trace is multiplied by
    min(1, context / p99 of (prompt + output) over the whole trace),
then prompts are clipped to [4, context - output] and outputs to [8, context / 2].
The shape of the distribution and the prompt-to-output ratio stay; the longest
one percent is cut. A shared system prompt comes on top of the context.
"""

import csv
import gzip
import os
import random
from dataclasses import dataclass
from pathlib import Path

from client import Job

TRACES = {
    "sharegpt": ("lengths/sharegpt_v3_lens.csv.gz", "num_prefill_tokens", "num_decode_tokens"),
    "azure_conv": ("azure/AzureLLMInferenceTrace_conv.csv.gz", "ContextTokens", "GeneratedTokens"),
    "azure_code": ("azure/AzureLLMInferenceTrace_code.csv.gz", "ContextTokens", "GeneratedTokens"),
}

# Common English words: text of them has about 1.1 tokens a word and looks like prose to
# a tokenizer and to a model.
_WORDS = """the of and to in a is that for it as was with be by on not he his but at are this have
from or had an they which one you were all her she there would their we him been has when who will
no more if out so up said what its about than into them can only other time new some could these
two may first then do any like my now over such our man me even most made after also did many off
before must well back through years where much your way down should because long each just state
those people too mister how little good world make very year still see own work men day get here
old life both between being under three never know same last another while us might great go come
since against right came take used himself few house use during without again place around home
small found thought went say part once general high upon school every country system river water
number paper letter engine window memory garden winter summer morning evening question answer
story teacher city village road bridge mountain forest ocean ship market price money bread music
picture colour green yellow silver golden simple careful quiet bright heavy narrow ancient modern
early late often perhaps almost together towards beyond across within against""".split()


@dataclass
class Lengths:
    prompt: int
    output: int


def traces_folder() -> Path:
    return Path(os.environ.get("SLUICE_TRACES", "../shared/traces"))


def _trace_lengths(name: str) -> list[Lengths]:
    file, prompt_column, output_column = TRACES[name]
    path = traces_folder() / file
    if not path.exists():
        raise SystemExit(f"no trace {path}: set SLUICE_TRACES, or use --workload fixed:512x128")
    with gzip.open(path, "rt") as text:
        return [Lengths(int(row[prompt_column]), int(row[output_column]))
                for row in csv.DictReader(text)]


def lengths_of(name: str, context: int, count: int, seed: int) -> tuple[list[Lengths], float]:
    """`count` length pairs of a workload, and the factor they were scaled with."""
    if name.startswith("fixed:"):
        prompt, output = (int(n) for n in name[len("fixed:"):].split("x"))
        return [Lengths(prompt, output)] * count, 1.0
    rows = _trace_lengths(name)
    totals = sorted(r.prompt + r.output for r in rows)
    scale = min(1.0, context / totals[int(len(totals) * 0.99)])
    drawn = random.Random(f"lengths/{name}/{seed}").sample(rows, count)
    scaled = []
    for row in drawn:
        output = min(max(8, round(row.output * scale)), context // 2)
        scaled.append(Lengths(min(max(4, round(row.prompt * scale)), context - output), output))
    return scaled, scale


def prose(words: int, seed: str) -> str:
    """Sentences of common words, drawn with Zipf's weights; equal seeds, equal text."""
    rng = random.Random(seed)
    weights = [1.0 / (rank + 2) for rank in range(len(_WORDS))]
    drawn = rng.choices(_WORDS, weights, k=words)
    sentences = []
    while drawn:
        length = rng.randint(6, 16)
        head, drawn = drawn[:length], drawn[length:]
        sentences.append(" ".join(head).capitalize() + ".")
    return " ".join(sentences)


def make_jobs(lengths: list[Lengths], system_tokens: int, seed: str, tokenize) -> list[Job]:
    """Prompts of exactly these lengths; no two share a beginning but for the system prompt.

    `tokenize` turns a text into token ids; called once with all the text that is needed.
    """
    need = sum(length.prompt for length in lengths) + 64
    tokens = tokenize(prose(need, f"prompts/{seed}"))
    if len(tokens) < need - 64:
        raise RuntimeError(f"the text has {len(tokens)} tokens, {need - 64} are needed")
    system = tokenize(prose(system_tokens + 64, "system"))[:system_tokens] if system_tokens else []
    jobs, at = [], 0
    for length in lengths:
        jobs.append(Job(system + tokens[at:at + length.prompt], length.output))
        at += length.prompt
    return jobs

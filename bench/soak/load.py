"""Clients of the soak: streams, whole answers and clients that leave; and what became of each."""

import random
import threading
import time
from collections import Counter
from dataclasses import dataclass

import httpx
import openai

from cluster import Cluster, Node
from generation import Generation, assert_same

STILL_S = 90  # a stream that says nothing for so long hangs


@dataclass
class Job:
    prompt: str
    tokens: int
    expected: Generation


@dataclass
class Outage:
    """A time in which a client may lose its gateway."""
    gateway: str
    begin: float
    end: float = float("inf")


def client_of(address: str) -> openai.OpenAI:
    return openai.OpenAI(base_url=f"http://{address}:8080/v1", api_key="unused", max_retries=0,
                         timeout=httpx.Timeout(STILL_S, connect=5))


class Load:
    """Threads that ask without end until stop(). Every request is counted once in `outcomes`;
    what must never be is told in `violations`."""

    def __init__(self, cluster: Cluster, jobs: list[Job], model: str, streams: int, seed: int):
        self.cluster, self.jobs, self.model = cluster, jobs, model
        self.outcomes: Counter[str] = Counter()
        self.violations: list[str] = []
        self.errors: Counter[str] = Counter()  # explicit ones, by what they say
        self.pauses_ms: list[float] = []  # the longest of each stream
        self.outages: list[Outage] = []
        self._lock, self._stopped = threading.Lock(), threading.Event()
        self._threads = [threading.Thread(target=self._ask, args=(random.Random(f"{seed}/{i}"),),
                                          daemon=True) for i in range(streams)]

    def start(self):
        for thread in self._threads:
            thread.start()

    def stop(self):
        """Every request that was begun ends first."""
        self._stopped.set()
        deadline = time.monotonic() + 2 * STILL_S
        for thread in self._threads:
            thread.join(max(0.0, deadline - time.monotonic()))
            if thread.is_alive():
                self.violations.append("a request did not end")

    def _ask(self, rng: random.Random):
        while not self._stopped.is_set():
            job, gateway = rng.choice(self.jobs), rng.choice(self.cluster.gateways)
            leave_after = rng.randrange(job.tokens) if rng.random() < 0.15 else None
            begin = time.monotonic()
            outcome, error = self._one(job, gateway, leave_after, rng.random() < 0.8)
            with self._lock:
                if outcome == "broken" and self._was_out(gateway, begin):
                    outcome = "lost its gateway"
                self.outcomes[outcome] += 1
                if outcome == "error":
                    self.errors[str(error)[:200]] += 1
                if outcome in ("broken", "differs", "cut", "hung"):
                    self.violations.append(f"{outcome} at {gateway.name} after "
                                           f"{time.monotonic() - begin:.1f} s: {error}")
            if outcome in ("lost its gateway", "error"):
                time.sleep(0.2)  # and goes to whichever is next

    def _one(self, job: Job, gateway: Node, leave_after: int | None, stream: bool):
        pieces: list = []
        begin = time.monotonic()
        try:
            with client_of(gateway.address) as client:
                if not stream and leave_after is None:
                    pieces = [self._create(client, job, stream=False)]
                elif not self._read(self._create(client, job, stream=True), pieces, leave_after):
                    return "left", None
        except (openai.APIConnectionError, httpx.TransportError) as error:
            still = time.monotonic() - begin >= STILL_S  # or it could not connect
            return ("hung" if still else "broken"), error
        except openai.APIError as error:  # a status, or an event in the stream
            return "error", error
        return self._judge(job, pieces)

    def _create(self, client: openai.OpenAI, job: Job, stream: bool):
        return client.completions.create(model=self.model, prompt=job.prompt, temperature=0,
                                         max_tokens=job.tokens, logprobs=5, stream=stream,
                                         extra_body={"ignore_eos": True})

    def _read(self, stream, pieces: list, leave_after: int | None) -> bool:
        """False: the client left."""
        longest, last = 0.0, time.monotonic()
        try:
            for n, piece in enumerate(stream):
                now = time.monotonic()
                longest, last = max(longest, now - last), now
                pieces.append(piece)
                if leave_after is not None and n >= leave_after:
                    return False
        finally:
            stream.close()
        with self._lock:
            self.pauses_ms.append(longest * 1e3)
        return True

    def _judge(self, job: Job, pieces: list):
        choices = [c for piece in pieces for c in piece.choices]
        if not any(c.finish_reason for c in choices):
            return "cut", f"{len(choices)} pieces and no end"
        said = [c.logprobs for c in choices if c.logprobs]
        got = Generation("".join(c.text for c in choices), [t for s in said for t in s.tokens],
                         [t for s in said for t in s.top_logprobs], 0, "")
        try:
            assert_same(job.expected, got)
        except AssertionError as error:
            return "differs", error
        return "whole", None

    def _was_out(self, gateway: Node, begin: float) -> bool:
        """Was the gateway away at any time since? A connection dies of it a little later."""
        return any(o.gateway == gateway.name and o.begin <= time.monotonic() and
                   o.end + 5 >= begin for o in self.outages)

"""A small asyncio client for streamed completions.

It speaks just enough HTTP/1.1 over raw asyncio protocols that thirty-two streams
cost a few percent of one core: chunks are counted and timed, only the last one
(the usage) is parsed. One connection a request, so that neither side's keep-alive
handling is part of the measurement.
"""

import asyncio
import json
import time
from dataclasses import dataclass, field


@dataclass
class Job:
    """One request: prompt token ids and the exact number of tokens to generate.

    With `max_tokens` that is all that the server is told openly; the true number goes in
    a field that only the sampler of a server with --benchmark acts on.
    """

    prompt: list[int]
    output_tokens: int
    max_tokens: int = 0
    extra: dict = field(default_factory=dict)  # more fields of the request


@dataclass
class Outcome:
    """What one request looked like to its client. Times in seconds."""

    started: float
    output_tokens: int = 0
    cached_tokens: int = 0
    first: float = 0.0
    ended: float = 0.0
    gaps: list[float] = field(default_factory=list)
    error: str = ""


class _Stream(asyncio.Protocol):
    """Receives one SSE answer. Every `data:` line but the usage is one chunk."""

    def __init__(self, head_and_body: bytes, outcome: Outcome, done: asyncio.Future):
        self._out = head_and_body
        self._outcome = outcome
        self._done = done
        self._buffer = b""
        self._header = True
        self._status = 0
        self._previous = 0.0
        self._usage = b""
        self._terminated = False
        self._transport = None

    def connection_made(self, transport):
        self._transport = transport
        transport.write(self._out)
        self._out = b""

    def data_received(self, data: bytes):
        now = time.perf_counter()
        self._buffer += data
        if self._header:
            end = self._buffer.find(b"\r\n\r\n")
            if end < 0:
                return
            self._status = int(self._buffer[9:12])
            self._buffer = self._buffer[end + 4:]
            self._header = False
        if self._status != 200:
            return
        # HTTP chunk framing lies between the lines and never begins with "data:".
        *lines, self._buffer = self._buffer.split(b"\n")
        for line in lines:
            if not line.startswith(b"data:"):
                continue
            if b'"usage":{' in line or b'"usage": {' in line:
                self._usage = line
            if line.startswith(b"data: [DONE]"):
                self._terminated = True
            elif b'"choices":[]' in line or b'"choices": []' in line:
                continue
            elif b'"error"' in line[:20]:
                self._outcome.error = line.decode("utf-8", "replace")[:200]
            else:
                self._on_chunk(now)
        if self._terminated:
            self._transport.close()

    def _on_chunk(self, now: float):
        if self._previous == 0.0:
            self._outcome.first = now
        else:
            self._outcome.gaps.append(now - self._previous)
        self._previous = now

    def connection_lost(self, exc):
        outcome = self._outcome
        outcome.ended = time.perf_counter()
        if self._status != 200:
            text = self._buffer.decode("utf-8", "replace")[:200]
            outcome.error = f"HTTP {self._status or 'none'} {text}".strip()
        elif not outcome.error and not self._terminated:
            outcome.error = f"stream ended without [DONE] ({exc})"
        elif not outcome.error:
            self._read_usage()
        if not self._done.done():
            self._done.set_result(None)

    def _read_usage(self):
        try:
            usage = json.loads(self._usage[5:])["usage"]
            self._outcome.output_tokens = usage["completion_tokens"]
            details = usage.get("prompt_tokens_details") or {}
            self._outcome.cached_tokens = details.get("cached_tokens") or 0
        except (ValueError, KeyError, TypeError):
            self._outcome.error = "no usage in the stream"


def _encode(job: Job, model: str, host: str, port: int) -> bytes:
    body = json.dumps({
        "model": model,
        "prompt": job.prompt,
        **({"max_tokens": job.max_tokens, "sluice_output_length": job.output_tokens}
           if job.max_tokens else {"max_tokens": job.output_tokens, "ignore_eos": True}),
        "temperature": 0,
        "stream": True,
        "stream_options": {"include_usage": True},
        **job.extra,
    }, separators=(",", ":")).encode()
    head = (f"POST /v1/completions HTTP/1.1\r\nHost: {host}:{port}\r\n"
            f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n"
            "Connection: close\r\n\r\n")
    return head.encode() + body


async def _one(job: Job, model: str, host: str, port: int, limit_s: float) -> Outcome:
    message = _encode(job, model, host, port)
    outcome = Outcome(started=time.perf_counter())
    loop = asyncio.get_running_loop()
    done = loop.create_future()
    transport = None
    try:
        transport, _ = await loop.create_connection(
            lambda: _Stream(message, outcome, done), host, port)
        await asyncio.wait_for(done, limit_s)
    except (OSError, asyncio.TimeoutError) as error:
        outcome.ended = time.perf_counter()
        outcome.error = f"{type(error).__name__} {error}".strip()
        if transport is not None:
            transport.abort()
    # A forced end is a token of its own, which usage counts.
    expected = job.output_tokens + (1 if job.max_tokens else 0)
    if not outcome.error and outcome.output_tokens not in (job.output_tokens, expected):
        outcome.error = f"{outcome.output_tokens} tokens instead of {job.output_tokens}"
    return outcome


async def _closed_loop(jobs, streams, model, host, port, limit_s) -> list[Outcome]:
    waiting = iter(jobs)
    outcomes: list[Outcome] = []

    async def worker():
        for job in waiting:
            outcomes.append(await _one(job, model, host, port, limit_s))

    await asyncio.gather(*(worker() for _ in range(streams)))
    return outcomes


def run_closed_loop(jobs: list[Job], streams: int, model: str, host: str, port: int,
                    limit_s: float = 900.0) -> list[Outcome]:
    """Sends the jobs in order; at any time `streams` of them are in flight."""
    return asyncio.run(_closed_loop(jobs, streams, model, host, port, limit_s))


async def _open_loop(jobs, at, model, host, port, limit_s) -> list[Outcome]:
    began = time.perf_counter()

    async def one(job, when):
        await asyncio.sleep(max(0.0, began + when - time.perf_counter()))
        return await _one(job, model, host, port, limit_s)

    return await asyncio.gather(*map(one, jobs, at))


def run_open_loop(jobs: list[Job], at: list[float], model: str, host: str, port: int,
                  limit_s: float = 900.0) -> list[Outcome]:
    """Sends each job at its time, seconds from now, whatever has come of the others."""
    return asyncio.run(_open_loop(jobs, at, model, host, port, limit_s))

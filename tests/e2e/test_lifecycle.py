"""Start, drain, stop, and what is said when a start fails."""

import os
import random
import re
import signal
import socket
import struct
import threading
import time

import openai
import pytest

from sluice_server import HOST, binary, model_file, run_sluice


def stream_tokens(server, count: int, arrivals: list, done: list):
    """Reads one stream to its end in a thread; (tokens, reason) or the error goes into done."""
    def read():
        with server.client() as client:
            reason = None
            try:
                for chunk in client.completions.create(
                        model=server.model_id(), prompt="Once", max_tokens=count, temperature=0,
                        stream=True, extra_body={"ignore_eos": True},
                        stream_options={"include_usage": True}):
                    if chunk.choices:
                        arrivals.append(time.monotonic())
                        reason = chunk.choices[0].finish_reason or reason
                    if chunk.usage:
                        done.append((chunk.usage.completion_tokens, reason))
            except openai.APIError as error:
                done.append(error)

    thread = threading.Thread(target=read)
    thread.start()
    return thread


def wait_for(condition, limit_s: float = 60):
    deadline = time.monotonic() + limit_s
    while not condition():
        assert time.monotonic() < deadline, f"waited {limit_s} s in vain"
        time.sleep(0.02)


def test_sigterm_lets_a_running_stream_end(start):
    server = start("--context", 2048)
    arrivals, done = [], []
    reader = stream_tokens(server, 500, arrivals, done)
    wait_for(lambda: len(arrivals) > 5)
    server.process.send_signal(signal.SIGTERM)
    wait_for(lambda: server.get("/ready")[0] == 503, 10)
    assert server.get("/health")[0] == 200, "alive, though not ready"
    status, answer = server.post("/v1/completions", {
        "model": server.model_id(), "prompt": "late", "max_tokens": 2})
    assert status == 503 and answer["error"]["message"]
    assert not done, "the stream was still running"
    reader.join(120)
    assert done == [(500, "length")]
    assert server.process.wait(30) == 0


def test_sigterm_when_idle_ends_at_once(start):
    server = start("--context", 512)
    server.process.send_signal(signal.SIGTERM)
    assert server.process.wait(10) == 0


def test_sigint_is_like_sigterm(start):
    server = start("--context", 512)
    server.process.send_signal(signal.SIGINT)
    assert server.process.wait(10) == 0


def test_a_second_sigterm_stops_what_runs(start):
    server = start("--context", 8192)
    arrivals, done = [], []
    with socket.create_connection((HOST, server.port), timeout=60) as connection:
        body = (b'{"model": "%s", "prompt": "Once", "max_tokens": 8000, "ignore_eos": true, '
                b'"stream": true}' % server.model_id().encode())
        connection.sendall(b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n"
                           b"Content-Type: application/json\r\n\r\n" % len(body) + body)
        seen = connection.recv(1000)
        assert seen.startswith(b"HTTP/1.1 200")
        server.process.send_signal(signal.SIGTERM)
        time.sleep(1)
        assert server.process.poll() is None, "one signal drains"
        server.process.send_signal(signal.SIGTERM)
        server.process.wait(10)
        while piece := connection.recv(1 << 16):
            seen += piece
    assert b"data: [DONE]" in seen or b'"error"' in seen, "a stream never ends in silence"
    assert not arrivals and not done


def test_the_drain_has_a_limit(start):
    server = start("--context", 8192, "--drain-seconds", 1)
    arrivals, done = [], []
    reader = stream_tokens(server, 8000, arrivals, done)
    wait_for(lambda: len(arrivals) > 2)
    server.process.send_signal(signal.SIGTERM)
    server.process.wait(15)
    reader.join(30)
    assert "shutting down" in str(done[0]), "a stream never ends in silence"


# --- start-up errors: one line, exit code 2

def assert_start_fails(*arguments, words=()):
    result = run_sluice("serve", *arguments, timeout=60)
    assert result.returncode == 2, (result.returncode, result.stdout, result.stderr)
    # Beside lines of the log, which begin with the date.
    lines = [line for line in result.stderr.splitlines() if not re.match(r"\d{4}-\d\d-\d\d ", line)]
    assert len(lines) == 1, result.stderr
    for word in words:
        assert word.lower() in lines[0].lower(), lines[0]


def test_a_file_that_is_not_there(tmp_path):
    assert_start_fails(tmp_path / "absent.gguf", words=["absent.gguf"])


def test_a_folder_is_not_a_model(tmp_path):
    assert_start_fails(tmp_path)


def test_a_file_that_is_not_gguf(tmp_path):
    file = tmp_path / "text.gguf"
    file.write_text("This is not a model. " * 100)
    assert_start_fails(file, words=["gguf"])


def test_an_empty_file(tmp_path):
    file = tmp_path / "empty.gguf"
    file.touch()
    assert_start_fails(file, words=["empty.gguf"])


@pytest.mark.parametrize("share", [0.00001, 0.001, 0.3, 0.9, 0.999])
def test_a_truncated_model(tmp_path, share):
    whole = model_file()
    file = tmp_path / "cut.gguf"
    with whole.open("rb") as source:
        file.write_bytes(source.read(int(whole.stat().st_size * share)))
    assert_start_fails(file, words=["cut.gguf"])


@pytest.mark.parametrize("version", [0, 1, 99, 0x03000000])
def test_a_version_that_is_not_known(tmp_path, version):
    file = tmp_path / "version.gguf"
    file.write_bytes(b"GGUF" + struct.pack("<IQQ", version, 0, 0) + bytes(64))
    assert_start_fails(file)


def gguf_with(architecture: str) -> bytes:
    def text(value: str) -> bytes:
        return struct.pack("<Q", len(value)) + value.encode()

    key = text("general.architecture") + struct.pack("<I", 8) + text(architecture)
    return b"GGUF" + struct.pack("<IQQ", 3, 0, 1) + key + bytes(64)


def test_an_architecture_that_is_not_supported(tmp_path):
    file = tmp_path / "other.gguf"
    file.write_bytes(gguf_with("mamba"))
    assert_start_fails(file, words=["mamba", "llama", "qwen3", "gemma3"])


@pytest.mark.parametrize("seed", range(6))
def test_a_damaged_header(tmp_path, seed):
    rng = random.Random(seed)
    with model_file().open("rb") as source:
        data = bytearray(source.read(1 << 20))
    for _ in range(200):
        data[rng.randrange(4, 4000)] = rng.randrange(256)
    file = tmp_path / "damaged.gguf"
    file.write_bytes(data)
    assert_start_fails(file)


@pytest.mark.parametrize("flags,word", [
    (["--port", "99999"], "port"), (["--port", "x"], "port"), (["--nonsense", "1"], "nonsense"),
    (["--kv-memory", "lots"], "lots"), (["--kv-memory", "-5"], "kv-memory"),
    (["--kv-memory", "1"], "kv"), (["--instances", "0"], "instances"),
    (["--threads", "-1"], "threads"), (["--context", "-1"], "context"),
    (["--max-running", "0"], "max-running"), (["--policy", "coin"], "policy"),
    (["--log-level", "shout"], "log-level"), (["--kv-memory", "900TiB"], "memory"),
    (["--host", "999.1.1.1"], "999.1.1.1"),
])
def test_flags_that_make_no_sense(flags, word):
    assert_start_fails(model_file(), "--port", 0, *flags, words=[word])


@pytest.mark.parametrize("text,word", [
    ("port: [1, 2", "bad.yaml"), ("nonsense: 1", "nonsense"), ("port: many", "port"),
    ("- a\n- b", "bad.yaml"), ("port: {a: 1}", "port"), ("config: other.yaml", "config"),
])
def test_a_configuration_that_makes_no_sense(tmp_path, text, word):
    file = tmp_path / "bad.yaml"
    file.write_text(text)
    assert_start_fails(model_file(), "--config", file, words=[word])


def test_no_model_and_no_configuration(tmp_path):
    assert_start_fails(words=["model"])
    assert_start_fails(model_file(), "--config", tmp_path / "absent.yaml", words=["absent.yaml"])


def test_a_port_that_is_taken(server):
    assert_start_fails(model_file(), "--port", server.port, words=[str(server.port)])


def test_configuration_file_and_flags_that_win(start, tmp_path):
    file = tmp_path / "sluice.yaml"
    file.write_text("context: 512\nmodel-name: from-file\napi-key:\n  - first\n  - second\n")
    server = start("--config", file, "--model-name", "from-flag")
    for key in ("first", "second"):
        with server.client(api_key=key) as client:
            assert [m.id for m in client.models.list().data] == ["from-flag"]


# --- the other commands

def test_run_answers_once():
    result = run_sluice("run", model_file(), "Name a colour.", "--max-tokens", 12,
                        "--temperature", 0)
    assert result.returncode == 0, result.stderr
    assert result.stdout.strip()
    again = run_sluice("run", model_file(), "Name a colour.", "--max-tokens", 12,
                       "--temperature", 0)
    assert again.stdout == result.stdout


def test_run_says_what_the_server_says(server, client, model):
    text = "The capital of France is"
    served = client.completions.create(model=model, prompt=text, max_tokens=10, temperature=0)
    result = run_sluice("run", model_file(), text, "--raw", "--max-tokens", 10,
                        "--temperature", 0)
    assert served.choices[0].text.strip() in result.stdout


def test_inspect_prints_sizes():
    result = run_sluice("inspect", model_file(), "--memory", "64MiB")
    assert result.returncode == 0
    facts = dict(re.split(r"  +", line, maxsplit=1) for line in result.stdout.splitlines()
                 if "  " in line)
    assert facts["architecture"] == "llama"
    assert "22.5 KiB a token" in facts["KV cache"]
    fit = int(facts["tokens that fit"].split()[0])
    assert fit == 64 * 1024 * 1024 // (23040 * 16) * 16


def test_devices_lists_what_is_here_with_its_memory():
    result = run_sluice("devices")
    assert result.returncode == 0, result.stderr
    head, *lines = result.stdout.splitlines()
    assert head.split()[:3] == ["device", "memory", "free"]
    assert re.match(r"cpu +[\d.]+ [GT]iB +[\d.]+ [MGT]iB  \S", lines[0])


def test_devices_says_how_busy_they_are_where_the_driver_does(tmp_path):
    fake = binary().parent.parent / "src/device/libfake_nvml.so"
    if not fake.exists():
        pytest.skip(f"no {fake.name}: build device_test")
    (tmp_path / "libnvidia-ml.so.1").symlink_to(fake)
    result = run_sluice("devices", env={**os.environ, "LD_LIBRARY_PATH": str(tmp_path)})
    assert result.returncode == 0, result.stderr
    assert re.search(r"^0 +80.0 GiB +60.0 GiB +37 %  Fake 0$", result.stdout, re.M)
    assert re.search(r"^1 +80.0 GiB +59.0 GiB +-  Fake 1$", result.stdout, re.M)


@pytest.mark.parametrize("command", ["serve", "run", "profile", "instance"])
@pytest.mark.parametrize("device,words", [
    ("cuda", "this build has no CUDA backend; it has: cpu"),
    ("tpu:1", '"tpu:1" is not a device: expected cpu, cuda[:N], vulkan[:N] or auto'),
])
def test_a_device_that_is_not_here_is_named_in_one_line(command, device, words):
    extra = {"run": ["hello"], "instance": ["--join", "127.0.0.1:1"]}.get(command, [])
    result = run_sluice(command, model_file(), *extra, "--device", device)
    assert result.returncode == 2
    assert words in result.stderr
    assert len(result.stderr.strip().splitlines()) == 1


def test_a_profile_measured_here_is_a_device_to_simulate(tmp_path):
    file = tmp_path / "here.profile"
    result = run_sluice("profile", model_file(), "--rounds", 1, "--max-batch-tokens", 48,
                        "--max-running", 4, "--context", 256, "--kv-memory", "32MiB", "--name",
                        "here", "--output", file)
    assert result.returncode == 0, result.stderr
    assert "name here\n" in file.read_text()
    cluster = tmp_path / "cluster.yaml"
    cluster.write_text(f"instances:\n  - {{device: {file}, block_tokens: 16, max_running: 4}}\n")
    result = run_sluice("simulate", "--trace", "synthetic:20:1:30:10", "--cluster", cluster,
                        "--policy", "forecast", "--out", tmp_path / "report")
    assert result.returncode == 0, result.stderr
    assert " of here and " in result.stdout
    assert run_sluice("profile", model_file(), "--rounds", 0).returncode == 2


@pytest.mark.parametrize("command", ["run", "inspect", "profile"])
def test_the_other_commands_fail_in_one_line_too(command, tmp_path):
    extra = ["hello"] if command == "run" else []
    result = run_sluice(command, tmp_path / "absent.gguf", *extra)
    assert result.returncode == 2
    assert len(result.stderr.strip().splitlines()) == 1


def test_help_names_every_flag_with_its_unit():
    for command in ([], ["serve"], ["run"], ["inspect"], ["profile"]):
        result = run_sluice(*command, "--help")
        assert result.returncode == 0
        assert "sluice" in result.stdout or "Usage" in result.stdout
    text = run_sluice("serve", "--help").stdout
    for flag in ("instances", "kv-memory", "threads", "context", "max-batch-tokens",
                 "mixed-step-ratio", "max-running", "queue-limit", "host", "port", "api-key",
                 "config", "log-level"):
        assert f"--{flag}" in text


def test_nothing_is_printed_to_stdout_but_what_was_asked(start):
    environment = {key: value for key, value in os.environ.items() if key != "TERM"}
    result = run_sluice("run", model_file(), "Say hi", "--max-tokens", 4, "--temperature", 0,
                        env=environment)
    assert "\x1b" not in result.stdout and "%" not in result.stderr


def test_what_was_learned_of_lengths_outlives_a_restart(start, tmp_path):
    state = tmp_path / "lengths"
    for round_ in (1, 2):
        server = start("--context", 512, "--forecast-state", state)
        status, _ = server.post("/v1/completions", {
            "model": server.model_id(), "prompt": "Once", "max_tokens": 4,
            "sluice_length_class": "brief"})
        assert status == 200
        server.process.send_signal(signal.SIGTERM)
        assert server.process.wait(30) == 0
        assert "brief~0 " in state.read_text(), f"round {round_}"
    state.write_text("not a state")
    assert_start_fails(model_file(), "--context", 512, "--kv-memory", "256MiB",
                       "--forecast-state", state, words=["is not the state of a forecast"])


def test_every_memory_policy_serves(start):
    for policy in ("paged", "paged-watermark", "reserve", "ratio", "peak-ema", "past-future",
                   "oracle"):
        server = start("--context", 512, "--memory-policy", policy)
        status, answer = server.post("/v1/completions", {
            "model": server.model_id(), "prompt": "Once", "max_tokens": 24, "ignore_eos": True})
        assert status == 200 and answer["usage"]["completion_tokens"] == 24, policy
        server.process.send_signal(signal.SIGTERM)
        assert server.process.wait(30) == 0
    assert_start_fails(model_file(), "--memory-policy", "greedy", words=["memory-policy"])

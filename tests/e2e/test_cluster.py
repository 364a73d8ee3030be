"""Gateways and instances as real processes, and what happens when they are lost."""

import json
import shutil
import signal
import subprocess
import threading
import time

import openai
import pytest

from cluster_processes import CONTEXT, Gateway, Process, instance
from generation import Generation, assert_same, greedy, in_parallel, prompt
from sluice_server import HOST, free_port, model_file, run_sluice

NAMES = ("a", "b")
TOKENS = 150  # so many that whatever is to happen in the middle does
JOBS = [prompt(12 + 4 * i, seed=900 + i) for i in range(8)]


@pytest.fixture
def processes(log_folder, request):
    """add(process) -> started, stopped at the test's end, last first."""
    started = []

    def add(process: Process) -> Process:
        started.append(process)
        return process.start()

    def log(name: str):
        return log_folder / f"{request.node.name[:50].replace('/', '_')}-{name}.log"

    add.log, add.started = log, started
    yield add
    for process in reversed(started):
        process.stop()


@pytest.fixture
def policy():
    """Both instances get work whatever the placement policy makes of them after a fault."""
    return "round-robin"


@pytest.fixture
def cluster(processes, policy):
    """One gateway and two instances."""
    gateway = processes(Gateway(processes.log("gateway"), "--policy", policy))
    gateway.parts = {name: processes(instance(processes.log(name), name, gateway.join))
                     for name in NAMES}
    return gateway.wait_instances(*NAMES)


@pytest.fixture(scope="module")
def expected(server):
    """What one process says to the jobs, alone."""
    with server.client() as client:
        return [greedy(client, server.model_id(), text, TOKENS) for text in JOBS]


class Load:
    """All jobs at once from an OpenAI client, in the background."""

    def __init__(self, gateway, jobs=None):
        self.answers = None
        self.client = gateway.client()
        model = gateway.model_id()
        self.thread = threading.Thread(target=self._run, args=(jobs or JOBS, model))
        self.thread.start()

    def _run(self, jobs, model):
        self.answers = in_parallel([lambda t=t: greedy(self.client, model, t, TOKENS)
                                    for t in jobs])

    def expect(self, expected):
        self.thread.join(120)
        assert self.answers is not None, "not every request got a whole answer"
        for alone, got in zip(expected, self.answers):
            assert_same(alone, got)
        self.client.close()


def wait_for(condition, limit_s: float = 60):
    deadline = time.monotonic() + limit_s
    while not condition():
        assert time.monotonic() < deadline, f"waited {limit_s} s in vain"
        time.sleep(0.02)


def generating(gateway, name: str) -> bool:
    """Its sequences are in the middle of their answers."""
    running = gateway.instances().get(name, {}).get("running", [])
    return any(s["generated"] > 3 for s in running)


@pytest.mark.parametrize("policy", ["forecast"])
def test_two_instances_answer_what_one_process_answers(cluster, expected):
    Load(cluster).expect(expected)
    cluster.wait_idle()
    generated = {name: i["generated_tokens"] for name, i in cluster.instances().items()}
    assert set(generated) == set(NAMES) and all(generated.values())
    assert sum(generated.values()) == TOKENS * len(JOBS)
    status, body = cluster.get("/v1/models")
    assert status == 200 and json.loads(body)["data"]


def test_a_killed_instance_is_not_seen_and_comes_back_as_a_new_one(cluster, expected):
    old = cluster.instances()["a"]
    load = Load(cluster)
    wait_for(lambda: generating(cluster, "a"))
    cluster.parts["a"].kill()
    cluster.wait_instances("b")
    cluster.parts["a"].start()
    load.expect(expected)
    assert "goes on at instance" in cluster.log()
    cluster.wait_instances(*NAMES)
    new = cluster.instances()["a"]
    assert new["instance"] == old["instance"]
    assert int(new["incarnation"], 16) > int(old["incarnation"], 16)
    Load(cluster).expect(expected)
    cluster.wait_idle()


def test_a_frozen_instance_is_given_up_and_taken_back(cluster, expected):
    load = Load(cluster)
    wait_for(lambda: generating(cluster, "b"))
    cluster.parts["b"].signal(signal.SIGSTOP)
    cluster.wait_instances("a", limit_s=10)
    load.expect(expected)
    cluster.parts["b"].signal(signal.SIGCONT)
    cluster.wait_instances(*NAMES)
    cluster.wait_idle()
    cluster.parts["b"].wait_log("are cancelled")


def stream_greedy(client, model: str, text: str, tokens: int, at: int, act) -> Generation:
    """As greedy(), token by token; `act` is called when `at` of them have come."""
    got = Generation("", [], [], 0, "")
    stream = client.completions.create(model=model, prompt=text, max_tokens=tokens, temperature=0,
                                       logprobs=5, stream=True, extra_body={"ignore_eos": True})
    for chunk in stream:
        choice = chunk.choices[0]
        got.text += choice.text
        got.finish_reason = choice.finish_reason or got.finish_reason
        if choice.logprobs:
            got.tokens += choice.logprobs.tokens
            got.top += choice.logprobs.top_logprobs
        if act and len(got.tokens) >= at:
            act()
            act = None
    return got


def test_what_runs_on_an_instance_that_is_drained_goes_on_elsewhere(cluster, server):
    text, tokens = prompt(300, seed=977), 400
    with server.client() as client:
        alone = greedy(client, server.model_id(), text, tokens)

    def drain():
        wait_for(lambda: any(generating(cluster, n) for n in NAMES))
        [name] = [n for n in NAMES if generating(cluster, n)]
        result = run_sluice("drain", name, "--gateway", cluster.join)
        assert result.returncode == 0, result.stderr
        assert cluster.parts[name].process.wait(30) == 0
        [other] = set(NAMES) - {name}
        cluster.wait_instances(other)
        wait_for(lambda: cluster.instances()[other]["handoffs"]["taken"] == 1, limit_s=5)
        assert generating(cluster, other), "it ended before it had moved"

    with cluster.client() as client:
        got = stream_greedy(client, cluster.model_id(), text, tokens, 10, drain)
    assert_same(alone, got)
    assert got.finish_reason == "length"
    assert "goes on at instance" not in cluster.log(), "it was computed again"
    cluster.wait_idle()
    cluster.check_conservation()
    [left] = cluster.instances().values()
    assert left["blocks"]["granted"] == 0 and left["handoffs"]["reservations"] == 0


def test_a_running_sequence_moves_over_the_stream_alone(processes, server):
    gateway = processes(Gateway(processes.log("gateway")))
    gateway.parts = {name: processes(instance(processes.log(name), name, gateway.join,
                                              "--no-kv-tcp", "--kv-ucx", "off"))
                     for name in NAMES}
    gateway.wait_instances(*NAMES)
    text, tokens = prompt(300, seed=978), 400
    with server.client() as client:
        alone = greedy(client, server.model_id(), text, tokens)
    moved_from = []

    def drain():
        wait_for(lambda: any(generating(gateway, n) for n in NAMES))
        moved_from.extend(n for n in NAMES if generating(gateway, n))
        gateway.parts[moved_from[0]].signal(signal.SIGTERM)
        assert gateway.parts[moved_from[0]].process.wait(30) == 0

    with gateway.client() as client:
        got = stream_greedy(client, gateway.model_id(), text, tokens, 10, drain)
    assert_same(alone, got)
    assert got.finish_reason == "length"
    assert "goes on at instance" not in gateway.log(), "it was computed again"
    assert "1 sequence(s) were handed over by grpc" in gateway.parts[moved_from[0]].log()
    gateway.wait_idle()
    gateway.check_conservation()


def test_an_instance_that_is_drained_ends(cluster, expected):
    load = Load(cluster)
    wait_for(lambda: generating(cluster, "a"))
    result = run_sluice("drain", "a", "--gateway", cluster.join)
    assert result.returncode == 0, result.stderr
    load.expect(expected)
    assert cluster.parts["a"].process.wait(30) == 0
    cluster.wait_instances("b")
    assert run_sluice("drain", "a", "--gateway", cluster.join).returncode == 2
    # What cannot wait for the drain is handed on.
    cluster.parts["a"].start()
    cluster.wait_instances(*NAMES)
    load = Load(cluster)
    wait_for(lambda: generating(cluster, "b"))
    cluster.parts["b"].signal(signal.SIGTERM)
    cluster.parts["b"].wait_log("draining")
    cluster.parts["b"].signal(signal.SIGTERM)
    load.expect(expected)
    assert cluster.parts["b"].process.wait(30) == 0
    cluster.wait_idle()


def test_a_killed_gateway_leaves_no_orphans(cluster, processes, expected):
    other = processes(Gateway(processes.log("other")))
    both = processes(instance(processes.log("c"), "c", f"{cluster.join},{other.join}"))
    other.wait_instances("c")
    cluster.wait_instances("a", "b", "c")
    model = cluster.model_id()

    def long_ones():
        for _ in in_parallel([lambda i=i: abandoned(cluster, model, i) for i in range(6)]):
            pass

    load = threading.Thread(target=long_ones)
    load.start()
    wait_for(lambda: all(generating(cluster, n) for n in ("a", "b", "c")))
    cluster.kill()
    load.join(30)
    both.wait_log("are cancelled")
    other.wait_idle()
    Load(other, JOBS[:2]).expect(expected[:2])
    cluster.start()
    cluster.wait_instances("a", "b", "c")
    Load(cluster).expect(expected)
    cluster.wait_idle()


def abandoned(gateway, model: str, seed: int):
    """A long generation whose server dies: an error, not a silence."""
    with gateway.client() as client, pytest.raises((openai.APIError, OSError)):
        greedy(client, model, prompt(20, seed), 900)


def test_who_does_not_belong_is_told_so(processes, tmp_path):
    secret = tmp_path / "token"
    secret.write_text("correct-horse-battery\n")
    gateway = processes(Gateway(processes.log("gateway"), "--cluster-token-file", secret))
    gateway.wait_log("instances join it")
    stranger = processes(instance(processes.log("stranger"), "stranger", gateway.join))
    stranger.wait_log("the cluster token is wrong")
    short = processes(instance(processes.log("short"), "short", gateway.join, "--context", 512,
                               "--cluster-token-file", secret))
    short.wait_log("give both the same --context")
    friend = processes(instance(processes.log("friend"), "friend", gateway.join,
                                "--cluster-token-file", secret))
    friend.wait_log("joined gateway")
    gateway.wait_instances("friend")
    assert run_sluice("drain", "friend", "--gateway", gateway.join).returncode == 2


def test_mutual_tls(processes, tmp_path, expected):
    def openssl(*arguments):
        subprocess.run(["openssl", *arguments], cwd=tmp_path, check=True, capture_output=True)

    if not shutil.which("openssl"):
        pytest.skip("no openssl to make certificates with")
    for name in ("ca", "other"):
        openssl("req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1",
                "-nodes", "-keyout", f"{name}.key", "-out", f"{name}.pem", "-subj", f"/CN={name}",
                "-days", "2")
    (tmp_path / "names").write_text(f"subjectAltName=IP:{HOST}\n")
    openssl("req", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-keyout",
            "node.key", "-out", "node.csr", "-subj", "/CN=node")
    openssl("x509", "-req", "-in", "node.csr", "-CA", "ca.pem", "-CAkey", "ca.key",
            "-CAcreateserial", "-out", "node.pem", "-days", "2", "-extfile", "names")
    ours = ["--tls-ca", tmp_path / "ca.pem", "--tls-certificate", tmp_path / "node.pem",
            "--tls-key", tmp_path / "node.key"]
    theirs = ["--tls-ca", tmp_path / "ca.pem", "--tls-certificate", tmp_path / "other.pem",
              "--tls-key", tmp_path / "other.key"]
    gateway = processes(Gateway(processes.log("gateway"), *ours))
    gateway.wait_log("instances join it")
    processes(instance(processes.log("foreign"), "foreign", gateway.join, *theirs))
    processes(instance(processes.log("plain"), "plain", gateway.join))
    processes(instance(processes.log("ours"), "ours", gateway.join, *ours))
    gateway.wait_instances("ours")
    Load(gateway, JOBS[:1]).expect(expected[:1])
    assert set(gateway.instances()) == {"ours"}

    # A connection for KV alone would not encrypt: it stays on the stream.
    processes(instance(processes.log("prefill"), "prefill", gateway.join, "--role", "prefill",
                       "--no-shared-kv", *ours))
    gateway.wait_instances("ours", "prefill")
    sent = {}
    for _ in range(20):
        Load(gateway, JOBS[:2]).expect(expected[:2])
        sent = {k: v for k, v in gateway.metrics().items()
                if k.startswith("sluice_handoff_bytes_total{") and v > 0}
        if sent:
            break
        time.sleep(0.2)
    assert sent and all('transport="grpc"' in k for k in sent), sent


@pytest.mark.skipif(not shutil.which("etcd"), reason="no etcd here (Debian: etcd-server)")
def test_etcd_finds_gateways_and_may_be_lost(processes, tmp_path, expected):
    client_port, peer_port = free_port(), free_port()
    etcd = f"etcd://{HOST}:{client_port}/test"

    def start_etcd():
        url, peer = f"http://{HOST}:{client_port}", f"http://{HOST}:{peer_port}"
        return subprocess.Popen(
            ["etcd", "--data-dir", tmp_path / "etcd", "--listen-client-urls", url,
             "--advertise-client-urls", url, "--listen-peer-urls", peer,
             "--initial-advertise-peer-urls", peer, "--initial-cluster", f"default={peer}"],
            stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)

    store = start_etcd()
    try:
        first = processes(Gateway(processes.log("first"), "--name", "first", "--join", etcd))
        first.wait_log("announced")
        processes(instance(processes.log("a"), "a", etcd))
        first.wait_instances("a")
        second = processes(Gateway(processes.log("second"), "--name", "second", "--join", etcd))
        second.wait_instances("a")  # the watch told of it
        store.kill()
        store.wait()
        Load(first, JOBS[:2]).expect(expected[:2])  # nothing is lost with it
        Load(second, JOBS[:2]).expect(expected[:2])
        store = start_etcd()
        third = processes(Gateway(processes.log("third"), "--name", "third", "--join", etcd))
        third.wait_instances("a")
    finally:
        store.kill()
        store.wait()


CLUSTER_FILE = """
model: {model}
context: {context}
gateways:
  - port: {port}
    listen: 127.0.0.1:{join}
instances:
  - count: 2
    kv-memory: 96MiB
    threads: 1
"""


def test_cluster_up_starts_what_a_file_says(processes, tmp_path, expected):
    file = tmp_path / "cluster.yaml"
    gateway = Gateway(processes.log("unused"))  # for asking; `cluster up` starts it
    file.write_text(CLUSTER_FILE.format(model=model_file(), context=CONTEXT, port=gateway.port,
                                        join=gateway.join_port))
    told = run_sluice("cluster", "up", file, "--check").stdout.splitlines()
    assert [line.split()[0] for line in told] == ["gateway-0", "unified-0", "unified-1"]
    up = processes(Process(processes.log("up"), "cluster", "up", file))
    gateway.wait_instances("unified-0", "unified-1")
    Load(gateway, JOBS[:4]).expect(expected[:4])
    seen = run_sluice("top", gateway.url, "--once").stdout
    assert "unified-0" in seen and "unified-1" in seen and "placed" in seen
    assert "unified-1    | " in up.log()
    up.signal(signal.SIGINT)
    assert up.process.wait(30) == 0
    with pytest.raises(OSError):
        gateway.get("/health")


@pytest.mark.parametrize("text,words", [
    ("model: x", "gateways"), ("gateways: [{}]\ninstances: [{}]", "model"), ("- a", "name: value"),
    ("model: x\ngateways: [{}]\ninstances: [{count: 0}]", "count"), ("model: [", "yaml"),
    ("model: x\ngateways: [{}]\ninstances: [{threads: {a: 1}}]", "threads"),
])
def test_a_cluster_file_that_makes_no_sense(tmp_path, text, words):
    file = tmp_path / "cluster.yaml"
    file.write_text(text)
    result = run_sluice("cluster", "up", file, "--check")
    assert result.returncode == 2 and words in result.stderr, result.stderr
    assert len(result.stderr.strip().splitlines()) == 1


def test_a_process_of_the_file_that_cannot_start_ends_all(tmp_path):
    file = tmp_path / "cluster.yaml"
    file.write_text(f"model: {model_file()}\ngateways: [{{port: {free_port()}, "
                    f"listen: '{HOST}:{free_port()}'}}]\ninstances: [{{nonsense: 1}}]\n")
    result = run_sluice("cluster", "up", file, timeout=60)
    assert result.returncode == 2
    assert "unified-0" in result.stdout and "nonsense" in result.stdout

"""Prefill and decode instances as processes of their own: KV goes from one to the other, and
whoever is lost on the way, clients see what one process would have said."""

import ctypes.util
import signal
import threading
import time

import pytest

from cluster_processes import CONTEXT, Gateway, Process, instance
from generation import assert_same, greedy, in_parallel, prompt, steady
from sluice_server import model_file

PREFILL = ("p0", "p1")
DECODE = ("d0", "d1")
NAMES = PREFILL + DECODE
TOKENS = 40
COUNT = 8


@pytest.fixture(scope="module")
def expected(server):
    """Prompts, and what one process says to each, alone."""
    jobs = {}
    with server.client() as client:
        for i in range(4 * COUNT):
            text = prompt(12 + 6 * (i % COUNT), seed=1300 + i)
            alone = greedy(client, server.model_id(), text, TOKENS)
            if steady(alone):
                jobs[text] = alone
            if len(jobs) == COUNT:
                return jobs
    raise AssertionError(f"only {len(jobs)} prompts have answers that can be compared")


@pytest.fixture(scope="module")
def cluster(log_folder):
    """One gateway, two prefill and two decode instances. Tests leave all of them running."""
    started = []

    def add(process: Process) -> Process:
        started.append(process)
        return process.start()

    gateway = Gateway(log_folder / "apart-gateway.log", "--policy", "round-robin")
    add(gateway)
    gateway.started = started  # for the report of a failed test
    gateway.parts = {}
    for name in NAMES:
        role = "prefill" if name in PREFILL else "decode"
        gateway.parts[name] = add(instance(log_folder / f"apart-{name}.log", name, gateway.join,
                                           "--role", role, "--handoff-lease-seconds", 3,
                                           "--decode-policy", "round-robin"))
    try:
        yield gateway.wait_instances(*NAMES)
    finally:
        for process in reversed(started):
            process.signal(signal.SIGCONT)
        for process in reversed(started):
            process.stop()


def wait_for(condition, limit_s: float = 120):
    deadline = time.monotonic() + limit_s
    while not condition():
        assert time.monotonic() < deadline, f"waited {limit_s} s in vain"
        time.sleep(0.02)


def ask_all(gateway, expected):
    model = gateway.model_id()
    with gateway.client() as client:
        return in_parallel([lambda t=t: greedy(client, model, t, TOKENS) for t in expected])


def expect_same(expected, answers):
    for alone, got in zip(expected.values(), answers):
        assert_same(alone, got)


def ask_all_until(gateway, expected, condition, act):
    """All jobs again and again until `condition` was seen while they ran, then `act`; the
    answers of that round."""
    for _ in range(20):
        box = []
        thread = threading.Thread(target=lambda: box.append(ask_all(gateway, expected)))
        thread.start()
        while thread.is_alive():
            if condition():
                act()
                thread.join(240)
                assert box, "not every request got a whole answer"
                return box[0]
            time.sleep(0.01)
        assert box
    raise AssertionError("it was never seen")


def generating(gateway, name: str) -> bool:
    running = gateway.instances().get(name, {}).get("running", [])
    return any(s["generated"] > 3 for s in running)


def holds_nothing(gateway) -> bool:
    return all(i["blocks"]["granted"] == 0 and not i["running"] and "handoffs" in i and
               i["handoffs"]["leaving"] == 0 and i["handoffs"]["reservations"] == 0
               for i in gateway.instances().values())


def wait_empty(gateway, *names):
    """Nothing is left anywhere: no sequence, block, reservation or kept KV."""
    gateway.wait_instances(*(names or NAMES))
    gateway.wait_idle(limit_s=120)
    wait_for(lambda: holds_nothing(gateway))
    gateway.check_conservation()


def handed_over(gateway) -> int:
    return sum(i.get("handoffs", {}).get("taken", 0) for i in gateway.instances().values())


def wait_joined(gateway, expected, name: str):
    """Until a decode instance takes sequences over (again)."""
    def taken():
        return gateway.instances().get(name, {}).get("handoffs", {}).get("taken", 0)
    before = taken()
    for _ in range(20):
        expect_same(expected, ask_all(gateway, expected))
        if taken() > before:
            return
        time.sleep(0.5)
    raise AssertionError(f"{name} is handed nothing")


def test_outputs_are_those_of_one_process(cluster, expected):
    for name in DECODE:
        wait_joined(cluster, expected, name)
    wait_empty(cluster)
    seen = cluster.metrics()
    moved = sum(v for k, v in seen.items()
                if k.startswith("sluice_handoffs_total{") and 'outcome="moved"' in k
                and 'transport="shm"' in k)
    by_memory = sum(v for k, v in seen.items()
                    if k.startswith("sluice_handoff_bytes_total{") and 'transport="shm"' in k)
    assert moved == handed_over(cluster) >= COUNT // 2 and by_memory > 0
    decided = cluster.get("/debug/decisions")[1].decode()
    assert '"role":"decode"' in decided.replace(" ", "")


def test_a_client_that_leaves_frees_every_side(cluster):
    model = cluster.model_id()
    with cluster.client() as client:
        for i in range(5):
            stream = client.completions.create(model=model, prompt=prompt(60, seed=1400 + i),
                                               max_tokens=700, stream=True,
                                               extra_body={"ignore_eos": True})
            for n, _ in enumerate(stream):
                if n >= 2 * i:
                    break
            stream.close()
    wait_empty(cluster)


@pytest.mark.parametrize("name", ["d0", "p0"])
def test_a_killed_instance_is_not_seen(cluster, expected, name):
    answers = ask_all_until(cluster, expected, lambda: running(cluster, name),
                            lambda: cluster.parts[name].kill())
    expect_same(expected, answers)
    wait_empty(cluster, *(set(NAMES) - {name}))
    cluster.parts[name].start()
    cluster.wait_instances(*NAMES)
    if name in DECODE:
        wait_joined(cluster, expected, name)
    else:
        expect_same(expected, ask_all(cluster, expected))
    wait_empty(cluster)


@pytest.mark.parametrize("name", ["d1", "p1"])
def test_a_frozen_instance_is_not_seen(cluster, expected, name):
    answers = ask_all_until(cluster, expected, lambda: running(cluster, name),
                            lambda: cluster.parts[name].signal(signal.SIGSTOP))
    expect_same(expected, answers)
    wait_empty(cluster, *(set(NAMES) - {name}))
    cluster.parts[name].signal(signal.SIGCONT)
    cluster.wait_instances(*NAMES)
    if name in DECODE:
        wait_joined(cluster, expected, name)
    wait_empty(cluster)


def running(gateway, name: str) -> bool:
    """It has something to lose."""
    if name in DECODE:
        return generating(gateway, name)
    return bool(gateway.instances().get(name, {}).get("running"))


CLUSTER_FILE = """
model: {model}
context: {context}
gateways:
  - port: {port}
    listen: 127.0.0.1:{join}
instances:
  - role: prefill
    kv-memory: 96MiB
    threads: 1
    shared-kv: false
    kv-checksum: true
    kv-tcp: {tcp}
    kv-ucx: {ucx}
  - role: decode
    kv-memory: 96MiB
    threads: 1
    kv-ucx: {ucx}
"""


@pytest.mark.parametrize("transport", [
    "tcp", "grpc", pytest.param("ucx", marks=pytest.mark.skipif(
        not ctypes.util.find_library("ucp"), reason="no UCX here (Debian: libucx0)"))])
def test_cluster_up_with_roles_and_kv_over_the_wire(log_folder, tmp_path, expected, transport):
    file = tmp_path / "cluster.yaml"
    gateway = Gateway(log_folder / "unused.log")  # for asking; `cluster up` starts it
    file.write_text(CLUSTER_FILE.format(model=model_file(), context=CONTEXT, port=gateway.port,
                                        join=gateway.join_port,
                                        tcp="true" if transport == "tcp" else "false",
                                        ucx='"on"' if transport == "ucx" else "auto"))
    up = Process(log_folder / "apart-up.log", "cluster", "up", file).start()
    try:
        gateway.wait_instances("prefill-0", "decode-0", limit_s=120)
        wait_joined(gateway, expected, "decode-0")
        wait_empty(gateway, "prefill-0", "decode-0")
        sent = {k: v for k, v in gateway.metrics().items()
                if k.startswith("sluice_handoff_bytes_total{")}
        assert any(f'transport="{transport}"' in k and v > 0 for k, v in sent.items()), sent
        counted = gateway.instances()["prefill-0"]["handoffs"]["transports"]
        assert counted[transport]["moved"] > 0, counted
    finally:
        up.stop(60)

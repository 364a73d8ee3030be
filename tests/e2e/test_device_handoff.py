"""Prefill and decode on different devices: KV goes from one to the other through the host.

Only where SLUICE_TEST_DEVICE names a device beside the CPU (tools/test_vulkan.sh).
"""

import os

import pytest

from cluster_processes import Gateway, instance
from generation import assert_same, greedy, in_parallel, prompt, steady

DEVICE = os.environ.get("SLUICE_TEST_DEVICE", "")
PATIENT = 300  # seconds: a device in software compiles its kernels in its first steps
TOKENS = 8
COUNT = 2

pytestmark = pytest.mark.skipif(not DEVICE, reason="SLUICE_TEST_DEVICE is not set")


@pytest.fixture(scope="module")
def expected(server):
    """Prompts, and what one process on the CPU says to each."""
    jobs = {}
    with server.client() as client:
        for i in range(4 * COUNT):
            text = prompt(20 + 10 * i, seed=2100 + i)
            alone = greedy(client, server.model_id(), text, TOKENS)
            if steady(alone):
                jobs[text] = alone
            if len(jobs) == COUNT:
                return jobs
    raise AssertionError(f"only {len(jobs)} prompts have answers that can be compared")


@pytest.mark.parametrize("prefill,decode", [("cpu", DEVICE)])
def test_sequences_go_from_device_to_device(log_folder, expected, prefill, decode):
    name = f"device-{prefill}-{decode}".replace(":", "")
    gateway = Gateway(log_folder / f"{name}-gateway.log", "--lease-seconds", PATIENT,
                      "--hung-seconds", PATIENT)
    flags = ("--handoff-lease-seconds", PATIENT, "--decode-policy", "round-robin",
             "--max-batch-tokens", 64, "--max-running", 8)
    started = [gateway]
    gateway.started = started  # for the report of a failed test
    try:
        gateway.start()
        for role, device in (("prefill", prefill), ("decode", decode)):
            started.append(instance(log_folder / f"{name}-{role}.log", role, gateway.join, "--role",
                                    role, "--device", device, *flags).start())
        gateway.wait_instances("prefill", "decode", limit_s=PATIENT)
        model = gateway.model_id()
        with gateway.client() as client:
            slow = client.with_options(timeout=PATIENT, max_retries=0)
            answers = in_parallel([lambda t=t: greedy(slow, model, t, TOKENS) for t in expected])
        for alone, got in zip(expected.values(), answers):
            assert_same(alone, got)
        taken = gateway.instances()["decode"]["handoffs"]["taken"]
        assert taken == COUNT, "the prefill instance decoded by itself"
        gateway.wait_idle(limit_s=120)
        gateway.check_conservation()
    finally:
        for process in reversed(started):
            process.stop()

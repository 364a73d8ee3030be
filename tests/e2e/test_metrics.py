"""What /metrics, /debug and the probes say, and that it moves."""

import json
import threading
import time

import pytest

from generation import greedy, in_parallel, prompt

GAUGES = ["vllm:num_requests_running", "vllm:num_requests_waiting", "vllm:kv_cache_usage_perc"]
COUNTERS = ["vllm:prompt_tokens_total", "vllm:generation_tokens_total",
            "vllm:num_preemptions_total", "vllm:prefix_cache_queries_total",
            "vllm:prefix_cache_hits_total", "vllm:request_success_total",
            "vllm:prompt_tokens_cached_total"]
HISTOGRAMS = ["vllm:time_to_first_token_seconds", "vllm:inter_token_latency_seconds",
              "vllm:e2e_request_latency_seconds", "vllm:request_queue_time_seconds",
              "vllm:request_prompt_tokens", "vllm:request_generation_tokens",
              "vllm:request_params_max_tokens", "vllm:request_params_n",
              "vllm:iteration_tokens_total"]
OURS = ["sluice_windows_total", "sluice_window_demand_blocks", "sluice_window_granted_blocks",
        "sluice_window_early_renewals_total", "sluice_shortfall_total",
        "sluice_forecast_error_tokens", "sluice_step_time_error", "sluice_placements_total",
        "sluice_ledger_tokens", "sluice_speculative_draft_tokens_total"]


def test_exposition_format(server):
    status, body, headers = server.request("GET", "/metrics")
    assert status == 200
    assert headers["Content-Type"].startswith("text/plain")
    typed = set()
    for line in body.decode().splitlines():
        if line.startswith("# TYPE "):
            name = line.split()[2]
            assert name not in typed, f"{name} is declared twice"
            typed.add(name)
        elif line and not line.startswith("#"):
            float(line.rsplit(" ", 1)[1])


def test_names_that_dashboards_and_endpoint_pickers_read(server, client, model):
    greedy(client, model, prompt(20, 1), 4)
    server.wait_idle()
    seen = server.metrics()
    missing = [name for name in GAUGES + COUNTERS + OURS if name not in seen]
    missing += [name for name in HISTOGRAMS if name + "_bucket" not in seen]
    assert not missing
    info = [k for k in seen if k.startswith("vllm:cache_config_info{")]
    assert info and 'block_size="16"' in info[0] and "num_gpu_blocks=" in info[0]
    for name in GAUGES + COUNTERS:
        assert any(k.startswith(name + "{") and 'model_name="' in k for k in seen), name


def test_counters_count_exactly(server, client, model):
    before = server.wait_idle()
    first = client.completions.create(model=model, prompt=prompt(80, 900), max_tokens=21,
                                      temperature=0, extra_body={"ignore_eos": True})
    client.completions.create(model=model, prompt=prompt(80, 900), max_tokens=21, temperature=0,
                              extra_body={"ignore_eos": True})
    after = server.wait_idle()

    def grown(name):
        return after[name] - before.get(name, 0)

    assert grown("vllm:generation_tokens_total") == 42
    assert grown("vllm:prompt_tokens_total") == 2 * first.usage.prompt_tokens
    assert grown("vllm:prompt_tokens_cached_total") >= first.usage.prompt_tokens - 32
    assert grown("vllm:prefix_cache_hits_total") >= first.usage.prompt_tokens - 32
    assert grown("vllm:request_success_total") == 2
    assert grown("vllm:time_to_first_token_seconds_count") == 2
    assert grown("vllm:e2e_request_latency_seconds_count") == 2
    assert grown("vllm:e2e_request_latency_seconds_sum") > 0
    assert grown("vllm:request_generation_tokens_sum") == 42
    assert grown("vllm:inter_token_latency_seconds_count") == pytest.approx(40, abs=2)
    assert grown("sluice_windows_total") >= 1
    reasons = [k for k in after if k.startswith("vllm:request_success_total{")
               and after[k] > before.get(k, 0)]
    assert len(reasons) == 1 and 'finished_reason="length"' in reasons[0]


def test_gauges_rise_under_load_and_fall_after(start):
    server = start("--context", 1024, "--max-running", 2, "--kv-memory", "64MiB")
    model = server.model_id()
    seen = []
    done = threading.Event()

    def watch():
        while not done.wait(0.05):
            sample = server.metrics()
            if "vllm:num_requests_running" in sample:  # they come with the first report
                seen.append(sample)

    watcher = threading.Thread(target=watch)
    watcher.start()
    try:
        with server.client() as client:
            in_parallel([lambda i=i: greedy(client, model, prompt(60, i), 120) for i in range(6)])
    finally:
        done.set()
        watcher.join()
    assert max(s["vllm:num_requests_running"] for s in seen) == 2
    assert max(s["vllm:num_requests_waiting"] for s in seen) >= 2
    assert 0 < max(s["vllm:kv_cache_usage_perc"] for s in seen) <= 1
    after = server.wait_idle()
    assert after["vllm:num_requests_waiting"] == 0


def test_load_says_how_full_and_how_busy_the_device_is(server, client, model):
    def device_once(enough) -> dict:
        deadline = time.monotonic() + 20
        while not enough((seen := server.debug_memory()[0]["device"])["busy"]):
            assert time.monotonic() < deadline, seen
            time.sleep(0.1)
        return seen

    over = threading.Event()

    def load():
        while not over.is_set():
            greedy(client, model, prompt(60, 7), 120)

    loader = threading.Thread(target=load)
    loader.start()
    try:
        seen = device_once(lambda busy: busy > 0.3)
    finally:
        over.set()
        loader.join()
    assert 0 < seen["free_bytes"] <= seen["total_bytes"]
    device_once(lambda busy: busy == 0)
    server.wait_idle()
    now = server.metrics()
    assert now["sluice_device_busy_ratio"] == 0
    assert now["sluice_device_memory_bytes"] == seen["total_bytes"]


def test_debug_memory_shows_windows_and_grants(server, client, model):
    seen = []

    def watch():
        deadline = time.monotonic() + 30
        while time.monotonic() < deadline:
            instance = server.debug_memory()[0]
            if instance["running"]:
                seen.append(instance)
            elif seen:
                return
            time.sleep(0.02)

    in_parallel([watch, lambda: greedy(client, model, prompt(40, 77), 200)])
    assert seen
    for instance in seen:
        blocks = instance["blocks"]
        assert blocks["granted"] + blocks["cached"] + blocks["free"] == blocks["total"]
        assert blocks["written"] <= blocks["granted"]
        for sequence in instance["running"]:
            assert sequence["held_tokens"] <= sequence["granted_tokens"]
    assert max(i["window"]["number"] for i in seen) >= 1


def test_probes(server):
    for path in ("/health", "/ready"):
        assert server.get(path)[0] == 200
    assert json.loads(server.get("/debug/decisions")[1])["decisions"] is not None

"""bench/soak, short: a cluster under load while its parts are killed, frozen and cut off."""

import json
import shutil
import subprocess
import sys

import pytest

from sluice_server import ROOT


@pytest.mark.skipif(not shutil.which("etcd"), reason="no etcd here (Debian: etcd-server)")
def test_every_request_ends_and_nothing_is_left(log_folder):
    out = log_folder / "soak"
    run = subprocess.run([sys.executable, ROOT / "bench/soak", "--faults", "7", "--jobs", "8",
                          "--streams", "6", "--seed", "3", "--out", out],
                         capture_output=True, text=True, timeout=420)
    assert run.returncode == 0, run.stdout[-4000:] + run.stderr[-2000:]
    report = json.loads((out / "soak.json").read_text())
    assert sum(report["faults"].values()) == 7
    assert report["requests"]["whole"] > 10

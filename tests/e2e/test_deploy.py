"""The files of deploy/: valid, and speaking of flags, metrics and files that there are."""

import configparser
import json
import re

import pytest
import yaml

from sluice_server import ROOT, run_sluice

DEPLOY = ROOT / "deploy"
KUBERNETES = DEPLOY / "kubernetes"
VERSION = "1.31"


def documents(path):
    return [d for d in yaml.safe_load_all(path.read_text()) if d]


def flags_of(command: str) -> set[str]:
    return set(re.findall(r"--([a-z][a-z-]+)", run_sluice(command, "--help").stdout))


def test_manifests_keep_to_the_schema():
    kubernetes_validate = pytest.importorskip("kubernetes_validate")
    kustomization = documents(KUBERNETES / "kustomization.yaml")[0]
    kinds = []
    for name in kustomization["resources"]:
        for document in documents(KUBERNETES / name):
            kubernetes_validate.validate(document, VERSION, strict=True)
            kinds.append(document["kind"])
    assert sorted(set(kinds)) == ["Deployment", "Namespace", "PodDisruptionBudget", "Service",
                                  "StatefulSet"]


def test_manifests_fit_together():
    kustomization = documents(KUBERNETES / "kustomization.yaml")[0]
    maps = {m["name"]: m["files"] for m in kustomization["configMapGenerator"]}
    secrets = {s["name"] for s in kustomization["secretGenerator"]}
    for files in maps.values():
        assert all((KUBERNETES / f).exists() for f in files)
    workloads = [d for name in ("gateway.yaml", "instance.yaml") for d in
                 documents(KUBERNETES / name) if d["kind"] in ("Deployment", "StatefulSet")]
    for workload in workloads:
        pod = workload["spec"]["template"]["spec"]
        settings_file = None
        for volume in pod["volumes"]:
            if "configMap" in volume:
                settings_file = maps[volume["configMap"]["name"]][0]
            if "secret" in volume:
                assert volume["secret"]["secretName"] in secrets
        arguments = pod["containers"][0]["args"]
        assert arguments[2].endswith(settings_file)
        settings = documents(KUBERNETES / settings_file)[0]
        assert set(settings) <= flags_of(arguments[0]), arguments[0]
        assert settings["drain-seconds"] < pod["terminationGracePeriodSeconds"]
    services = {d["metadata"]["name"] for name in ("gateway.yaml", "instance.yaml") for d in
                documents(KUBERNETES / name) if d["kind"] == "Service"}
    join = documents(KUBERNETES / "instance-settings.yaml")[0]["join"]
    assert join.split(":")[0] in services


def test_systemd_units_call_what_there_is():
    for path in (DEPLOY / "systemd").iterdir():
        unit = configparser.ConfigParser(strict=False, interpolation=None)
        unit.optionxform = str
        unit.read(path)
        command, *rest = unit["Service"]["ExecStart"].split()[1:]
        assert {a[2:] for a in rest if a.startswith("--")} <= flags_of(command), path.name


def test_dashboard_and_autoscaler_ask_for_metrics_that_there_are():
    sources = "".join(p.read_text() for p in (ROOT / "src/net").glob("*.cpp"))
    dashboard = json.loads((DEPLOY / "grafana/sluice.json").read_text())
    queries = [t["expr"] for p in dashboard["panels"] for t in p["targets"]]
    queries.append((KUBERNETES / "autoscale.yaml").read_text())
    asked = {m for q in queries for m in re.findall(r"\b((?:vllm:|sluice_)\w+)", q)}
    asked -= {"sluice_instance"} | {m for m in asked if m.endswith("-instance")}
    assert len(asked) > 12
    for metric in asked:
        base = re.sub(r"_(bucket|sum|count)$", "", metric)
        assert f'"{base}"' in sources, metric
    ids = [p["id"] for p in dashboard["panels"]]
    assert len(ids) == len(set(ids))


@pytest.mark.parametrize("file", ["cluster.yaml", "cluster-apart.yaml"])
def test_the_example_cluster_is_one_that_can_be_read(file):
    result = run_sluice("cluster", "up", DEPLOY / file, "--check")
    assert result.returncode == 0, result.stderr
    for line in result.stdout.splitlines():
        name, words = line.split(" | sluice ")
        command, *arguments = words.split()
        used = {a[2:].split("=")[0] for a in arguments}
        assert used <= flags_of(command), name

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


def kustomized(folder) -> list[tuple[dict, dict, list[dict]]]:
    """Of a kustomization and those that it stands on: its file, its folder's settings by name of
    the config map, and its documents."""
    kustomization = documents(folder / "kustomization.yaml")[0]
    maps = {m["name"]: folder / m["files"][0] for m in kustomization.get("configMapGenerator", [])}
    own, found = [], []
    for name in kustomization["resources"]:
        path = (folder / name).resolve()
        if path.is_dir():
            found += kustomized(path)
        else:
            own += documents(path)
    return [*found, (kustomization, maps, own)]


@pytest.mark.parametrize("folder", [KUBERNETES, KUBERNETES / "apart"])
def test_manifests_keep_to_the_schema(folder):
    kubernetes_validate = pytest.importorskip("kubernetes_validate")
    kinds = set()
    for _, _, own in kustomized(folder):
        for document in own:
            kubernetes_validate.validate(document, VERSION, strict=True)
            kinds.add(document["kind"])
    assert kinds == {"Deployment", "Namespace", "PodDisruptionBudget", "Service", "StatefulSet"}


@pytest.mark.parametrize("folder", [KUBERNETES, KUBERNETES / "apart"])
def test_manifests_fit_together(folder):
    parts = kustomized(folder)
    secrets = {s["name"] for k, _, _ in parts for s in k.get("secretGenerator", [])}
    services = {d["metadata"]["name"]: d for _, _, own in parts for d in own
                if d["kind"] == "Service"}
    workloads = [(d, maps) for _, maps, own in parts for d in own
                 if d["kind"] in ("Deployment", "StatefulSet")]
    assert len(workloads) == (2 if folder == KUBERNETES else 3)
    for workload, maps in workloads:
        pod = workload["spec"]["template"]["spec"]
        for volume in pod["volumes"]:
            if "configMap" in volume:
                settings_file = maps[volume["configMap"]["name"]]
            if "secret" in volume:
                assert volume["secret"]["secretName"] in secrets
        arguments = pod["containers"][0]["args"]
        settings = documents(settings_file)[0]
        assert arguments[2].endswith(settings_file.name)
        used = set(settings) | {a[2:] for a in arguments if a.startswith("--")}
        assert used <= flags_of(arguments[0]), arguments[0]
        assert settings["drain-seconds"] < pod["terminationGracePeriodSeconds"]
        ports = {p["containerPort"] for p in pod["containers"][0]["ports"]}
        assert int(settings["listen"].split(":")[1]) in ports
        if "join" in settings:
            name, port = settings["join"].split(":")
            assert services[name]["spec"]["ports"][0]["port"] == int(port)


def test_roles_apart_are_roles_that_there_are():
    roles = set()
    for kustomization, _, _ in kustomized(KUBERNETES / "apart"):
        for patch in kustomization.get("patches", []):
            roles |= {p["value"] for p in yaml.safe_load(patch["patch"]) if p["value"] != "--role"}
    assert roles == {"prefill", "decode"}
    assert all(r in run_sluice("instance", "--help").stdout for r in roles)


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

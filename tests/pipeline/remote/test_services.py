"""What configs/kubernetes and configs/services start: valid, and in agreement with itself and with the documents."""

from __future__ import annotations

import re
import shlex
import shutil
import subprocess
from typing import Any

import kubernetes_validate
import pytest
import yaml
from repository import ROOT, systemd_unit

MANIFEST = ROOT / "configs/kubernetes/flink.yaml"
SERVICES = ROOT / "configs/services"
FLINK_PAGE = (ROOT / "docs/flink.md").read_text()
# The oldest and the newest version of Kubernetes that its makers support.
VERSIONS = ("1.34", "1.36")


def manifests() -> list[dict[str, Any]]:
    return list(yaml.safe_load_all(MANIFEST.read_text()))


def of_kind(kind: str) -> dict[str, Any]:
    """{name: manifest} of a kind."""
    return {one["metadata"]["name"]: one for one in manifests() if one["kind"] == kind}


@pytest.mark.parametrize("version", VERSIONS)
def test_manifests_are_valid(version):
    for manifest in manifests():
        kubernetes_validate.validate(manifest, version, strict=True)


def test_a_mistake_in_a_manifest_is_seen():
    manifest = of_kind("Deployment")["layerbeam-taskmanager"]
    manifest["spec"]["template"]["spec"]["containers"][0]["volumeMount"] = []
    with pytest.raises(kubernetes_validate.ValidationError):
        kubernetes_validate.validate(manifest, VERSIONS[-1], strict=True)


def test_services_and_volumes_exist():
    pods = {name: one["spec"]["template"] for name, one in of_kind("Deployment").items()}
    for name, service in of_kind("Service").items():
        assert pods[name]["metadata"]["labels"] == service["spec"]["selector"]
        open_ports = {p["containerPort"] for c in pods[name]["spec"]["containers"] for p in c["ports"]}
        assert {port["port"] for port in service["spec"]["ports"]} <= open_ports
    named = of_kind("ConfigMap").keys() | of_kind("PersistentVolumeClaim").keys()
    for name, pod in pods.items():
        assert of_kind("Deployment")[name]["spec"]["selector"]["matchLabels"] == pod["metadata"]["labels"]
        volumes = {volume["name"]: volume for volume in pod["spec"]["volumes"]}
        mounted = {mount["name"] for container in pod["spec"]["containers"] for mount in container["volumeMounts"]}
        assert mounted == volumes.keys()
        for volume in volumes.values():
            assert volume.get("configMap", volume.get("persistentVolumeClaim", {})).keys() & {"name", "claimName"}
            assert {*volume.get("configMap", {}).values(), *volume.get("persistentVolumeClaim", {}).values()} <= named


def test_pool_and_ports_are_those_of_the_command_in_the_comment():
    comment = " ".join(line.lstrip("# ").rstrip("\\") for line in MANIFEST.read_text().splitlines()[:14])
    task_manager, workers = of_kind("Deployment")["layerbeam-taskmanager"]["spec"]["template"]["spec"]["containers"]
    (pool,) = workers["ports"]
    assert f"--environment_config=localhost:{pool['containerPort']}" in comment
    assert workers["args"] == ["--worker_pool"]
    assert set(map(tuple, map(dict.items, task_manager["volumeMounts"]))) > set(
        map(tuple, map(dict.items, workers["volumeMounts"]))
    )
    (server,) = of_kind("Deployment")["layerbeam-jobserver"]["spec"]["template"]["spec"]["containers"]
    assert {"--job-port=8099", "--artifact-port=8098"} <= set(server["args"])
    assert "port-forward service/layerbeam-jobserver 8099 8098" in comment
    slots = int(re.search(r"numberOfTaskSlots: (\d+)", MANIFEST.read_text())[1])
    replicas = of_kind("Deployment")["layerbeam-taskmanager"]["spec"]["replicas"]
    assert f"--parallelism={slots * replicas} " in comment


def test_the_job_server_is_started_as_the_page_says():
    _, *arguments = shlex.split(systemd_unit(SERVICES / "beam-job-server.service")["Service"]["ExecStart"])
    shown = FLINK_PAGE.split("    java -jar ")[1].split("\n\n")[0].replace("\\\n", "")
    assert set(shlex.split(shown)) - {"beam-runners-flink-1.19-job-server-2.77.0.jar"} < set(arguments)


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="systemd is not installed")
def test_systemd_accepts_the_units(tmp_path):
    for path in SERVICES.iterdir():
        text = re.sub(r"^ExecStart=\S+", "ExecStart=/bin/true", path.read_text(), flags=re.MULTILINE)
        (tmp_path / path.name).write_text(text)
    done = subprocess.run(
        ["systemd-analyze", "verify", *tmp_path.iterdir()], capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stderr) == (0, "")

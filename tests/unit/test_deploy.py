"""Deployment files agree with the code: configuration, metrics, locked dependencies and commands."""

from __future__ import annotations

import json
import re
import runpy
import shutil
import subprocess
import tomllib
from pathlib import Path
from typing import Any

import pytest
import yaml
from agentguard_server.proxy.config.loader import ConfigLoader
from agentguard_server.proxy.telemetry.metric_definitions import METRIC_DEFINITIONS, METRIC_PREFIX
from packaging.requirements import Requirement

from agentguard.cli.doctor_checks import EXTRAS

ROOT = Path(__file__).parents[2]
DEPLOY = ROOT / "deploy"
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
YAML_FILES = sorted(
    path
    for path in [*DEPLOY.rglob("*.yaml"), *(ROOT / ".github").rglob("*.yaml")]
    if path.parent.name != "templates"
)


@pytest.mark.parametrize("path", YAML_FILES, ids=lambda path: str(path.relative_to(ROOT)))
def test_yaml_file_is_valid(path: Path) -> None:
    assert all(isinstance(one, dict) for one in yaml.safe_load_all(path.read_text()))


@pytest.mark.parametrize("name", ["proxy.yaml", "kubernetes/configuration.yaml"])
def test_configuration_of_the_proxy_is_valid(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "example")
    settings = ConfigLoader(file=DEPLOY / name).load()
    assert settings.guard is not None
    assert settings.capture is not None


def test_dashboard_uses_metrics_of_the_proxy() -> None:
    dashboard = json.loads((DEPLOY / "grafana/dashboards/agentguard.json").read_text())
    expressions = [target["expr"] for panel in dashboard["panels"] for target in panel["targets"]]
    suffixes = {"counter": ("_total",), "gauge": ("",), "histogram": ("_bucket",)}
    known = {
        f"{METRIC_PREFIX}{one.name}{suffix}"
        for one in METRIC_DEFINITIONS.values()
        for suffix in suffixes[one.kind]
    }
    used = {name for text in expressions for name in re.findall(rf"{METRIC_PREFIX}\w+", text)}
    assert used
    assert used <= known


def test_compose_file_mounts_files_that_exist() -> None:
    compose = yaml.safe_load((DEPLOY / "compose.yaml").read_text())
    mounts = [mount for service in compose["services"].values() for mount in service.get("volumes", [])]
    sources = [mount.split(":")[0] for mount in mounts if mount.startswith(".")]
    assert sources
    assert [source for source in sources if not (DEPLOY / source).exists()] == []
    named = {mount.split(":")[0] for mount in mounts if not mount.startswith(".")}
    assert named == set(compose["volumes"])


def test_compose_file_publishes_on_loopback_only() -> None:
    compose = yaml.safe_load((DEPLOY / "compose.yaml").read_text())
    ports = [port for service in compose["services"].values() for port in service.get("ports", [])]
    assert ports
    assert all(port.startswith("127.0.0.1:") for port in ports)


def test_locked_dependencies_satisfy_the_project() -> None:
    locked = dict(re.findall(r"^([\w.-]+)==(\S+)", (DEPLOY / "requirements.txt").read_text(), re.MULTILINE))
    extras = PROJECT["optional-dependencies"]
    declared = [*PROJECT["dependencies"], *extras["serve"], *extras["view"], *extras["store"]]
    declared += [*extras["postgres"], *extras["otel"], *extras["chat"]]
    environment = {"python_version": "3.13", "sys_platform": "linux"}
    for requirement in map(Requirement, declared):
        if requirement.name == "agentguard":
            continue
        if requirement.marker is None or requirement.marker.evaluate(environment):
            version = locked.get(requirement.name.lower())
            assert version is not None, f"run `make lock`: {requirement.name} is not locked"
            assert requirement.specifier.contains(version), f"run `make lock`: {requirement} is {version}"


@pytest.mark.parametrize("name", ["test.yaml", "release.yaml", "docs.yaml"])
def test_workflow_runs_make_targets_that_exist(name: str) -> None:
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    workflow = yaml.safe_load((ROOT / ".github/workflows" / name).read_text())
    steps = [step for job in workflow["jobs"].values() for step in job["steps"]]
    used = {
        target
        for step in steps
        for line in step.get("run", "").splitlines()
        for target in line.partition("make ")[2].split()
    }
    assert used
    assert used <= targets


def test_kustomization_renders_proxy_with_its_configuration() -> None:
    if shutil.which("kubectl") is None:
        pytest.skip("kubectl is missing: apt-get install -y kubernetes-client")
    command = ["kubectl", "kustomize", str(DEPLOY / "kubernetes")]
    text = subprocess.run(command, capture_output=True, text=True, check=True, timeout=60).stdout
    objects: dict[str, Any] = {one["kind"]: one for one in yaml.safe_load_all(text)}
    assert sorted(objects) == ["ConfigMap", "Deployment", "Service"]
    pod = objects["Deployment"]["spec"]["template"]["spec"]
    assert pod["volumes"][0]["configMap"]["name"] == objects["ConfigMap"]["metadata"]["name"]
    assert (
        pod["containers"][0]["image"]
        == "agentguard:" + runpy.run_path(str(ROOT / "agentguard/version.py"))["__version__"]
    )


def test_doctor_checks_every_extra() -> None:
    assert set(EXTRAS) == set(PROJECT["optional-dependencies"]) - {"dev", "docs"}


def test_index_for_language_models_is_current() -> None:
    build_index = runpy.run_path(str(ROOT / "tools/write_llms_index.py"))["build_index"]
    message = "run: python tools/write_llms_index.py"
    assert (ROOT / "llms.txt").read_text(encoding="utf-8") == build_index(), message

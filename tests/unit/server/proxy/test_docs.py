"""The proxy's page names every field of the configuration, every metric, every own header and endpoint."""

from __future__ import annotations

import typing
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import yaml
from agentguard_server.proxy.admin.app import AdminApp
from agentguard_server.proxy.admin.openapi import build_openapi
from agentguard_server.proxy.admin.status import ProxyStatus
from agentguard_server.proxy.config.schema import ProxySettings
from pydantic import BaseModel

from agentguard.config.policy import Policy

ROOT = Path(__file__).resolve().parents[4]
PAGE = (ROOT / "docs" / "proxy.md").read_text(encoding="utf-8")


def sections(model: type[BaseModel]) -> Iterator[type[BaseModel]]:
    """Return a model and all nested models, except the policy, which has a separate page."""
    yield model
    for field in model.model_fields.values():
        for inner in nested(field.annotation):
            yield from sections(inner)


def nested(annotation: Any) -> Iterator[type[BaseModel]]:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        if annotation is not Policy:
            yield annotation
        return
    for inner in typing.get_args(annotation):
        yield from nested(inner)


FIELDS = sorted({(one.__name__, name) for one in sections(ProxySettings) for name in one.model_fields})


@pytest.mark.parametrize(("model", "field"), FIELDS)
def test_every_field_is_documented(model: str, field: str) -> None:
    assert f"`{field}`" in PAGE or f"\n### {field}\n" in PAGE or f"### guard, {field}" in PAGE


def test_every_top_section_has_a_heading() -> None:
    headings = {
        part for line in PAGE.splitlines() if line.startswith("### ") for part in line[4:].split(", ")
    }
    assert set(ProxySettings.model_fields) - {"version"} == headings


def test_every_endpoint_is_documented_and_described() -> None:
    gateway: Any = SimpleNamespace(
        guarding=None, settings=SimpleNamespace(ui=SimpleNamespace(enabled=False, store=None), capture=None)
    )
    pool: Any = SimpleNamespace()
    admin = AdminApp(ProxyStatus(gateway, pool))
    paths = build_openapi(admin.endpoints)["paths"]
    assert {one.path for one in admin.endpoints} == set(paths)
    for one in admin.endpoints:
        short = "…/" + one.path.rpartition("/v1/")[2]
        assert f"`{one.path}`" in PAGE or f"`…/{one.path.rpartition('/')[2]}`" in PAGE or f"`{short}`" in PAGE
        assert one.summary
        assert one.method.lower() in paths[one.path]


def test_own_headers_are_documented() -> None:
    import re

    source = "".join(
        path.read_text() for path in (ROOT / "server" / "agentguard_server" / "proxy").rglob("*.py")
    )
    for name in set(re.findall(r'b"(agentguard-[a-z]+)"', source)):
        assert f"`{name}`" in PAGE, name


def test_shown_configuration_is_valid() -> None:
    shown = PAGE.split("# proxy.yaml\n", 1)[1].split("```", 1)[0]
    found = ProxySettings.parse(yaml.safe_load(shown))
    assert [one.name for one in found.backends.replicas] == ["a", "b"]

"""Documentation of the proxy: every configuration field, metric, header and endpoint has a description."""

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
DOCS = ROOT / "docs"
CONFIGURATION = "".join(
    (DOCS / name).read_text(encoding="utf-8") for name in ("proxy-configuration.md", "proxy-keys.md")
)
API = (DOCS / "proxy-api.md").read_text(encoding="utf-8")
OPERATION = (DOCS / "proxy-operation.md").read_text(encoding="utf-8")


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
    assert f"`{field}`" in CONFIGURATION or f"\n## {field}\n" in CONFIGURATION


def test_every_top_section_has_a_heading() -> None:
    headings = {line[3:] for line in CONFIGURATION.splitlines() if line.startswith("## ")}
    sections_of_keys = {"keys", "tenants", "prices"}  # on their own page, by subject
    assert set(ProxySettings.model_fields) - {"version"} - sections_of_keys <= headings


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
        names = (one.path, f"…/{one.path.rpartition('/')[2]}", short)
        assert any(f"`{name}`" in OPERATION for name in names), one.path
        assert one.summary
        assert one.method.lower() in paths[one.path]


def test_own_headers_are_documented() -> None:
    import re

    source = "".join(
        path.read_text() for path in (ROOT / "server" / "agentguard_server" / "proxy").rglob("*.py")
    )
    for name in set(re.findall(r'b"(agentguard-[a-z]+)"', source)):
        assert f"`{name}`" in API, name


def test_shown_configuration_is_valid() -> None:
    shown = (DOCS / "proxy.md").read_text(encoding="utf-8").split("# proxy.yaml\n", 1)[1].split("```", 1)[0]
    found = ProxySettings.parse(yaml.safe_load(shown))
    assert [one.name for one in found.backends.replicas] == ["a", "b"]

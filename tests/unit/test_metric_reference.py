"""The reference of the metrics is complete and up to date."""

from __future__ import annotations

import re

import pytest
from agentguard_server.proxy.telemetry.metric_definitions import METRIC_DEFINITIONS

from tools.write_metric_reference import PAGE, build_page, get_exported_name, list_undescribed_labels


def test_page_is_up_to_date() -> None:
    assert PAGE.read_text(encoding="utf-8") == build_page(), "run python tools/write_metric_reference.py"


def test_every_label_has_a_description() -> None:
    assert list_undescribed_labels() == []


def test_queries_use_existing_metrics_and_labels() -> None:
    queries = build_page().split("## Queries")[1]
    names = {get_exported_name(metric) for metric in METRIC_DEFINITIONS.values()}
    used = {name.removesuffix("_bucket") for name in re.findall(r"agentguard_\w+", queries)}
    assert used
    assert used <= names
    labels = {label for metric in METRIC_DEFINITIONS.values() for label in metric.label_names} | {"le"}
    grouped = {label.strip() for text in re.findall(r"by \(([^)]*)\)", queries) for label in text.split(",")}
    assert grouped <= labels


@pytest.mark.parametrize("path", ["proxy-api.md", "proxy-operation.md", "sessions.md", "deployment.md"])
def test_metrics_named_on_pages_exist(path: str) -> None:
    names = {get_exported_name(metric) for metric in METRIC_DEFINITIONS.values()}
    named = re.findall(r"`((?:guard|agentguard)_\w+_total)", (PAGE.parent / path).read_text(encoding="utf-8"))
    assert {name if name.startswith("agentguard_") else f"agentguard_{name}" for name in named} <= names

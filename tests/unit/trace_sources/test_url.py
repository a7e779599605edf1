from __future__ import annotations

from pathlib import Path

import pytest

from agentguard.errors import ConfigError
from agentguard.trace_sources import TraceQuery, format_trace_url, is_trace_url, parse_trace_url

NOW = 1_000_000.0


@pytest.mark.parametrize(
    ("text", "query"),
    [
        ("langfuse:", TraceQuery(source="langfuse")),
        ("langfuse:?since=2d", TraceQuery(source="langfuse", since=NOW - 172_800)),
        ("phoenix://demo", TraceQuery(source="phoenix", project="demo")),
        (str(Path("phoenix://demo?limit=3")), TraceQuery(source="phoenix", project="demo", limit=3)),
        ("langsmith:my%20agent", TraceQuery(source="langsmith", project="my agent")),
        (
            "phoenix:?since=1w&until=1970-01-12",
            TraceQuery(source="phoenix", since=NOW - 604_800, until=950_400),
        ),
        ("phoenix:?resume=/a/b", TraceQuery(source="phoenix", resume=Path("/a/b"))),
    ],
)
def test_address_gives_query(text: str, query: TraceQuery) -> None:
    assert is_trace_url(text)
    assert parse_trace_url(text, now=NOW) == query


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("runs.json", "not an address"),
        ("phoenix:?sinse=2d", "unknown parameter 'sinse'"),
        ("phoenix:?since=yesterday", "neither a duration"),
        ("phoenix:?since=90m&until=2h", "since is not before until"),
        ("phoenix:?limit=0", "not a positive number"),
        ("phoenix:?limit=x", "not a positive number"),
    ],
)
def test_invalid_address_gives_config_error(text: str, reason: str) -> None:
    with pytest.raises(ConfigError, match=reason):
        parse_trace_url(text)


@pytest.mark.parametrize("text", ["runs", "phoenix", "phoenix.json", "C:/runs"])
def test_file_name_is_no_address(text: str) -> None:
    assert not is_trace_url(text)


def test_unknown_product_is_rejected_with_the_known_ones() -> None:
    assert is_trace_url("logfire://x")
    with pytest.raises(ConfigError, match="named 'logfire'; there are: langfuse, langsmith, phoenix"):
        parse_trace_url("logfire://x")


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("phoenix:/my-project", "phoenix://my-project"),
        ("phoenix://my-project?since=2d", "phoenix://my-project?since=2d"),
        ("langfuse:?since=2d", "langfuse:?since=2d"),
        ("runs/a.json", "runs/a.json"),
    ],
)
def test_format_trace_url_restores_the_slashes(text: str, expected: str) -> None:
    assert format_trace_url(text) == expected

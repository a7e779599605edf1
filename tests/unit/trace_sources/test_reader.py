from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from agentguard.errors import BackendError, ConfigError
from agentguard.trace_sources import TraceQuery, parse_trace_url, read_traces
from agentguard.trajectory.formats import UnreadableRecord, load_records
from agentguard.trajectory.model import Record
from tests.support.trace_server import Answer, LangfuseContract, LangSmithContract, serve
from tests.unit.trajectory.formats.samples import SAMPLES, lines, sample

LANGFUSE_KEYS = {"LANGFUSE_PUBLIC_KEY": "pk", "LANGFUSE_SECRET_KEY": "sk"}


def langfuse_traces(count: int) -> dict[str, dict[str, Any]]:
    document = sample("langfuse.json")
    return {
        f"t{number}": {
            **document["trace"],
            "id": f"t{number}",
            "timestamp": f"2026-03-0{number}T09:00:00.000Z",
            "updatedAt": f"2026-03-0{number}T09:01:00.000Z",
            "observations": document["observations"],
        }
        for number in range(1, count + 1)
    }


@pytest.fixture
def langfuse() -> Iterator[tuple[LangfuseContract, dict[str, str]]]:
    contract = LangfuseContract(traces=langfuse_traces(5))
    with serve(contract) as url:
        yield contract, {**LANGFUSE_KEYS, "LANGFUSE_BASE_URL": url}


@pytest.fixture
def langsmith() -> Iterator[tuple[LangSmithContract, dict[str, str]]]:
    contract = LangSmithContract(project="sea", runs=lines("langsmith.jsonl"))
    with serve(contract) as url:
        yield contract, {"LANGSMITH_ENDPOINT": url, "LANGSMITH_API_KEY": "ls-key", "LANGSMITH_PROJECT": "sea"}


def ids(found: Iterator[Record | UnreadableRecord]) -> list[str]:
    return [one.trajectory.id if isinstance(one, Record) else "unreadable" for one in found]


def test_langfuse_pages_are_read_newest_first(langfuse: tuple[LangfuseContract, dict[str, str]]) -> None:
    _, environment = langfuse
    records = list(read_traces(TraceQuery(source="langfuse"), environment=environment))
    assert ids(iter(records)) == ["t5", "t4", "t3", "t2", "t1"]
    (wanted,) = load_records(SAMPLES / "langfuse.json")
    assert isinstance(records[0], Record)
    assert records[0].trajectory.steps == wanted.trajectory.steps
    assert records[0].annotation.extra["scores"]


def test_langfuse_time_range_and_limit_are_respected(
    langfuse: tuple[LangfuseContract, dict[str, str]],
) -> None:
    _, environment = langfuse
    query = parse_trace_url("langfuse:?since=2026-03-03&limit=2")
    assert ids(read_traces(query, environment=environment)) == ["t5", "t4"]
    assert ids(read_traces(parse_trace_url("langfuse:?since=2026-03-04"), environment=environment)) == [
        "t5",
        "t4",
    ]


def test_resume_file_skips_read_traces_until_they_change(
    langfuse: tuple[LangfuseContract, dict[str, str]], tmp_path: Path
) -> None:
    contract, environment = langfuse
    query = TraceQuery(source="langfuse", resume=tmp_path / "state.jsonl")
    first = read_traces(query, environment=environment)
    assert [next(first), next(first)]
    first.close()  # The caller stopped while it held the second trace, so only the first one counts.
    assert ids(read_traces(query, environment=environment)) == ["t4", "t3", "t2", "t1"]
    assert ids(read_traces(query, environment=environment)) == []
    contract.traces["t2"]["updatedAt"] = "2026-03-09T00:00:00.000Z"
    assert ids(read_traces(query, environment=environment)) == ["t2"]


def test_cut_off_line_of_resume_file_is_skipped_and_a_broken_one_is_an_error(
    langfuse: tuple[LangfuseContract, dict[str, str]], tmp_path: Path
) -> None:
    _, environment = langfuse
    path = tmp_path / "state.jsonl"
    good = '{"id": "t5", "version": "2026-03-05T09:01:00.000Z"}\n'
    path.write_text(good + '{"id": "t4"')
    query = TraceQuery(source="langfuse", resume=path, limit=1)
    assert ids(read_traces(query, environment=environment)) == ["t4"]
    path.write_text("{broken}\n" + good)
    with pytest.raises(ConfigError, match="line 1 is not an entry"):
        list(read_traces(query, environment=environment))


def test_retry_after_is_respected_and_the_read_goes_on(
    langfuse: tuple[LangfuseContract, dict[str, str]],
) -> None:
    contract, environment = langfuse
    contract.failures = [Answer({}, 429, {"retry-after": "0"}), Answer({}, 503, {"retry-after": "0"})]
    assert len(ids(read_traces(TraceQuery(source="langfuse", limit=1), environment=environment))) == 1
    assert len(contract.requests) == 4


def test_missing_trace_is_unreadable_and_the_others_are_read(
    langfuse: tuple[LangfuseContract, dict[str, str]],
) -> None:
    contract, environment = langfuse
    contract.hidden = {"t4"}
    found = read_traces(TraceQuery(source="langfuse"), environment=environment)
    assert ids(found) == ["t5", "unreadable", "t3", "t2", "t1"]


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"LANGFUSE_SECRET_KEY": "wrong"}, r"/api/public/traces: status 401; check LANGFUSE_PUBLIC_KEY"),
        ({"LANGFUSE_SECRET_KEY": ""}, "LANGFUSE_SECRET_KEY is not set"),
        ({"LANGFUSE_BASE_URL": "cloud.langfuse.com"}, "LANGFUSE_BASE_URL is not an address"),
    ],
)
def test_error_names_the_address_and_the_remedy(
    langfuse: tuple[LangfuseContract, dict[str, str]], change: dict[str, str], reason: str
) -> None:
    _, environment = langfuse
    with pytest.raises((BackendError, ConfigError), match=reason) as caught:
        list(read_traces(TraceQuery(source="langfuse"), environment={**environment, **change}))
    assert "wrong" not in str(caught.value)


def test_answer_of_another_server_is_an_error_that_names_the_remedy() -> None:
    class OtherServer(LangfuseContract):
        def answer(
            self, method: str, path: str, params: dict[str, str], body: object, headers: object
        ) -> Answer:
            del method, path, params, body, headers
            return Answer({"status": "ok"})

    with serve(OtherServer(traces={})) as url:
        environment = {**LANGFUSE_KEYS, "LANGFUSE_BASE_URL": url}
        with pytest.raises(BackendError, match="does not have the form of the product's API"):
            list(read_traces(TraceQuery(source="langfuse"), environment=environment))


def test_unreachable_address_is_an_error_after_two_attempts(monkeypatch: pytest.MonkeyPatch) -> None:
    from agentguard.resilience import Backoff, Pipeline, RetryOptions
    from agentguard.trace_sources import json_client

    strategies = (RetryOptions(max_attempts=6, backoff=Backoff(initial_delay_s=0.001, max_delay_s=0.001)),)
    monkeypatch.setattr(json_client, "Pipeline", lambda _: Pipeline(strategies))
    environment = {"PHOENIX_COLLECTOR_ENDPOINT": "http://127.0.0.1:9/v1/traces"}
    with pytest.raises(ConfigError, match=r"127\.0\.0\.1:9/v1/projects/default/traces: not reachable"):
        list(read_traces(TraceQuery(source="phoenix"), environment=environment))


def test_redirect_is_not_followed(langfuse: tuple[LangfuseContract, dict[str, str]]) -> None:
    contract, environment = langfuse
    contract.failures = [Answer({}, 302, {"location": "http://elsewhere.example/"})]
    with pytest.raises(BackendError, match=r"redirects to http://elsewhere.example/; set LANGFUSE_BASE_URL"):
        list(read_traces(TraceQuery(source="langfuse"), environment=environment))


def test_langfuse_project_is_rejected() -> None:
    with pytest.raises(ConfigError, match="the keys select the project"):
        list(read_traces(TraceQuery(source="langfuse", project="x"), environment=LANGFUSE_KEYS))


def test_langsmith_traces_have_all_pages_of_their_runs(
    langsmith: tuple[LangSmithContract, dict[str, str]],
) -> None:
    _, environment = langsmith
    found = list(read_traces(TraceQuery(source="langsmith"), environment=environment))
    wanted = {one.trajectory.id: one.trajectory for one in load_records(SAMPLES / "langsmith.jsonl")}
    assert len(found) == len(wanted) == 2
    for one in found:
        assert isinstance(one, Record)
        outline = [(step.content, step.tool_calls) for step in one.trajectory.steps]
        assert outline == [(step.content, step.tool_calls) for step in wanted[one.trajectory.id].steps]


def test_langsmith_unknown_project_is_named(langsmith: tuple[LangSmithContract, dict[str, str]]) -> None:
    _, environment = langsmith
    with pytest.raises(ConfigError, match="no project 'lake'"):
        list(read_traces(TraceQuery(source="langsmith", project="lake"), environment=environment))


def test_langsmith_running_trace_is_left_out(langsmith: tuple[LangSmithContract, dict[str, str]]) -> None:
    contract, environment = langsmith
    root = next(run for run in contract.runs if run.get("parent_run_id") is None)
    root["end_time"] = None
    assert root["trace_id"] not in ids(read_traces(TraceQuery(source="langsmith"), environment=environment))


@pytest.mark.parametrize(
    ("environment", "url"),
    [
        ({}, "http://localhost:6006"),
        ({"PHOENIX_COLLECTOR_ENDPOINT": "https://x.example/s/me/v1/traces/"}, "https://x.example/s/me"),
        ({"PHOENIX_HOST": "0.0.0.0", "PHOENIX_PORT": "7007"}, "http://localhost:7007"),
        ({"PHOENIX_HOST": "phoenix.internal"}, "http://phoenix.internal:6006"),
        ({"PHOENIX_HOST": "https://phoenix.example"}, "https://phoenix.example"),
    ],
)
def test_phoenix_address_is_read_from_its_variables(environment: dict[str, str], url: str) -> None:
    from agentguard.trace_sources.phoenix import PhoenixSource

    source = PhoenixSource.from_environment(environment, TraceQuery(source="phoenix"))
    assert (source.base_url, source.project) == (url, "default")

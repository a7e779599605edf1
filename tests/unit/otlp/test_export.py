"""Export of a run as spans to a receiver that enforces the protocol, and the import of these spans."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings, strategies as st

from agentguard.detect.base import Finding
from agentguard.errors import BackendError, ConfigError, ResilienceError, RetriesExhausted
from agentguard.guard import Guard
from agentguard.localize.base import Diagnosis, Hypothesis
from agentguard.otlp import encoding as otlp_encoding
from agentguard.otlp.assessed_spans import RunAssessment, build_assessed_spans, load_stored_spans
from agentguard.otlp.exporter import ExportTarget, parse_header, send
from agentguard.otlp.model import OtlpSpan, build_span_id, build_trace_id
from agentguard.otlp.span_builder import build_spans
from agentguard.store import Store
from agentguard.store.db.rows import RecoveryRow
from agentguard.trajectory.formats.otlp_json import FORMAT
from agentguard.trajectory.model import (
    Branch,
    Observation,
    Source,
    Step,
    ToolCall,
    ToolSpec,
    Trajectory,
    Usage,
)
from agentguard.verdict import Verdict
from tests import viewer_runs
from tests.otlp_receiver import Running, receiving

SECRET = "pk-not-to-be-seen"

RUN = Trajectory(
    id="trip/1 ü",
    format="event_log",
    task="Book a room.",
    tools=(ToolSpec(name="book", description="Book.", parameters={"type": "object"}),),
    system_prompts={"": "Be exact.", "clerk": "You book."},
    steps=(
        Step(index=0, source=Source.USER, agent="user", content="Book a room.", started_at=1790000000.123456),
        Step(
            index=1,
            source=Source.AGENT,
            agent="clerk",
            content="I book.",
            reasoning="It is free.",
            tool_calls=(
                ToolCall(id="c1", name="book", arguments={"nights": 2, "deep": {"a": [1, None]}}),
                ToolCall(id="c2", name="book", raw_arguments='{"nights": 3', arguments=None),
                ToolCall(id="c3", name="book", arguments={}),
            ),
            observations=(
                Observation(content="done", call_id="c1", tool="book", is_error=False),
                Observation(content="Error: no JSON", call_id="c2", tool=None, is_error=True),
                Observation(content='{"task": "a trap"}'),
            ),
            started_at=1790000001.5,
            ended_at=1790000003.25,
            usage=Usage(prompt_tokens=10, completion_tokens=5, cached_tokens=2, cost_usd=0.001),
            model="m-1",
        ),
        Step(index=2, source=Source.ENVIRONMENT, agent="", content='{"x": 1}'),
        Step(index=3, source=Source.SYSTEM, agent="system", content=""),
        Step(index=4, source=Source.AGENT, agent="planner", content="Booked."),
    ),
    branches=(
        Branch(
            id="b1",
            fork_step=4,
            reason="It looped.",
            steps=(
                Step(index=4, source=Source.AGENT, agent="clerk", content="Again."),
                Step(
                    index=5, source=Source.AGENT, agent="clerk", content="Once more.", ended_at=1790000009.0
                ),
            ),
        ),
        Branch(id="b2", fork_step=5, parent="b1", steps=(Step(index=5, source=Source.AGENT, agent="clerk"),)),
    ),
)

ASSESSMENT = RunAssessment(
    diagnosis=Diagnosis(
        trajectory_id=RUN.id,
        method="embedded",
        verdict=Verdict.FAILED,
        probability=0.9,
        hypotheses=(
            Hypothesis(step=1, agent="clerk", codes=("mast:x",), probability=0.7, reason="It made it up."),
            Hypothesis(step=99, agent="nobody", probability=0.1),
        ),
    ),
    findings=(Finding(detector="loop", step=1, codes=("mast:y",), probability=0.6, message="It repeats."),),
    recoveries=(
        RecoveryRow(
            id="r1",
            run_id=RUN.id,
            strategy="rollback",
            step=4,
            outcome="recovered",
            data={
                "trigger": "loop",
                "at_step": 6,
                "plan": {"tier": "truncate", "reason": "It looped.", "actions": [{"text": "Do not."}, 7]},
            },
        ),
        RecoveryRow(id="r2", run_id=RUN.id, strategy="stop", data={"plan": "damaged"}),
    ),
)


def as_read(run: Trajectory) -> Trajectory:
    """Return the part of a run that spans can hold: no ``extra``, no modules, no source locations."""

    def step(one: Step, index: int) -> Step:
        calls = tuple(replace(call, extra={}) for call in one.tool_calls)
        seen = tuple(replace(found, extra={}) for found in one.observations)
        return replace(
            one, index=index, extra={}, modules={}, source_index=None, tool_calls=calls, observations=seen
        )

    return replace(
        run,
        format="otlp_json",
        extra={},
        tools=tuple(replace(tool, extra={}) for tool in run.tools),
        steps=tuple(step(one, one.index) for one in run.steps),
        branches=tuple(
            replace(one, extra={}, steps=tuple(step(s, s.index) for s in one.steps)) for one in run.branches
        ),
    )


def read_back(export: dict[str, Any]) -> Trajectory:
    (record,) = FORMAT.parse(export, name="x")
    return as_read(record.trajectory)


def export_of(spans: tuple[OtlpSpan, ...]) -> dict[str, Any]:
    return otlp_encoding.build_request_data(
        "traces", [otlp_encoding.build_span_data(one) for one in spans], service="t"
    )


@pytest.fixture
def receiver(tmp_path: Path) -> Iterator[Running]:
    with receiving(tmp_path) as started:
        yield started


@pytest.mark.parametrize("encoding", ["protobuf", "json"])
def test_run_is_sent_and_read_back_unchanged(receiver: Running, encoding: otlp_encoding.Encoding) -> None:
    sent = send(ExportTarget(endpoint=receiver.url, encoding=encoding), build_assessed_spans(RUN, ASSESSMENT))
    assert (sent.rejected, sent.requests) == (0, 1)
    assert sent.events == 6
    assert read_back(receiver.export()) == as_read(RUN)


def test_recovered_run_round_trips_with_its_branches(receiver: Running, tmp_path: Path) -> None:
    with Store.open(tmp_path / "s.db") as store:
        id = viewer_runs.recovered(store)
        spans = load_stored_spans(store, id)
        run = store.get_trajectory(id)
        assert load_stored_spans(store, "nobody") is None
    assert spans is not None
    assert run is not None
    assert [one for one in spans if one.attributes["openinference.span.kind"] == "GUARDRAIL"]
    send(ExportTarget(endpoint=receiver.url), spans)
    assert read_back(receiver.export()) == as_read(run)


def test_long_run_is_sent_in_batches(receiver: Running) -> None:
    run = viewer_runs.long_run(600)
    sent = send(
        ExportTarget(endpoint=receiver.url),
        build_assessed_spans(run, RunAssessment(findings=Guard().diagnose(run).findings)),
    )
    assert sent.requests == len(receiver.checked()) > 3
    assert all(one["spans"] <= 256 for one in receiver.noted())
    assert read_back(receiver.export()) == as_read(run)


def test_huge_step_is_a_separate_batch(receiver: Running) -> None:
    steps = tuple(Step(index=i, source=Source.AGENT, agent="a", content=f"{i}" * 900_000) for i in range(3))
    send(ExportTarget(endpoint=receiver.url), build_assessed_spans(replace(RUN, steps=steps, branches=())))
    assert len(receiver.checked()) >= 3


def test_evaluations_are_log_records_if_logs_are_accepted(receiver: Running) -> None:
    target = ExportTarget(endpoint=receiver.url, logs_endpoint=f"{receiver.url}/v1/logs")
    assert send(target, build_assessed_spans(RUN, ASSESSMENT)).requests == 2
    traces, logs = receiver.checked()
    assert logs["records"] == 6
    text = str(traces["request"])
    assert "gen_ai.evaluation" not in text
    names = str(logs["request"])
    for name in ("agentguard.verdict", "agentguard.root_cause", "agentguard.loop", "agentguard.recovery"):
        assert name in names


def test_diagnosis_is_not_part_of_the_trajectory() -> None:
    (record,) = FORMAT.parse(export_of(build_assessed_spans(RUN, ASSESSMENT)), name="x")
    assert "made it up" not in str(record.trajectory)
    assert "made it up" in str(record.annotation.extra)


def test_disabled_content_sends_no_text(receiver: Running) -> None:
    send(ExportTarget(endpoint=receiver.url), build_assessed_spans(RUN, ASSESSMENT, include_content=False))
    text = str(receiver.export())
    for word in (
        "Book a room",
        "I book",
        "It is free",
        "no JSON",
        "nights",
        "Be exact",
        "made it up",
        "loop.",
    ):
        assert word not in text
    assert "clerk" in text
    assert "mast:x" in text
    found = read_back(receiver.export())
    assert [one.agent for one in found.steps] == ["user", "clerk", "", "system", "planner"]


def test_repeated_export_is_the_same_trace() -> None:
    assert [one.span_id for one in build_assessed_spans(RUN)] == [
        one.span_id for one in build_assessed_spans(RUN)
    ]
    assert len({one.span_id for one in build_assessed_spans(RUN, ASSESSMENT)}) == len(
        build_assessed_spans(RUN, ASSESSMENT)
    )
    assert build_trace_id("a") != build_trace_id("b")
    assert build_span_id("t", "step", "", 11) != build_span_id("t", "step", "1", 1)


def test_partial_rejection_is_reported(tmp_path: Path) -> None:
    with receiving(tmp_path, "--reject", "2") as one:
        sent = send(ExportTarget(endpoint=one.url), build_assessed_spans(RUN))
    assert (sent.rejected, sent.messages) == (2, ("too old",))


def test_busy_collector_is_retried_after_its_delay(tmp_path: Path) -> None:
    with receiving(tmp_path, "--answers", "503,429", "--retry-after", "1") as one:
        began = time.monotonic()
        sent = send(ExportTarget(endpoint=one.url), build_assessed_spans(RUN))
        assert time.monotonic() - began >= 2
        assert [found["status"] for found in one.noted()] == [503, 429, 200]
    assert sent.requests == 1


@pytest.mark.parametrize(
    ("status", "words"),
    [
        (400, "answered 400"),
        (401, "--otlp-header"),
        (403, "--otlp-header"),
        (307, "redirects"),
        (415, "--otlp-encoding"),
        (500, "500"),
    ],
)
def test_rejected_export_is_not_retried(tmp_path: Path, status: int, words: str) -> None:
    with receiving(tmp_path, "--answers", str(status)) as one:
        with pytest.raises(BackendError, match=words) as error:
            send(ExportTarget(endpoint=one.url, headers={"Authorization": SECRET}), build_assessed_spans(RUN))
        assert len(one.noted()) == 1
    assert SECRET not in str(error.value)
    assert "secret of the collector" not in str(error.value)


def test_headers_are_sent_and_never_shown(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(0)
    with receiving(tmp_path, "--header", f"Authorization=Basic {SECRET}") as one:
        target = ExportTarget(endpoint=one.url, headers=dict([parse_header(f"Authorization=Basic {SECRET}")]))
        send(target, build_assessed_spans(RUN))
        one.checked()
    assert SECRET not in repr(target)
    assert SECRET not in caplog.text


def test_unreachable_collector_is_an_error() -> None:
    with pytest.raises(ResilienceError) as error:
        send(
            ExportTarget(endpoint="http://127.0.0.1:9/v1/traces", total_timeout_s=2.0),
            build_assessed_spans(RUN),
        )
    assert isinstance(error.value, RetriesExhausted)


@pytest.mark.parametrize(
    "endpoint",
    ["", "collector:4318", "ftp://x/v1/traces", "http://", "http://u:p@x/", "http://x:port/", "http://x/a b"],
)
def test_invalid_address_is_rejected(endpoint: str) -> None:
    with pytest.raises(ConfigError) as error:
        ExportTarget(endpoint=endpoint)
    assert "u:p" not in str(error.value)


def test_addresses_and_headers_come_from_environment() -> None:
    environment = {
        "OTEL_EXPORTER_OTLP_ENDPOINT": "http://c:4318/",
        "OTEL_EXPORTER_OTLP_HEADERS": "api-key=a%20b,x=1",
        "OTEL_EXPORTER_OTLP_TRACES_HEADERS": "x=2",
    }
    found = ExportTarget.from_environment(None, {"y": "3"}, environment)
    assert found.endpoint == "http://c:4318/v1/traces"
    assert dict(found.headers) == {"api-key": "a b", "x": "2", "y": "3"}
    assert ExportTarget.from_environment("http://d", {}, environment).endpoint == "http://d/v1/traces"
    assert (
        ExportTarget.from_environment("http://d/api/otel/v1/traces", {}, {}).endpoint
        == "http://d/api/otel/v1/traces"
    )
    with pytest.raises(ConfigError, match="--otlp-endpoint"):
        ExportTarget.from_environment(None, {}, {})


@pytest.mark.parametrize("text", ["x", "=1", "a b=1", "a=1\r\nb: 2", "Content-Length=7"])
def test_invalid_header_is_rejected(text: str) -> None:
    with pytest.raises(ConfigError):
        ExportTarget(endpoint="http://x", headers=dict([parse_header(text)]))


def test_header_may_be_written_with_a_colon() -> None:
    assert parse_header("Authorization: Basic YTpi==") == ("Authorization", "Basic YTpi==")
    assert parse_header("x=a:b") == ("x", "a:b")


TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=30)
CALLS = st.lists(
    st.builds(
        ToolCall,
        id=st.text(min_size=1, max_size=4, alphabet="abc1"),
        name=TEXT,
        arguments=st.one_of(st.none(), st.dictionaries(TEXT, st.integers(-9, 9), max_size=2)),
    ),
    max_size=3,
)
SEEN = st.lists(
    st.builds(
        Observation,
        content=TEXT,
        call_id=st.one_of(st.none(), st.text(max_size=3, alphabet="abc1")),
        tool=st.one_of(st.none(), TEXT),
        is_error=st.sampled_from([None, True, False]),
    ),
    max_size=3,
)


@st.composite
def runs(draw: st.DrawFn) -> Trajectory:
    """Generate runs with ascending step times, which is what spans can represent."""
    steps, at = [], 1.79e9
    for index in range(draw(st.integers(1, 5))):
        source = draw(st.sampled_from(list(Source)))
        agent = source is Source.AGENT
        start = draw(st.one_of(st.none(), st.floats(at, at + 50)))
        end = draw(st.one_of(st.none(), st.floats(at + 60, at + 90)))
        at += 100
        steps.append(
            Step(
                index=index,
                source=source,
                agent=draw(TEXT),
                content=draw(TEXT),
                reasoning=draw(TEXT) if agent else "",
                tool_calls=tuple(draw(CALLS)) if agent else (),
                observations=tuple(draw(SEEN)),
                started_at=start,
                ended_at=end,
                model=draw(st.one_of(st.none(), TEXT)) if agent else None,
                stop_reason=draw(st.one_of(st.none(), TEXT)) if agent else None,
                unknown_parts=tuple(draw(st.lists(TEXT, max_size=2))),
            )
        )
    return Trajectory(
        id=draw(TEXT),
        format="x",
        task=draw(TEXT),
        steps=tuple(steps),
        exit_status=draw(st.one_of(st.none(), TEXT)),
        unknown_parts=draw(st.dictionaries(TEXT, st.integers(1, 9), max_size=2)),
        is_content_recorded=draw(st.booleans()),
    )


@settings(max_examples=150, suppress_health_check=[HealthCheck.too_slow])
@given(runs())
def test_any_run_round_trips(run: Trajectory) -> None:
    assert read_back(export_of(build_assessed_spans(run))) == as_read(run)


def test_descending_times_are_made_ascending() -> None:
    steps = tuple(
        Step(index=i, source=Source.AGENT, agent="a", started_at=at, ended_at=at)
        for i, at in enumerate((50.0, 10.0, float("nan"), -1.0, 1e300))
    )
    made = build_spans(replace(RUN, steps=steps, branches=()), at_s=7.0).spans
    starts = [one.start_ns for one in made[1:]]
    assert starts == sorted(starts)
    assert all(one.end_ns >= one.start_ns > 0 for one in made)


def test_surrogates_and_non_finite_numbers_are_sent(receiver: Running) -> None:
    usage = Usage(prompt_tokens=2**70, cost_usd=float("inf"))
    step = Step(index=0, source=Source.AGENT, agent="\ud800", content="\udfff", usage=usage)
    send(ExportTarget(endpoint=receiver.url), build_assessed_spans(replace(RUN, steps=(step,), branches=())))
    (found,) = receiver.checked()
    assert found["spans"] == 2

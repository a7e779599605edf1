"""Counters of requests and events, summed over several workers, in Prometheus's text format."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from agentguard_server.proxy.hooks import GuardOutcome
from agentguard_server.proxy.telemetry.metric_definitions import METRIC_DEFINITIONS, METRIC_PREFIX
from agentguard_server.proxy.telemetry.metrics import Metrics, MetricSet, extract_token_usage
from agentguard_server.proxy.telemetry.options import MetricsOptions
from agentguard_server.proxy.telemetry.prometheus import render_prometheus
from agentguard_server.proxy.telemetry.worker_snapshots import SnapshotDirectory
from hypothesis import given, settings, strategies as st
from prometheus_client.parser import text_string_to_metric_families

from agentguard.resilience.events import EventKind, ResilienceEvent

from .request_builders import recorded

CHAT = b'{"id":"c","choices":[],"usage":{"prompt_tokens":5,"completion_tokens":7,"total_tokens":12}}'


def read(tally: MetricSet) -> dict[tuple[str, frozenset[tuple[str, str]]], float]:
    """Return the metrics as Prometheus parses them, by name and labels."""
    found = {}
    for family in text_string_to_metric_families(render_prometheus(tally).decode()):
        for sample in family.samples:
            found[sample.name, frozenset(sample.labels.items())] = sample.value
    return found


def labels(**given: str) -> frozenset[tuple[str, str]]:
    return frozenset(given.items())


def test_request_is_counted_with_labels_duration_and_tokens() -> None:
    metrics = Metrics(MetricsOptions(histogram_buckets=(0.1, 1.0)))
    metrics.record(recorded(response_body=CHAT, duration_s=0.5, time_to_first_byte_s=0.05))
    found = read(metrics.collect())
    whole = labels(api="chat", model="m", tenant="t", status="200", replica="a")
    assert found["agentguard_requests_total", whole] == 1
    of = {"api": "chat", "model": "m"}
    assert found["agentguard_request_duration_seconds_bucket", labels(le="0.1", **of)] == 0
    assert found["agentguard_request_duration_seconds_bucket", labels(le="1.0", **of)] == 1
    assert found["agentguard_request_duration_seconds_bucket", labels(le="+Inf", **of)] == 1
    assert found["agentguard_time_to_first_byte_seconds_bucket", labels(le="0.1", **of)] == 1
    assert found["agentguard_request_duration_seconds_sum", labels(**of)] == 0.5
    for kind, number in (("input", 5), ("output", 7)):
        assert found["agentguard_tokens_total", labels(kind=kind, tenant="t", **of)] == number


def test_duration_on_bucket_bound_counts_within_bucket() -> None:
    metrics = Metrics(MetricsOptions(histogram_buckets=(0.1, 1.0)))
    metrics.record(recorded(duration_s=0.1, time_to_first_byte_s=None))
    found = read(metrics.collect())
    assert found["agentguard_request_duration_seconds_bucket", labels(le="0.1", api="chat", model="m")] == 1
    assert found["agentguard_time_to_first_byte_seconds_count", labels(api="chat", model="m")] == 0


def test_client_values_do_not_become_labels() -> None:
    metrics = Metrics(MetricsOptions(max_models=2))
    for number in range(500):
        metrics.record(recorded(model=f"made-up-{number}", status=404))
    for model in ("real", "other-real", "third"):
        metrics.record(recorded(model=model, status=200))
    models = {key[1] for key in metrics.collect().values["requests"]}
    assert models == {"other", "real", "other-real"}
    assert sum(metrics.collect().values["requests"].values()) == 503


def test_series_limit_loses_no_counts() -> None:
    metrics = Metrics(MetricsOptions(max_series=10, max_models=1000))
    for number in range(300):
        metrics.record(recorded(model=f"m{number % 50}", tenant=f"t{number % 7}", status=200 + number % 3))
    numbers = metrics.collect().values["requests"]
    assert sum(numbers.values()) == 300
    assert len(numbers) <= 10 + 5


def test_errors_notes_and_guard_actions_are_counted() -> None:
    metrics = Metrics()
    seen = (("loop.exact", 1), ("tool:error", 2))
    for findings in (seen, (*seen, ("other", 3))):
        metrics.record(
            recorded(
                status=502,
                error_code="backend_error",
                is_complete=False,
                notes=(("hedged", "1"), ("attempts", "2")),
                guard_outcome=GuardOutcome(
                    run_id="r",
                    step=4,
                    findings=findings,
                    recoveries=(("rollback", 3),),
                    stream_mode="buffer_tool_calls",
                ),
            )
        )
    numbers = metrics.collect().values
    assert numbers["request_errors"] == {("chat", "backend_error"): 2}
    assert numbers["responses_aborted"] == {("chat",): 2}
    assert numbers["upstream_interventions"] == {("hedged",): 2, ("attempts",): 2}
    assert numbers["guard_findings"] == {("loop.exact",): 1, ("tool:error",): 1, ("other",): 1}
    assert numbers["guard_recoveries"] == {("rollback",): 2}
    assert numbers["guard_buffered_streams"] == {("buffer_tool_calls",): 2}


def test_pipeline_events_are_counted() -> None:
    metrics = Metrics()
    for kind, more in (
        (EventKind.RETRY, {"reason": "backend_error"}),
        (EventKind.SHED, {"reason": "queue full"}),
        (EventKind.BREAKER, {"reason": "open", "target": "a"}),
    ):
        metrics(ResilienceEvent(kind=kind, at=0.0, source="s", **more))
    found = read(metrics.collect())
    assert found["agentguard_retries_total", labels(reason="backend_error")] == 1
    assert found["agentguard_shed_requests_total", labels(reason="queue full")] == 1
    assert found["agentguard_breaker_state", labels(target="a")] == 2
    metrics(ResilienceEvent(kind=EventKind.BREAKER, at=1.0, source="s", reason="closed", target="a"))
    assert read(metrics.collect())["agentguard_breaker_state", labels(target="a")] == 0


def test_failing_source_does_not_hide_others() -> None:
    metrics = Metrics()

    def broken() -> list[tuple[str, tuple[str, ...], float]]:
        raise RuntimeError

    metrics.add_source(broken)
    metrics.add_source(
        lambda: [("capture_dropped", (), 3), ("no such family", (), 1), ("capture_accepted", ("extra",), 1)]
    )
    numbers = metrics.collect().values
    assert numbers["capture_dropped"] == {(): 3}
    assert "no such family" not in numbers
    assert "capture_accepted" not in numbers


def test_label_values_are_escaped() -> None:
    metrics = Metrics()
    metrics.record(recorded(model='a"b\\c\nd', tenant="é"))
    found = read(metrics.collect())
    whole = labels(api="chat", model='a"b\\c\nd', tenant="é", status="200", replica="a")
    assert found["agentguard_requests_total", whole] == 1


def test_each_metric_family_has_its_own_name() -> None:
    tally = MetricSet((1.0,))
    for family in METRIC_DEFINITIONS.values():
        if family.kind != "histogram":
            tally.set_value(family.name, tuple("x" for _ in family.label_names), 1)
    shown = {family.name for family in text_string_to_metric_families(render_prometheus(tally).decode())}
    assert shown == {
        METRIC_PREFIX + one.name for one in METRIC_DEFINITIONS.values() if one.kind != "histogram"
    }


@pytest.mark.parametrize(
    ("answer", "expected"),
    [
        (CHAT, (5, 7)),
        (b'{"usage":{"prompt_tokens":5,"total_tokens":12,"completion_tokens":7}}', (5, 7)),
        (b'{"usage": {"input_tokens": 3, "input_tokens_details": {}, "output_tokens": 4}}', (3, 4)),
        (b'{"data":[],"usage":{"prompt_tokens":8,"total_tokens":8}}', (8, 0)),
        (b"", (0, 0)),
        (b'{"error":"no"}', (0, 0)),
        (b'{"content":"\\"usage\\":{\\"prompt_tokens\\":99}"}', (0, 0)),
        (b'{"content":"\\"usage\\":{\\"prompt_tokens\\":99,\\"completion_tokens\\":1}"' + CHAT[10:], (5, 7)),
        (b'data: {"usage":null}\n\ndata: ' + CHAT + b"\n\ndata: [DONE]\n\n", (5, 7)),
        (
            b'data: {"type":"message_start","message":{"usage":{"input_tokens":11,"output_tokens":1}}}\n\n'
            + b'data: {"type":"ping"}\n\n' * 1000
            + b'data: {"type":"message_delta","usage":{"output_tokens":42}}\n\n',
            (11, 42),
        ),
    ],
)
def test_token_usage_is_found_at_start_and_end(answer: bytes, expected: tuple[int, int]) -> None:
    assert extract_token_usage(answer) == expected


@settings(max_examples=50)
@given(st.text(max_size=200))
def test_text_of_model_is_not_read_as_usage(text: str) -> None:
    import json

    said = json.dumps({"content": f'{text}"usage":{{"prompt_tokens":77,"completion_tokens":77}}'}).encode()
    assert extract_token_usage(said) == (0, 0)
    assert extract_token_usage(said[:-1] + b"," + CHAT[1:]) == (5, 7)


def counted(number: int) -> MetricSet:
    metrics = Metrics()
    for _ in range(number):
        metrics.record(recorded(duration_s=0.2))
    metrics.add_source(lambda: [("requests_in_flight", (), 2), ("backend_panic_mode", (), 1)])
    return metrics.collect()


def test_counts_of_workers_persist_and_are_summed(tmp_path: Path) -> None:
    folder = tmp_path / "board"
    mine = SnapshotDirectory(folder, 0)
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as other:
        theirs = SnapshotDirectory(folder, 1)
        theirs._pid = other.pid
        theirs.publish(counted(3), {"x": 1})
        (sheet,) = mine.list_live_snapshots()
        assert (sheet.worker, sheet.status, sheet.is_fresh) == (1, {"x": 1}, True)
        whole = counted(2)
        whole.merge(sheet.metrics)
        key = ("chat", "m", "t", "200", "a")
        assert whole.values["requests"][key] == 5
        assert whole.values["requests_in_flight"][()] == 4
        assert whole.values["backend_panic_mode"][()] == 1
        assert whole.histograms["request_duration_seconds"]["chat", "m"].sum == pytest.approx(1.0)
        other.kill()
    for _ in range(2):  # it is not added twice
        sheets, gone = mine.read_metrics()
        assert sheets == []
        assert gone is not None
        assert gone.values["requests"][key] == 3
        assert "requests_in_flight" not in gone.values
    assert mine.list_live_snapshots() == []
    assert not [name for name in os.listdir(folder) if name.startswith("worker")]


def test_ended_worker_keeps_its_counts(tmp_path: Path) -> None:
    first, second = SnapshotDirectory(tmp_path, 0), SnapshotDirectory(tmp_path, 1)
    first.publish(counted(1), {})
    first.withdraw()
    _, gone = second.read_metrics()
    assert gone is not None
    assert sum(gone.values["requests"].values()) == 1


def test_worker_that_ends_during_collection_counts_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    mine, theirs = SnapshotDirectory(tmp_path, 0), SnapshotDirectory(tmp_path, 1)
    theirs._pid = os.getppid()
    theirs.publish(counted(3), {})
    lives = iter([True])
    monkeypatch.setattr(
        "agentguard_server.proxy.telemetry.worker_snapshots._is_process_alive", lambda _: next(lives, False)
    )
    for _ in range(3):
        sheets, gone = mine.read_metrics()
        tallies = [*(sheet.metrics for sheet in sheets), *([gone] if gone is not None else [])]
        assert sum(sum(one.values["requests"].values()) for one in tallies) == 3


def test_malformed_sheet_is_ignored(tmp_path: Path) -> None:
    board = SnapshotDirectory(tmp_path, 0)
    pid = os.getppid()
    for worker, text in enumerate(("[]", "{", '{"at": 1, "tally": {}}', '{"at": "x", "tally": 3}')):
        (tmp_path / f"worker-{worker}-{pid}.json").write_text(text)
    assert board.list_live_snapshots() == []
    assert board.read_metrics() == ([], None)


def test_metrics_folder_is_private() -> None:
    folder = SnapshotDirectory.create_folder()
    try:
        assert folder.stat().st_mode & 0o77 == 0
    finally:
        folder.rmdir()


def test_missing_folder_means_one_worker() -> None:
    board = SnapshotDirectory(None)
    board.publish(counted(1), {})
    assert board.list_live_snapshots() == []
    assert board.read_metrics() == ([], None)

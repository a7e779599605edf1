from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from agentguard.errors import EventLogError, FormatError
from agentguard.trajectory.event_log.log_file import EventLog, read_log, write_log
from agentguard.trajectory.event_log.recorder import RunRecorder, build_events
from agentguard.trajectory.formats.base import UnreadableRecord
from agentguard.trajectory.formats.reader import load_records
from agentguard.trajectory.model import Annotation, Branch, Record, Source, Step, ToolCall, Trajectory

META = Trajectory(id="run", format="event_log", task="count", steps=())


def said(text: str) -> Step:
    return Step(index=0, source=Source.AGENT, agent="a", content=text)


def live(record: Record) -> list[str]:
    return [step.content for step in record.trajectory.steps]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "log.jsonl"


class TestRecorder:
    def test_steps_are_numbered_in_order(self) -> None:
        recorder = RunRecorder(META)
        assert [recorder.add(said(text)).index for text in "abc"] == [0, 1, 2]
        assert len(recorder) == 3
        assert live(recorder.record) == ["a", "b", "c"]

    def test_fork_moves_later_steps_to_a_branch(self) -> None:
        recorder = RunRecorder(META)
        for text in "abc":
            recorder.add(said(text))
        left = recorder.fork(1, reason="wrong turn")
        recorder.add(said("d"))
        assert [step.content for step in left.steps] == ["b", "c"]
        assert (left.fork_step, left.parent, left.reason) == (1, None, "wrong turn")
        assert live(recorder.record) == ["a", "d"]
        assert recorder.trajectory.branches == (left,)

    def test_fork_before_a_fork_moves_its_branch(self) -> None:
        recorder = RunRecorder(META)
        for text in "abc":
            recorder.add(said(text))
        inner = recorder.fork(2)
        recorder.add(said("d"))
        outer = recorder.fork(1)
        found = {branch.id: branch for branch in recorder.trajectory.branches}
        assert found[inner.id].parent == outer.id
        assert found[outer.id].parent is None
        assert [step.content for step in found[outer.id].steps] == ["b", "d"]

    def test_fork_at_the_same_step_keeps_earlier_branch_on_current_branch(self) -> None:
        recorder = RunRecorder(META)
        for text in "ab":
            recorder.add(said(text))
        first = recorder.fork(1)
        recorder.add(said("c"))
        recorder.fork(1)
        assert {b.id: b.parent for b in recorder.trajectory.branches}[first.id] is None

    @pytest.mark.parametrize("at", [-1, 2])
    def test_fork_outside_the_run_is_rejected(self, at: int) -> None:
        recorder = RunRecorder(META)
        recorder.add(said("a"))
        with pytest.raises(FormatError, match="1 steps"):
            recorder.fork(at)
        assert live(recorder.record) == ["a"]

    def test_step_after_the_end_is_rejected(self) -> None:
        recorder = RunRecorder(META)
        assert recorder.end().trajectory == META
        for late in (lambda: recorder.add(said("x")), lambda: recorder.fork(0), recorder.end):
            with pytest.raises(EventLogError, match="has ended"):
                late()

    def test_log_equals_recorder(self, path: Path) -> None:
        with EventLog(path, fsync=True) as log:
            recorder = RunRecorder(META, log=log)
            for text in "abc":
                recorder.add(said(text))
                assert list(read_log(path)) == [recorder.record], "every event is on disk before the next"
            recorder.fork(2, reason="x")
            recorder.fork(1, branch="mine")
            recorder.annotate(Annotation(failed=True, step_labels={0: 1}))
            record = recorder.end()
        assert list(read_log(path)) == [record]


class TestResume:
    def test_run_is_resumed(self, path: Path) -> None:
        with RunRecorder(META, log=EventLog(path)) as first:
            first.add(said("a"))
            first.add(said("b"))
        with RunRecorder.resume(path) as second:
            second.fork(1)
            second.add(said("c"))
            assert list(read_log(path)) == [second.end()]
        with pytest.raises(EventLogError, match="has ended"):
            RunRecorder.resume(path)

    def test_crash_within_a_write_is_resumed(self, path: Path) -> None:
        with RunRecorder(META, log=EventLog(path)) as first:
            first.add(said("a"))
            first.add(said("lost"))
        path.write_bytes(path.read_bytes()[:-9])
        with RunRecorder.resume(path) as second:
            assert len(second) == 1
            second.add(said("b"))
        broken, record = read_log(path)
        assert isinstance(broken, UnreadableRecord)
        assert broken.error.record == 2
        assert isinstance(record, Record)
        assert live(record) == ["a", "b"]

    def test_missing_run_cannot_be_resumed(self, path: Path) -> None:
        with pytest.raises(EventLogError, match="cannot be opened"):
            RunRecorder.resume(path)
        path.write_text("")
        with pytest.raises(EventLogError, match="empty"):
            RunRecorder.resume(path)
        path.write_text('{"event": "step"}\n')
        with pytest.raises(EventLogError, match="precedes the header"):
            RunRecorder.resume(path)


class TestLog:
    def test_truncated_last_line_is_reported_and_the_rest_is_read(self, path: Path) -> None:
        record = Record(trajectory=Trajectory(id="r", format="x", task="", steps=(said("a"),)))
        write_log(record, path)
        whole = path.read_bytes()
        lines = whole.splitlines(keepends=True)
        for cut in range(len(lines[0]) + 1, len(whole) - 1):
            path.write_bytes(whole[:cut])
            found = list(read_log(path))
            assert sum(isinstance(one, Record) for one in found) == 1
            torn = [one for one in found if isinstance(one, UnreadableRecord)]
            assert len(torn) <= 1

    def test_truncated_line_is_ended_when_log_is_opened(self, path: Path) -> None:
        path.write_bytes(b'{"event": "hea')
        write_log(Record(trajectory=META), path)
        broken, record = read_log(path)
        assert isinstance(broken, UnreadableRecord)
        assert record == Record(trajectory=META)

    def test_complete_last_line_without_newline_is_read(self, path: Path) -> None:
        write_log(Record(trajectory=META), path)
        path.write_bytes(path.read_bytes().rstrip(b"\n"))
        write_log(Record(trajectory=META), path)
        assert list(read_log(path)) == [Record(trajectory=META)] * 2

    def test_runs_are_appended(self, path: Path) -> None:
        for _ in range(3):
            write_log(Record(trajectory=META), path)
        assert len(load_records(path)) == 3

    def test_unopenable_log_is_an_error(self, tmp_path: Path) -> None:
        with pytest.raises(EventLogError, match="cannot be opened"):
            EventLog(tmp_path / "no" / "log.jsonl")
        with pytest.raises(EventLogError, match="cannot be opened"):
            EventLog(tmp_path)

    def test_closed_log_is_an_error(self, path: Path) -> None:
        log = EventLog(path)
        log.close()
        log.close()
        with pytest.raises(EventLogError, match="cannot be written"):
            log.append({"event": "end"})

    @pytest.mark.skipif(not os.path.exists("/dev/full"), reason="needs /dev/full")
    def test_full_disk_is_an_error(self, path: Path) -> None:
        path.symlink_to("/dev/full")
        with EventLog(path) as log, pytest.raises(EventLogError, match="cannot be written"):
            log.append({"event": "end"})

    def test_failed_write_does_not_corrupt_the_next(
        self, path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        class Full:
            """A file that takes some bytes and then has no space, once."""

            def __init__(self, file: Any) -> None:
                self.file, self.left = file, 5

            def write(self, data: bytes) -> int:
                if self.left == 0:
                    self.left = -1
                    raise OSError(28, "No space left on device")
                taken = data[: self.left] if self.left > 0 else data
                self.left = 0 if self.left > 0 else self.left
                return int(self.file.write(taken))

            def close(self) -> None:
                self.file.close()

        with EventLog(path) as log:
            recorder = RunRecorder(META, log=log)
            monkeypatch.setattr(log, "_file", Full(log._file))
            with pytest.raises(EventLogError, match="No space"):
                recorder.add(said("lost"))
            recorder.add(said("kept"))
        broken, record = read_log(path)
        assert isinstance(broken, UnreadableRecord)
        assert isinstance(record, Record)
        assert live(record) == ["kept"]

    def test_non_json_values_are_rejected_and_non_finite_numbers_become_text(self, path: Path) -> None:
        call = ToolCall(id="1", name="f", arguments={"x": float("nan"), "y": "\ud800", "z": 2**70})
        with RunRecorder(META, log=EventLog(path)) as recorder:
            recorder.add(Step(index=0, source=Source.AGENT, agent="a", tool_calls=(call,)))
            with pytest.raises(FormatError, match="not JSON data"):
                recorder.add(Step(index=0, source=Source.AGENT, agent="a", extra={"x": object()}))
            assert len(recorder) == 1
        (record,) = load_records(path)
        arguments = record.trajectory.steps[0].tool_calls[0].arguments
        assert arguments == {"x": "NaN", "y": "\ufffd", "z": str(2**70)}


HEADER: dict[str, Any] = {"event": "header", "version": 1, "id": "r", "format": "x", "task": ""}
STEP: dict[str, Any] = {"event": "step", "step": {"index": 0, "source": "agent", "agent": "a"}}


class TestEvents:
    def read(self, path: Path, *events: Any) -> list[Any]:
        path.write_text("".join(json.dumps(event) + "\n" for event in events))
        return list(read_log(path))

    @pytest.mark.parametrize(
        ("event", "reason"),
        [
            ({**STEP, "step": {"index": 1, "source": "agent", "agent": "a"}}, "expected step 0, found 1"),
            ({**STEP, "branch": "b"}, "undeclared branch"),
            ({**STEP, "step": {"index": 0, "source": "robot", "agent": "a"}}, "expected one of system"),
            ({**STEP, "step": {"index": 0, "source": "agent"}}, "missing"),
            ({"event": "fork", "branch": "b", "at": 5}, "0 steps"),
            ({"event": "fork", "branch": "b", "at": "x"}, "whole number"),
            ({"event": "dance"}, "expected one of header"),
            ({"no": "event"}, "missing"),
            ([1], "expected an object"),
            ({"event": "annotation", "annotation": {"step_labels": {"x": 1}}}, "whole number"),
        ],
    )
    def test_invalid_event_breaks_only_its_run(self, path: Path, event: Any, reason: str) -> None:
        found = self.read(path, HEADER, event, STEP, {"event": "end"}, HEADER, STEP)
        broken, record = found
        assert isinstance(broken, UnreadableRecord)
        assert reason in broken.error.reason
        assert broken.error.record == 1
        assert len(record.trajectory.steps) == 1

    def test_later_version_is_rejected(self, path: Path) -> None:
        (broken,) = self.read(path, {**HEADER, "version": 2})
        assert "version 2, this agentguard reads 1" in str(broken.error)

    def test_events_before_a_header_are_an_error(self, path: Path) -> None:
        broken, record = self.read(path, STEP, {"event": "end"}, HEADER)
        assert "precedes the header" in str(broken.error)
        assert isinstance(record, Record)

    def test_branch_is_declared_once(self, path: Path) -> None:
        declared = {"event": "branch", "branch": "b", "fork_step": 0}
        (broken,) = self.read(path, HEADER, declared, declared)
        assert "already exists" in str(broken.error)

    def test_nested_branches_are_read(self, path: Path) -> None:
        def steps(line: str, begins: int = 0) -> tuple[Step, ...]:
            return tuple(
                Step(index=begins + i, source=Source.AGENT, agent="a", content=c) for i, c in enumerate(line)
            )

        run = Trajectory(
            id="r",
            format="x",
            task="",
            steps=steps("abc"),
            branches=(
                Branch(id="one", fork_step=1, steps=steps("de", 1), reason="r", extra={"k": [1]}),
                Branch(id="two", fork_step=2, steps=steps("f", 2), parent="one"),
                Branch(id="none", fork_step=0, steps=()),
            ),
        )
        assert self.read(path, *build_events(Record(trajectory=run))) == [Record(trajectory=run)]

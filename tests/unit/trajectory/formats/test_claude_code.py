from __future__ import annotations

import itertools
from typing import Any

import pytest
from hypothesis import given, settings, strategies as st

from agentguard.trajectory.formats.base import UnreadableRecord
from agentguard.trajectory.formats.reader import load_records, read
from agentguard.trajectory.model import Record, Source, Trajectory, Usage
from tests.unit.trajectory.formats.samples import lines

SESSION = "s1"


def event(kind: str, uuid: str, parent: str | None, **fields: Any) -> dict[str, Any]:
    return {"type": kind, "uuid": uuid, "parentUuid": parent, "sessionId": SESSION, **fields}


def user(uuid: str, parent: str | None, content: Any, **fields: Any) -> dict[str, Any]:
    return event("user", uuid, parent, message={"role": "user", "content": content}, **fields)


def assistant(
    uuid: str, parent: str | None, id: str, *parts: dict[str, Any], **fields: Any
) -> dict[str, Any]:
    message = {"id": id, "role": "assistant", "content": list(parts), "usage": {"output_tokens": 7}}
    return event("assistant", uuid, parent, message=message, **fields)


def text(value: str) -> dict[str, Any]:
    return {"type": "text", "text": value}


def call(id: str, **arguments: Any) -> dict[str, Any]:
    return {"type": "tool_use", "id": id, "name": "Bash", "input": arguments}


def result(id: str, content: str, **fields: Any) -> list[dict[str, Any]]:
    return [{"type": "tool_result", "tool_use_id": id, "content": content, **fields}]


def runs(*events: Any) -> list[Trajectory]:
    return [record.trajectory for record in load_records(list(events), format="claude_code")]


def contents(run: Trajectory) -> list[str]:
    return [step.content for step in run.steps]


class TestTurns:
    def test_lines_of_one_message_are_one_turn_with_usage_once(self) -> None:
        (run,) = runs(
            user("u", None, "go"),
            assistant("a", "u", "m", {"type": "thinking", "thinking": "hm"}),
            assistant("b", "a", "m", text("yes")),
        )
        step = run.steps[1]
        assert (step.reasoning, step.content, step.usage) == ("hm", "yes", Usage(completion_tokens=7))
        assert len(run.steps) == 2

    def test_parallel_calls_fork_the_lines_but_not_the_run(self) -> None:
        (run,) = runs(
            user("u", None, "go"),
            assistant("a", "u", "m", call("c1")),
            assistant("b", "a", "m", call("c2")),
            user("r1", "a", result("c1", "one")),
            user("r2", "b", result("c2", "two")),
            assistant("d", "r2", "n", text("done")),
        )
        assert run.branches == ()
        assert [seen.content for seen in run.steps[1].observations] == ["one", "two"]
        assert run.steps[2].content == "done"

    def test_error_tag_sets_the_error_flag(self) -> None:
        (run,) = runs(
            assistant("a", None, "m", call("c")),
            user("r", "a", result("c", "<tool_use_error>no</tool_use_error>")),
        )
        assert run.steps[0].observations[0].is_error is True

    def test_copy_of_the_result_is_ignored(self) -> None:
        (run,) = runs(
            assistant("a", None, "m", call("c")),
            user("r", "a", result("c", "out"), toolUseResult={"stdout": "out", "agentId": "x9"}),
        )
        (seen,) = run.steps[0].observations
        assert (seen.content, seen.extra) == ("out", {"agent_id": "x9"})

    def test_result_without_its_call_is_an_environment_step(self) -> None:
        (run,) = runs(user("r", None, result("lost", "out", is_error=True)))
        assert (run.steps[0].source, run.steps[0].extra["is_error"]) == (Source.ENVIRONMENT, True)

    def test_image_of_the_user_is_counted_as_unknown(self) -> None:
        (run,) = runs(user("u", None, [{"type": "image", "source": {}}, text("see")]))
        assert (run.unknown_parts, run.task) == ({"image": 1}, "see")


class TestTree:
    def test_edited_prompt_leaves_a_branch(self) -> None:
        (run,) = runs(
            user("u1", None, "go"),
            assistant("a", "u1", "m", text("left")),
            user("u2", "a", "wrong"),
            assistant("b", "u2", "n", text("lost")),
            user("u3", "a", "right"),
        )
        assert contents(run) == ["go", "left", "right"]
        (branch,) = run.branches
        assert (branch.fork_step, [step.content for step in branch.steps]) == (2, ["wrong", "lost"])

    def test_edited_first_prompt_leaves_a_branch(self) -> None:
        (run,) = runs(
            user("u1", None, "go"), assistant("a", "u1", "m", text("left")), user("u2", None, "stay")
        )
        assert contents(run) == ["stay"]
        assert [(branch.fork_step, len(branch.steps)) for branch in run.branches] == [(0, 2)]

    def test_lines_without_parents_are_in_file_order(self) -> None:
        (run,) = runs(user("u1", None, "a"), assistant("x", None, "m", text("b")), user("u2", None, "c"))
        assert (contents(run), run.branches) == (["a", "b", "c"], ())

    def test_children_of_a_line_without_content_follow_its_parent(self) -> None:
        (run,) = runs(
            user("u", None, "a"), event("progress", "p", "u", data={}), assistant("x", "p", "m", text("b"))
        )
        assert (contents(run), run.branches) == (["a", "b"], ())

    def test_compaction_continues_the_run(self) -> None:
        (run,) = runs(
            user("u1", None, "a"),
            assistant("x", "u1", "m", text("b")),
            event("system", "c", None, subtype="compact_boundary", content="cut", logicalParentUuid="x"),
            user("c2", "c", "so far", isCompactSummary=True),
            user("u2", "c2", "d"),
        )
        assert contents(run) == ["a", "b", "cut", "so far", "d"]
        assert [step.source for step in run.steps[2:]] == [Source.SYSTEM, Source.SYSTEM, Source.USER]

    def test_repeated_history_of_a_resumed_session_is_read_once(self) -> None:
        history = [user("u1", None, "a"), assistant("x", "u1", "m", text("b"))]
        resumed = [{**line, "sessionId": "s2"} for line in history]
        (run,) = runs(*history, *resumed, {**user("u2", "x", "c"), "sessionId": "s2"})
        assert (run.id, contents(run)) == ("s2", ["a", "b", "c"])

    @settings(max_examples=60, deadline=None)
    @given(st.lists(st.tuples(st.integers(0, 20), st.booleans()), min_size=1, max_size=20))
    def test_any_tree_keeps_every_line_once(self, shape: list[tuple[int, bool]]) -> None:
        events = [user("n0", None, "0")]
        for number, (parent, is_agent) in enumerate(shape, start=1):
            above = f"n{parent % number}"
            made = assistant(f"n{number}", above, f"m{number}", text(str(number)))
            events.append(made if is_agent else user(f"n{number}", above, str(number)))
        (run,) = runs(*events)
        steps = itertools.chain(run.steps, *(branch.steps for branch in run.branches))
        assert sorted(int(step.content) for step in steps) == list(range(len(events)))
        assert run.steps[-1].content == str(len(shape))
        assert [step.index for step in run.steps] == list(range(len(run.steps)))


class TestClientTexts:
    @pytest.mark.parametrize(
        ("words", "source"),
        [
            ("Caveat: The messages below were generated by the user while …", Source.SYSTEM),
            ("<command-name>/clear</command-name>", Source.SYSTEM),
            ("<local-command-stdout>ok</local-command-stdout>", Source.ENVIRONMENT),
            ("<b>bold</b> words of mine", Source.USER),
            ("[Request interrupted by user]", Source.SYSTEM),
        ],
    )
    def test_text_of_the_client_is_not_the_user(self, words: str, source: Source) -> None:
        (run,) = runs(user("u", None, words))
        assert run.steps[0].source is source

    def test_meta_line_is_not_the_user(self) -> None:
        (run,) = runs(user("m", None, "hidden", isMeta=True), user("u", "m", "task"))
        assert (run.task, run.steps[0].source) == ("task", Source.SYSTEM)

    def test_slash_command_is_the_task_of_a_run_without_other_prompts(self) -> None:
        (run,) = runs(
            user("u", None, "<command-name>/review</command-name>\n<command-args>PR 7</command-args>"),
            user("m", "u", "Review the pull request.", isMeta=True),
        )
        assert run.task == "/review PR 7"

    def test_reminder_beside_the_prompt_is_a_separate_step(self) -> None:
        (run,) = runs(user("u", None, [text("<system-reminder>x</system-reminder>"), text("task")]))
        assert [step.source for step in run.steps] == [Source.SYSTEM, Source.USER]

    def test_queued_prompt_is_the_user(self) -> None:
        queued = {"type": "queued_command", "prompt": "also this"}
        (run,) = runs(user("u", None, "a"), event("attachment", "q", "u", attachment=queued))
        assert [(step.source, step.content) for step in run.steps][1] == (Source.USER, "also this")

    def test_interruption_is_the_stop_reason_and_the_exit_status(self) -> None:
        (run,) = runs(
            user("u", None, "a"),
            assistant("x", "u", "m", text("b")),
            user("i", "x", [text("[Request interrupted by user]")]),
        )
        assert (run.steps[1].stop_reason, run.exit_status) == ("interrupted", "interrupted")

    def test_api_error_is_no_turn_of_the_agent(self) -> None:
        failure = assistant("x", "u", "m", text("API Error: 529"), isApiErrorMessage=True)
        (run,) = runs(user("u", None, "a"), failure)
        assert (run.steps[1].source, run.exit_status) == (Source.ENVIRONMENT, "api_error")


class TestRuns:
    def test_sub_agents_are_runs_of_their_own(self) -> None:
        main, agent = runs(*lines("claude_code.jsonl"))
        assert agent.id == f"{main.id}/ab12"
        assert (agent.task, agent.extra["parent_id"]) == ("Find the file with the tides.", main.id)

    def test_sidechain_without_agent_id_is_found_by_its_parents(self) -> None:
        side = {"isSidechain": True}
        main, first, second = runs(
            user("u", None, "a"),
            user("p", None, "one", **side),
            user("q", None, "two", **side),
            assistant("x", "p", "m1", text("1"), **side),
            assistant("y", "q", "m2", text("2"), **side),
        )
        assert (contents(main), contents(first), contents(second)) == (["a"], ["one", "1"], ["two", "2"])

    def test_sessions_in_one_file_are_separate_runs(self) -> None:
        found = runs(user("u", None, "a"), {**user("v", None, "b"), "sessionId": "s2"}, user("w", None, "c"))
        assert [(run.id, run.task) for run in found] == [("s1", "a"), ("s2", "b"), ("s1#2", "c")]

    def test_facts_of_the_session_are_in_extra(self) -> None:
        run = runs(*lines("claude_code.jsonl"))[0]
        assert run.extra == {
            "cwd": "/srv/ferry",
            "version": "2.0.14",
            "git_branch": "timetable",
            "summary": "Ferry times in the wrong zone",
        }

    def test_unknown_event_is_counted(self) -> None:
        (run,) = runs(user("u", None, "a"), event("thunder", "t", "u"))
        assert run.unknown_parts == {"thunder": 1}

    def test_malformed_event_does_not_hide_the_others(self) -> None:
        events = [user("u", None, "a"), event("user", "b", "u", message="x"), user("c", "b", "d"), 7]
        found = list(read(events, format="claude_code"))
        errors = [one.error for one in found if isinstance(one, UnreadableRecord)]
        assert [(error.record, error.field) for error in errors] == [(1, "message"), (3, None)]
        assert [contents(one.trajectory) for one in found if isinstance(one, Record)] == [["a", "d"]]

    def test_file_without_messages_is_an_error(self) -> None:
        (found,) = read([{"type": "summary", "leafUuid": "x", "summary": "y"}])
        assert isinstance(found, UnreadableRecord)
        assert "without messages" in found.error.reason


class TestStream:
    def test_result_gives_exit_status_cost_and_duration(self) -> None:
        (run,) = runs(*lines("claude_code.stream.jsonl"))
        assert (run.exit_status, run.extra["num_turns"], run.extra["duration_ms"]) == ("success", 2, 5210)
        assert run.steps[-1].usage is not None
        assert run.steps[-1].usage.cost_usd == 0.0125
        assert [tool.name for tool in run.tools] == ["Bash", "Read"]

    def test_cost_of_a_second_result_counts_the_difference(self) -> None:
        head = {"session_id": "s", "type": "result", "subtype": "success", "is_error": False}
        (run,) = runs(
            assistant("a", None, "m", text("1")),
            {**head, "session_id": SESSION, "total_cost_usd": 0.5},
            assistant("b", None, "n", text("2")),
            {**head, "session_id": SESSION, "total_cost_usd": 0.75},
        )
        costs = [step.usage.cost_usd for step in run.steps if step.usage is not None]
        assert costs == [0.5, 0.25]

    def test_error_beside_success_is_the_exit_status(self) -> None:
        (run,) = runs(
            assistant("a", None, "m", text("1")),
            {"type": "result", "subtype": "success", "is_error": True, "session_id": SESSION},
        )
        assert run.exit_status == "error"

from __future__ import annotations

import time
from typing import Any

import pytest
from hypothesis import given, strategies as st

from agentguard.errors import FormatError
from agentguard.trajectory.formats._action_parser import parse_text_actions
from agentguard.trajectory.formats.reader import load_records
from agentguard.trajectory.model import Record, Source, Usage
from tests.unit.trajectory.formats.samples import SAMPLES, lines, records, sample

CALL_TEXTS = (
    *("```bash\nls\n```", "<function=f><parameter=a>1</parameter></function>", "</function>", "```", "\n"),
    *(
        "<tool_call>",
        '{"name": "f"}',
        "</tool_call>",
        "Action: f[x]",
        "Action: f\nAction Input: x",
        "<command>",
    ),
)


def parse(text: str) -> list[tuple[str, Any]]:
    return [(call.name, call.arguments) for call in parse_text_actions(text, prefix="c")]


class TestActions:
    @pytest.mark.parametrize(
        ("text", "expected"),
        [
            ("I look.\n```bash\nls -l\n```", ("bash", {"command": "ls -l"})),
            ("One:\n```\nls\n```\nThen:\n```\nopen a.py 3\n```", ("open", {"command": "open a.py 3"})),
            ("```python\nprint(1)\n```", ("python", {"code": "print(1)\n"})),
            ("<command>\nsubmit\n</command>", ("submit", {"command": "submit"})),
            ("<execute_ipython>\nx = 1\n</execute_ipython>", ("python", {"code": "x = 1"})),
            (
                "<function=bash>\n<parameter=command>\nls\n</parameter>\n</function>",
                ("bash", {"command": "ls"}),
            ),
            ('<tool_call>{"name": "f", "arguments": {"a": 1}}</tool_call>', ("f", {"a": 1})),
            ("Action 3: Search[a [b] c]", ("Search", {"input": "a [b] c"})),
            ('Action: f\nAction Input: {"a": 1}\nObservation', ("f", {"a": 1})),
        ],
    )
    def test_spelling_is_a_call(self, text: str, expected: tuple[str, Any]) -> None:
        assert parse(text) == [expected]

    @pytest.mark.parametrize(
        "text", ["", "No action.", "```json\n{}\n```", "```\n\n```", "<command>ls", "Action: think about it"]
    )
    def test_text_without_an_action_has_no_call(self, text: str) -> None:
        assert parse(text) == []

    @pytest.mark.parametrize(
        "line", ["edit-all x", "open.sh", "grep open a", "cd /x && submit", "Open the door"]
    )
    def test_shell_line_is_a_call_of_bash(self, line: str) -> None:
        assert parse(f"```\n{line}\n```") == [("bash", {"command": line})]

    def test_fence_inside_a_fence_is_code(self) -> None:
        assert parse("```bash\ncat > a.md <<E\n```python\nE\n```") == [
            ("bash", {"command": "cat > a.md <<E\n```python\nE"})
        ]

    @pytest.mark.parametrize(
        "part",
        ["<function=a>", "<tool_call>", "<command>", "```bash\n", "Action: a\n", "Action: a\nAction Input:"],
    )
    def test_repeated_opening_takes_linear_time(self, part: str) -> None:
        def measure(count: int) -> float:
            begin = time.process_time()
            parse_text_actions(part * count, prefix="c")
            return time.process_time() - begin

        measure(10)
        assert measure(40_000) < 60 * measure(4_000) + 0.2

    @given(st.lists(st.sampled_from(CALL_TEXTS) | st.text(max_size=5), max_size=12).map("".join))
    def test_any_text_gives_calls_with_distinct_ids(self, text: str) -> None:
        calls = parse_text_actions(text, prefix="c")
        assert len({call.id for call in calls}) == len(calls)
        assert all(call.arguments is not None or call.raw_arguments for call in calls)


class TestMiniSweAgent:
    @pytest.fixture
    def record(self) -> Record:
        return records(SAMPLES / "text_actions.json")[0]

    def test_user_turn_is_the_result_of_the_action(self, record: Record) -> None:
        first = record.trajectory.steps[2]
        assert [call.arguments for call in first.tool_calls] == [{"command": "ls /peir"}]
        assert first.observations[0].content.startswith("<returncode>2</returncode>")
        assert first.usage == Usage(prompt_tokens=20, completion_tokens=8, cost_usd=0.01)
        assert (first.started_at, first.source_index) == (1700000001.5, 2)

    def test_rejected_answer_is_a_turn(self, record: Record) -> None:
        answer, rejection = record.trajectory.steps[3:5]
        assert (answer.source, answer.content) == (Source.AGENT, "There are three lamps.")
        assert rejection.source is Source.ENVIRONMENT
        assert answer.source_index == rejection.source_index == 4

    def test_exit_message_is_the_result_of_the_submission(self, record: Record) -> None:
        assert record.trajectory.exit_status == "Submitted"
        assert record.trajectory.steps[-1].observations[0].content == "3 lamps\n"

    def test_exit_without_submission_is_a_step_of_the_environment(self) -> None:
        data = sample("text_actions.json")
        del data["info"]["exit_status"]
        data["messages"][-1] |= {"content": "LimitsExceeded", "extra": {"exit_status": "LimitsExceeded"}}
        run = load_records(data)[0].trajectory
        assert run.exit_status == "LimitsExceeded"
        assert (run.steps[-1].source, run.steps[-1].agent) == (Source.ENVIRONMENT, "exit")

    def test_exception_is_the_error_flag(self) -> None:
        data = sample("text_actions.json")
        data["messages"][3]["extra"]["exception_info"] = "timed out"
        assert load_records(data)[0].trajectory.steps[2].observations[0].is_error is True

    def test_native_calls_are_read(self) -> None:
        call = {
            "id": "c1",
            "type": "function",
            "function": {"name": "bash", "arguments": '{"command": "ls"}'},
        }
        data = sample("text_actions.json")
        data["messages"][2:] = [
            {"role": "assistant", "content": None, "tool_calls": [call], "extra": {"actions": []}},
            {"role": "exit", "content": "1 lamp", "extra": {"exit_status": "Submitted"}},
        ]
        last = load_records(data)[0].trajectory.steps[-1]
        assert [seen.content for seen in last.observations] == ["1 lamp"]

    def test_responses_items_are_read(self) -> None:
        output = [
            {"type": "message", "content": [{"type": "output_text", "text": "I look."}]},
            {"type": "function_call", "id": "f1", "call_id": "c1", "name": "bash", "arguments": "{}"},
        ]
        data = sample("text_actions.json")
        data["messages"][2:] = [
            {"object": "response", "output": output, "extra": {"cost": 0.1}},
            {"type": "function_call_output", "call_id": "c1", "output": "a", "extra": {"returncode": 0}},
        ]
        last = load_records(data)[0].trajectory.steps[-1]
        assert (last.content, last.tool_calls[0].id, last.observations[0].content) == ("I look.", "c1", "a")

    def test_image_in_a_result_is_counted(self) -> None:
        data = sample("text_actions.json")
        image = {"type": "image_url", "image_url": {"url": "data:,"}}
        data["messages"][3]["content"] = [{"type": "text", "text": "seen"}, image]
        run = load_records(data)[0].trajectory
        assert run.steps[2].observations[0].content == "seen"
        assert run.unknown_parts == {"image_url": 1}


class TestOtherChats:
    def test_messages_as_json_text_are_read(self) -> None:
        record = records(SAMPLES / "text_actions.jsonl")[0]
        step = record.trajectory.steps[2]
        assert step.tool_calls[0].name == "str_replace_editor"
        assert step.observations[0].content == "1 print('quay')"
        assert (record.trajectory.id, record.annotation.failed) == ("quay-1", True)

    @pytest.mark.parametrize(
        ("field", "role", "text", "agent"),
        [
            ("trajectory", "role", "text", "ai"),
            ("conversations", "from", "value", "gpt"),
            ("messages", "role", "content", "assistant"),
        ],
    )
    def test_spellings_of_messages_are_read(self, field: str, role: str, text: str, agent: str) -> None:
        messages = [
            {role: "system", text: None, "system_prompt": "You fix code."},
            {role: "user", text: "Repair the lock."},
            {role: agent, text: "I look.\n```\nopen lock.py\n```"},
            {role: "user", text: "[File: lock.py]\nbash-$"},
        ]
        row = {field: messages, "instance_id": "lock-1", "exit_status": "submitted", "target": True}
        (record,) = load_records(row)
        run = record.trajectory
        assert (run.format, run.exit_status, record.annotation.failed) == ("text_actions", "submitted", None)
        assert run.steps[2].source is Source.AGENT
        assert run.steps[2].tool_calls[0].arguments == {"command": "open lock.py"}
        assert run.steps[2].observations[0].content == "[File: lock.py]\nbash-$"

    def test_damaged_json_text_is_refused(self) -> None:
        with pytest.raises(FormatError):
            load_records({"instance_id": "a", "messages": "[{"})

    def test_react_lines_are_calls(self) -> None:
        run = records(SAMPLES / "text_actions.jsonl")[1].trajectory
        calls = [call for step in run.steps for call in step.tool_calls]
        assert [(call.name, call.arguments) for call in calls] == [
            ("Search", {"input": "north door"}),
            ("lookup", {"term": "door", "limit": 2}),
        ]

    def test_code_in_a_plain_chat_is_not_an_action(self) -> None:
        chat = [
            {"role": "user", "content": "Show a loop."},
            {"role": "assistant", "content": "```bash\nls\n```"},
            {"role": "user", "content": "Thanks."},
        ]
        assert load_records(chat)[0].trajectory.format == "openai_chat"

    def test_command_of_the_system_prompt_is_a_tool(self) -> None:
        data = lines("text_actions.jsonl")[1]
        prompt = "COMMANDS:\nmoor:\n  docstring: moors the boat\n"
        data["messages"].insert(0, {"role": "system", "content": prompt})
        data["messages"][2]["content"] = "```\nmoor boat-3\n```"
        assert load_records(data)[0].trajectory.steps[2].tool_calls[0].name == "moor"

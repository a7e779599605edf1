from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings, strategies as st

from agentguard.errors import FormatError
from agentguard.trajectory.formats._chat_messages import (
    add_tool_results,
    parse_arguments,
    parse_chat,
    parse_chat_turn,
    parse_tool_specs,
)
from agentguard.trajectory.formats.base import formats
from agentguard.trajectory.model import Source, Step
from tests.unit.trajectory.formats.samples import SAMPLES, parse, records, sample


def call(id: str | None, name: str = "f", arguments: Any = "{}") -> dict[str, Any]:
    data = {"type": "function", "function": {"name": name, "arguments": arguments}}
    return data if id is None else {"id": id, **data}


def asked(*calls: dict[str, Any]) -> dict[str, Any]:
    return {"role": "assistant", "content": None, "tool_calls": list(calls)}


def told(id: str | None, content: str, **more: Any) -> dict[str, Any]:
    return {"role": "tool", "content": content, **({"tool_call_id": id} if id else {}), **more}


def steps(*messages: dict[str, Any]) -> tuple[Step, ...]:
    return parse_chat(list(messages)).steps


class TestPairing:
    def test_results_are_paired_by_id_in_any_order(self) -> None:
        (step,) = steps(asked(call("a"), call("b", "g")), told("b", "two"), told("a", "one"))
        assert [(seen.call_id, seen.tool, seen.content) for seen in step.observations] == [
            ("b", "g", "two"),
            ("a", "f", "one"),
        ]

    def test_results_without_id_are_paired_by_order(self) -> None:
        (step,) = steps(asked(call(None), call(None, "g")), told(None, "one"), told(None, "two"))
        assert [call.id for call in step.tool_calls] == ["call-0-0", "call-0-1"]
        assert [(seen.call_id, seen.content) for seen in step.observations] == [
            ("call-0-0", "one"),
            ("call-0-1", "two"),
        ]

    def test_results_without_id_are_paired_by_name(self) -> None:
        (step,) = steps(asked(call("a"), call("b", "g")), told(None, "two", name="g"))
        assert step.observations[0].call_id == "b"

    def test_unanswered_calls_are_valid(self) -> None:
        first, user = steps(asked(call("a"), call("b")), {"role": "user", "content": "wait"})
        assert (len(first.tool_calls), first.observations, user.source) == (2, (), Source.USER)

    def test_orphaned_result_is_an_environment_step(self) -> None:
        _, orphan = steps(asked(call("a")), told("z", "what?", name="f"))
        assert (orphan.source, orphan.agent, orphan.content) == (Source.ENVIRONMENT, "f", "what?")
        assert orphan.extra["tool_call_id"] == "z"

    def test_late_result_is_not_added_to_an_earlier_turn(self) -> None:
        first, _, late = steps(asked(call("a")), {"role": "user", "content": "?"}, told("a", "late"))
        assert first.observations == ()
        assert (late.source, late.index, late.source_index) == (Source.ENVIRONMENT, 2, 2)

    def test_orphaned_result_does_not_end_the_turn(self) -> None:
        first, orphan = steps(asked(call("a")), told("z", "stray"), told("a", "answer"))
        assert first.observations[0].content == "answer"
        assert orphan.content == "stray"

    def test_two_results_of_one_call_are_kept(self) -> None:
        (step,) = steps(asked(call("a")), told("a", "partial"), told("a", "rest"))
        assert [seen.content for seen in step.observations] == ["partial", "rest"]

    def test_error_flag_is_never_guessed(self) -> None:
        (step,) = steps(asked(call("a")), told("a", "Error: no such thing"))
        assert step.observations[0].is_error is None

    def test_messages_are_mapped_to_steps(self) -> None:
        run = parse_chat([{"role": "user", "content": "x"}, asked(call("a")), told("a", "1"), told("z", "2")])
        assert run.step_by_message == {0: 0, 1: 1, 2: 1, 3: 2}


class TestArguments:
    @pytest.mark.parametrize(
        ("value", "arguments", "raw"),
        [
            ('{"a": 1}', {"a": 1}, '{"a": 1}'),
            ('{"a": ', None, '{"a": '),
            ("", None, ""),
            ("[1]", None, "[1]"),
            ('{"a": NaN}', None, '{"a": NaN}'),
            ({"a": 1}, {"a": 1}, None),
            (None, None, None),
        ],
    )
    def test_text_arguments_are_kept_and_parsed_if_possible(
        self, value: Any, arguments: Any, raw: str | None
    ) -> None:
        assert parse_arguments(value, "x") == (arguments, raw)

    def test_other_arguments_are_an_error(self) -> None:
        with pytest.raises(FormatError, match="expected text or an object, found a list"):
            parse_arguments([1], "x")


class TestMessages:
    def test_parts_reasoning_and_refusal_are_read(self) -> None:
        run = records(SAMPLES / "openai_chat.json")[0].trajectory
        system, user, turn, answer, late, refusal = run.steps
        assert (system.source, system.extra["role"]) == (Source.SYSTEM, "developer")
        assert user.content == run.task == "Weather in Oslo and Rome?"
        assert user.extra["content"][1]["type"] == "image_url"
        assert turn.reasoning == "Two calls."
        assert [call.arguments for call in turn.tool_calls] == [{"place": "Oslo"}, None, None]
        assert turn.observations[1].extra["cached"] is True
        assert (answer.agent, late.source) == ("forecaster", Source.ENVIRONMENT)
        assert (refusal.content, refusal.extra["refusal"]) == ("I cannot.", "I cannot.")

    def test_outcome_fields_are_part_of_the_annotation(self) -> None:
        record = records(SAMPLES / "openai_chat.json")[0]
        assert record.trajectory.extra == {"model": "small-1", "metadata": {"city": "Oslo"}}
        assert record.annotation.extra == {"metadata": {"reward": 0}}
        assert record.annotation.failed is True
        assert [r.annotation.failed for r in records(SAMPLES / "openai_chat.runs.jsonl")] == [
            False,
            True,
            True,
        ]

    def test_tools_are_read(self) -> None:
        (tool,) = records(SAMPLES / "openai_chat.json")[0].trajectory.tools
        assert (tool.name, tool.parameters["required"], tool.extra) == (
            "weather",
            ["place"],
            {"function": {"strict": True}},
        )
        flat = parse_tool_specs([{"type": "function", "name": "f"}, {"type": "web_search"}], "tools")
        assert [one.name for one in flat] == ["f", "web_search"]

    @pytest.mark.parametrize(
        ("message", "field"),
        [
            (5, "messages[0]"),
            ({}, "messages[0].role"),
            ({"role": 1}, "messages[0].role"),
            ({"role": "user", "content": 1}, "messages[0].content"),
            ({"role": "user", "content": [1]}, "messages[0].content[0]"),
            ({"role": "assistant", "tool_calls": {}}, "messages[0].tool_calls"),
            (
                {"role": "assistant", "tool_calls": [{"function": {}}]},
                "messages[0].tool_calls[0].function.name",
            ),
            ({"role": "assistant", "function_call": 1}, "messages[0].function"),
        ],
    )
    def test_errors_name_the_location(self, message: Any, field: str) -> None:
        with pytest.raises(FormatError) as caught:
            parse("openai_chat", {"messages": [message]})
        assert caught.value.field == field


class TestDump:
    @pytest.mark.parametrize("name", ["openai_chat.json"])
    def test_original_is_reproduced(self, name: str) -> None:
        format = formats().get("openai_chat")
        record = records(SAMPLES / name)[0]
        assert format.dump(record, annotation=True) == sample(name)  # type: ignore[attr-defined]
        without = format.dump(record)  # type: ignore[attr-defined]
        assert without["metadata"] == {"city": "Oslo"}

    def test_legacy_format_is_written(self) -> None:
        record = records(SAMPLES / "openai_chat.legacy.json")[0]
        dumped = formats().get("openai_chat").dump(record)  # type: ignore[attr-defined]
        assert dumped["messages"] == sample("openai_chat.legacy.json")

    def test_speakers_of_other_formats_are_written(self) -> None:
        record = records(SAMPLES / "who_and_when.crafted.json")[0]
        dumped = formats().get("openai_chat").dump(record)  # type: ignore[attr-defined]
        assert [(one["role"], one.get("name")) for one in dumped["messages"]] == [
            ("user", "human"),
            *[("assistant", "Orchestrator")] * 2,
            ("assistant", "WebSurfer"),
            ("assistant", "Orchestrator"),
        ]

    def test_prompts_without_steps_are_written(self) -> None:
        record = records(SAMPLES / "who_and_when.json")[0]
        dumped = formats().get("openai_chat").dump(record)  # type: ignore[attr-defined]
        assert dumped["messages"][0] == {"role": "system", "name": "Counter_Expert", "content": "You count."}


class Odd(dict[str, Any]):
    """A message that takes the general code path, whatever its fields."""


TEXTS = st.sampled_from(["", "a", "{}", '{"a": 1}', "[1]"])
ANY = st.one_of(TEXTS, st.none(), st.just([{"type": "text", "text": "x"}]), st.just({"a": 1}), st.just(3))
CALLS = st.fixed_dictionaries(
    {"id": ANY, "function": st.fixed_dictionaries({"name": ANY, "arguments": ANY}, optional={"strict": ANY})},
    optional={"type": st.sampled_from(["function", "custom"]), "more": ANY},
)
MESSAGES = st.fixed_dictionaries(
    {"role": st.sampled_from(["system", "user", "assistant", "tool", "developer", "function"])},
    optional={
        "content": ANY,
        "tool_calls": st.one_of(ANY, st.lists(CALLS, max_size=2)),
        "tool_call_id": TEXTS,
        "name": ANY,
        "refusal": ANY,
    },
)


class TestUsualFields:
    """Messages with only the usual fields take a faster code path, with the same steps."""

    @settings(max_examples=300)
    @given(st.lists(MESSAGES, max_size=4))
    def test_fast_path_equals_general_path_for_any_messages(self, messages: list[dict[str, Any]]) -> None:
        found: list[Any] = []
        for given_ in (messages, [Odd(one) for one in messages]):
            try:
                found.append(parse_chat(given_))
            except FormatError as error:
                found.append(str(error))
        assert found[0] == found[1]

    @given(st.lists(MESSAGES, min_size=1, max_size=2))
    def test_parse_chat_turn_of_any_messages_equals_first_step(self, messages: list[dict[str, Any]]) -> None:
        found: list[Any] = []
        for parse_turn in (parse_chat_turn, lambda given_, agent: parse_chat(given_, agent=agent).steps[0]):
            try:
                found.append(replace(parse_turn(messages, agent="planner"), source_index=None))
            except FormatError as error:
                found.append(str(error))
        assert found[0] == found[1]

    @given(st.lists(st.tuples(st.sampled_from("abc"), TEXTS), max_size=4), st.booleans())
    def test_fast_path_equals_general_path_for_calls_and_results(
        self, results: list[tuple[str, str]], typed: bool
    ) -> None:
        calls = [{"id": id, "function": {"name": f"f{id}", "arguments": '{"a": 1}'}} for id in "ab"]
        turn = asked(*({**one, "type": "function"} if typed else one for one in calls))
        told_ = [told(*one) for one in results]
        whole = parse_chat([turn, *told_])
        assert whole == parse_chat([Odd(turn), *map(Odd, told_)])
        (alone,) = parse_chat([turn]).steps
        assert add_tool_results(alone, told_) == whole.steps[0]

    def test_invalid_message_is_an_error(self) -> None:
        with pytest.raises(FormatError, match=r"messages\[1\]"):
            add_tool_results(steps(asked(call("a")))[0], ["no message"])

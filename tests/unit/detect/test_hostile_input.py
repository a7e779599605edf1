"""Malicious text: every detector takes linear time in the text of one step."""

from __future__ import annotations

import time

import pytest

from agentguard.detect.run_view import RunView
from agentguard.detect.runner import IncrementalRunner
from agentguard.trajectory.model import Observation, Source, Step, ToolCall

HOSTILE = [
    "a",
    " ",
    "\n",
    "```",
    "```\n",
    "1,",
    "1.",
    "is 1 ",
    "x: 1\n",
    "user: x\n",
    "observation: x\n",
    "i am ",
    "as the ",
    "successfully ",
    "has been ",
    "has been paid",
    "let's assume ",
    "mock data",
    "<tool_call>{",
    "- x\n",
    "1. x y z\n",
    "Action: x\n",
    "error: ",
    "you can't ",
    "exit code 1",
    "i will ",
    "please wait",
    "😀",
    "İ",
    "a@",
    "@.",
    "a_1-",
    '{"error"',
    "[[",
    '"a": 1, ',
    "not ",
    "traceback (most recent call last)",
    "the a is ",
    "let's ",
    "````",
]
SIZE = 60_000


def steps(text: str) -> list[Step]:
    call = ToolCall(
        id="c", name="f", arguments={"id": text, "order_id": "K" * 30_000 + "7"}, raw_arguments=text
    )
    seen = Observation(content=text, call_id="c", tool="f")
    return [
        Step(index=0, source=Source.USER, agent="user", content=text),
        Step(
            index=1, source=Source.AGENT, agent="a b", content=text, tool_calls=(call,), observations=(seen,)
        ),
        Step(index=2, source=Source.AGENT, agent="a b", content=text),
        Step(index=3, source=Source.ENVIRONMENT, agent="env", content=text),
        Step(
            index=4,
            source=Source.AGENT,
            agent="c d",
            content=text,
            modules={"action": text, "planning": text},
        ),
        Step(index=5, source=Source.AGENT, agent="a b", content=text),
    ]


@pytest.mark.parametrize("unit", HOSTILE)
def test_every_detector_is_fast_on_hostile_text(unit: str) -> None:
    text = unit * (SIZE // len(unit))
    watcher = IncrementalRunner(RunView(task=text[:5_000]), deadline_s=60)  # the bound is on work
    start = time.process_time()
    for step in steps(text):
        watcher.observe(step)
    watcher.finish()
    assert time.process_time() - start < 3
    assert watcher.failures == []

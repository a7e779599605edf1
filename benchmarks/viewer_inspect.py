"""Write a run as an Inspect log; run by Inspect's own Python: viewer_inspect.py RUN.json FOLDER.

The run contains steps in the format of `agentguard.trajectory.serialization`. Each step becomes Inspect's
record
of a model call: the messages of the conversation, and a model and a tool event in the transcript.
"""

import json
import sys
from datetime import UTC, datetime
from pathlib import Path

from inspect_ai.event import ModelEvent, ToolEvent
from inspect_ai.log import EvalConfig, EvalDataset, EvalLog, EvalSample, EvalSpec, EvalStats, write_eval_log
from inspect_ai.model import (
    ChatMessageAssistant,
    ChatMessageTool,
    ChatMessageUser,
    GenerateConfig,
    ModelOutput,
    ModelUsage,
)
from inspect_ai.tool import ToolCall


def stamp(seconds: float) -> datetime:
    return datetime.fromtimestamp(seconds, UTC)


def assistant(step: dict) -> ChatMessageAssistant:
    calls = [
        ToolCall(id=one["id"], function=one["name"], arguments=one.get("arguments", {}))
        for one in step.get("tool_calls", [])
    ]
    return ChatMessageAssistant(content=step["content"], tool_calls=calls or None)


def usage(step: dict) -> ModelUsage:
    used = step.get("usage", {})
    into, out = used.get("prompt_tokens", 0), used.get("completion_tokens", 0)
    return ModelUsage(input_tokens=into, output_tokens=out, total_tokens=into + out)


def sample(task: str, steps: list[dict]) -> EvalSample:
    messages, events = [ChatMessageUser(content=task)], []
    for step in steps:
        if step["source"] != "agent":
            messages.append(ChatMessageUser(content=step["content"]))
            continue
        begin, end = stamp(step["started_at"]), stamp(step["ended_at"])
        said = assistant(step)
        output = ModelOutput.from_message(said)
        output.usage = usage(step)
        # Only the turn before is recorded as input: the full input of each call grows with the square of the
        # steps.
        events.append(
            ModelEvent(
                model=step["model"], input=messages[-1:], tools=[], tool_choice="auto",
                config=GenerateConfig(), output=output, timestamp=begin, completed=end, working_start=0.0,
            )
        )  # fmt: skip
        messages.append(said)
        names = {one["id"]: one for one in step.get("tool_calls", [])}
        for seen in step.get("observations", []):
            call = names[seen["call_id"]]
            messages.append(
                ChatMessageTool(content=seen["content"], tool_call_id=call["id"], function=call["name"])
            )
            events.append(
                ToolEvent(
                    id=call["id"], function=call["name"], arguments=call.get("arguments", {}),
                    result=seen["content"], timestamp=end, completed=end, working_start=0.0,
                )
            )  # fmt: skip
    return EvalSample(id=1, epoch=1, input=task, target="", messages=messages, events=events)


def main() -> None:
    run = json.loads(Path(sys.argv[1]).read_text(encoding="utf-8"))
    now = datetime.now(UTC).isoformat()
    log = EvalLog(
        status="success",
        eval=EvalSpec(
            created=now,
            task="orders",
            dataset=EvalDataset(name="orders", samples=1, sample_ids=[1]),
            model="example/model",
            config=EvalConfig(),
        ),
        stats=EvalStats(started_at=now, completed_at=now),
        samples=[sample(run["task"], run["steps"])],
    )
    path = Path(sys.argv[2]) / "run.eval"
    write_eval_log(log, str(path))
    print(path)


if __name__ == "__main__":
    main()

"""Hand-written agent loops: tools run once, messages stay complete, and the agent receives hints."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from agentguard.errors import ConfigError, RunStopped
from agentguard.guard import Guard
from agentguard.recover.budget import RecoveryBudget
from agentguard.recover.plan import RecoveryOutcome
from agentguard.recover.recovery_policy import RecoveryPolicy
from agentguard.recover.snapshots.manager import SnapshotOptions

Message = dict[str, Any]


class Seats:
    """Tools with counted effects."""

    def __init__(self) -> None:
        self.booked: Counter[int] = Counter()

    def book(self, seat: int) -> str:
        """Book a seat."""
        self.booked[seat] += 1
        return f"seat {seat} is yours"

    def cancel(self, seat: int) -> None:
        self.booked[seat] -= 1

    def find(self, where: str) -> dict[str, Any]:
        """Find a seat."""
        return {"where": where, "free": []}


def make(seats: Seats, *, undo: bool = False, **parts: Any) -> Guard:
    guard = Guard(**parts)
    guard.tool(effect="write", undo=seats.cancel if undo else None)(seats.book)
    guard.tool(effect="read")(seats.find)
    return guard


def calls(*wanted: tuple[str, Message]) -> Message:
    return {
        "role": "assistant",
        "content": None,
        "tool_calls": [
            {"id": f"c{i}", "type": "function", "function": {"name": name, "arguments": json.dumps(given)}}
            for i, (name, given) in enumerate(wanted)
        ],
    }


FIND, BOOK = calls(("find", {"where": "aisle"})), calls(("book", {"seat": 4}))


def told(messages: list[Message]) -> bool:
    return any(str(message.get("content")).startswith("[guard]") for message in messages)


def drive(run: Any, model: Callable[..., Any], *, most: int = 30) -> None:
    for _ in range(most):
        if run.done:
            return
        run.tools(run.model(model))
    raise AssertionError("the loop did not end")


def whole(messages: list[Message]) -> bool:
    """Check that every call is answered at once, and every answer has its call, as providers require."""
    open_calls: list[str] = []
    for message in messages:
        if message["role"] == "tool":
            if message["tool_call_id"] not in open_calls:
                return False
            open_calls.remove(message["tool_call_id"])
        elif open_calls:
            return False
        else:
            open_calls = [call["id"] for call in message.get("tool_calls") or []]
    return not open_calls


def test_rollback_does_not_book_twice_and_agent_receives_hint() -> None:
    seats = Seats()
    answers = iter([BOOK, FIND, "I do not know.", BOOK, "Seat 4 is booked."])
    guard = make(seats, recover=RecoveryPolicy(on_fail="rollback"), localizer=First(1), accept=answered)

    def model(messages: list[Message]) -> Message | str:
        assert whole(messages)
        return next(answers)

    with guard.run("Book seat 4.", tools=[seats.book, seats.find]) as run:
        drive(run, model)
    assert seats.booked == {4: 1}
    assert "seat 4 is yours" in next(m["content"] for m in run.messages if told([m]))
    assert run.answer == "Seat 4 is booked."
    assert [recovery.plan.strategy for recovery in run.recoveries] == ["rollback"]


def test_compensation_undoes_effects_of_abandoned_branch() -> None:
    seats = Seats()
    wrong = [calls(("book", {"seat": 9})), FIND, FIND, FIND]
    given = iter([*wrong, BOOK])
    guard = make(
        seats,
        undo=True,
        recover=RecoveryPolicy(on_fail="compensate"),
        localizer=First(1),
        accept=lambda run: True,
    )
    with guard.run("Book seat 4.", tools=[seats.book, seats.find]) as run:
        drive(run, lambda messages: next(given, "Seat 4 is booked."))
    # The loop's own step had no effect to undo, but the ranked step had, so the rollback goes to that step.
    assert +seats.booked == {4: 1}
    assert run.recoveries[0].plan.step == 1
    assert "were undone: book" in "".join(str(m["content"]) for m in run.messages)


def answered(run: Any) -> bool:
    return bool(run.steps[-1].content.startswith("Seat"))


class First:
    """Localizer that ranks one step first."""

    name = "first"

    def __init__(self, step: int) -> None:
        self.step = step

    def locate(self, trajectory: Any, findings: Any) -> Any:
        from agentguard.localize.base import Diagnosis, Hypothesis
        from agentguard.verdict import Verdict

        held = Hypothesis(step=self.step, agent="assistant", reason="The seat is the wrong one.")
        return Diagnosis(
            trajectory_id=trajectory.id,
            method="first",
            verdict=Verdict.FAILED,
            probability=1,
            hypotheses=(held,),
        )


def test_call_of_unknown_tool_is_refused_before_any_tool_runs() -> None:
    seats = Seats()
    given = iter([calls(("book", {"seat": 4}), ("fly", {})), BOOK])
    with make(seats, recover=RecoveryPolicy(on_fail="rollback")).run(
        "Book seat 4.", tools=[seats.book, seats.find]
    ) as run:
        drive(run, lambda messages: next(given, "Done."))
    assert seats.booked == {4: 1}
    assert all(step.tool_calls[0].name != "fly" for step in run.trajectory.steps if step.tool_calls)


def test_repeated_refusals_let_the_turn_through() -> None:
    seats = Seats()
    given = iter([calls(("fly", {}))] * 10)
    unlimited = RecoveryBudget(rollbacks=None, rollbacks_per_step=None)
    again = [{"rollback": {}}]
    with make(seats, recover=RecoveryPolicy(on_fail=again, budget=unlimited)).run(
        "Fly.", tools=[seats.find]
    ) as run:
        drive(run, lambda messages: next(given, "I cannot fly."))
    assert run.done


def test_effect_failed_midway_is_unknown_and_not_repeated() -> None:
    attempts = []
    guard = Guard(recover=RecoveryPolicy(on_fail="hint"))

    @guard.tool(effect="write")
    def send(to: str) -> str:
        attempts.append(to)
        raise TimeoutError("no answer")

    given = iter([calls(("send", {"to": "a"}))] * 2)
    with guard.run("Send it.", tools=[send]) as run:
        drive(run, lambda messages: next(given, "I could not tell."))
    assert attempts == ["a"], "nobody knows whether the first call took effect"
    run.session.ledger.rewind(1)
    assert run.session.begin_tool("send", {"to": "a"}).decision == "in_doubt"


def test_tool_errors_and_invalid_arguments_are_reported_to_agent() -> None:
    def fragile(x: int) -> int:
        raise ValueError("x is odd")

    given = iter([calls(("fragile", {"x": 1})), calls(("fragile", {"y": 1}))])
    quiet = RecoveryPolicy(threshold=1.0, effect_threshold=1.0)
    with Guard(recover=quiet).run("Try.", tools=[fragile]) as run:
        drive(run, lambda messages: next(given, "It does not work."))
    seen = [step.observations[0] for step in run.trajectory.steps if step.observations]
    assert [one.is_error for one in seen] == [True, True]
    assert "x is odd" in seen[0].content
    assert "'fragile'" in seen[1].content


def test_rejected_end_is_rolled_back() -> None:
    seats = Seats()
    given = iter(["All done.", BOOK, "Seat 4 is booked."])
    accept: Callable[[Any], bool | str] = lambda run: bool(seats.booked[4]) or "seat 4 is not booked"  # noqa: E731
    with make(seats, accept=accept).run("Book seat 4.", tools=[seats.book]) as run:
        drive(run, lambda messages: next(given))
    assert (run.answer, seats.booked[4]) == ("Seat 4 is booked.", 1)
    assert run.recoveries[-1].outcome is RecoveryOutcome.CONFIRMED
    assert "Seat 4 is not booked" in "".join(str(message["content"]) for message in run.messages)


def test_restart_extends_the_task_and_lists_effects() -> None:
    seats = Seats()
    given = iter([BOOK, "The weather is fine.", BOOK, "Seat 4 is booked."])
    guard = make(
        seats,
        recover=RecoveryPolicy(on_fail="restart"),
        accept=lambda run: "booked" in run.steps[-1].content,
    )
    with guard.run("Book seat 4.", tools=[seats.book], system="Be brief.") as run:
        drive(run, lambda messages: next(given))
    assert seats.booked == {4: 1}
    assert [message["role"] for message in run.messages[:2]] == ["system", "user"]
    assert "seat 4 is yours" in run.messages[1]["content"]


def test_disabled_tool_is_not_offered() -> None:
    seats = Seats()
    offers: list[list[str]] = []

    def model(messages: list[Message], tools: list[Message]) -> Message | str:
        offers.append([tool["function"]["name"] for tool in tools])
        return FIND if "find" in offers[-1] else "There is no seat."

    with make(seats, recover=RecoveryPolicy(on_fail="disable_tool")).run(
        "Find.", tools=[seats.book, seats.find]
    ) as run:
        drive(run, model)
    assert offers[0] == ["book", "find"]
    assert offers[-1] == ["book"]


def test_escalation_asks_a_person() -> None:
    seats = Seats()
    questions: list[str] = []

    def ask(question: str) -> str:
        questions.append(question)
        return "Take the window."

    def model(messages: list[Message]) -> Message | str:
        return "Window it is." if messages[-1]["content"] == "Take the window." else FIND

    with make(seats, recover=RecoveryPolicy(on_fail="escalate")).run(
        "Find.", tools=[seats.find], ask=ask
    ) as run:
        drive(run, model)
    assert run.answer == "Window it is."
    assert len(questions) == 1


def test_stop_returns_its_reason() -> None:
    seats = Seats()
    with make(seats, recover=RecoveryPolicy(on_fail="stop")).run("Find.", tools=[seats.find]) as run:
        drive(run, lambda messages: FIND)
    with pytest.raises(RunStopped, match="repeated the call of find"):
        run.raise_if_stopped()


def test_fork_restores_the_environment_state() -> None:
    state = {"at": 0}
    where = []

    def move() -> str:
        state["at"] += 1
        return "still no seat"

    def model(messages: list[Message]) -> Message | str:
        where.append(state["at"])
        return "Here." if told(messages) else calls(("move", {}))

    guard = Guard(recover=RecoveryPolicy(on_fail=[{"rollback": {"prefer": "fork"}}]), tools={})
    guard.tool(effect="read")(move)
    run = guard.run(
        "Move.",
        tools=[move],
        save=lambda: dict(state),
        restore=state.update,
        snapshots=SnapshotOptions(max_turns=1),
    )
    with run:
        drive(run, model)
    assert where == [0, 1, 2, 1]
    assert run.recoveries[0].plan.step == 2


def test_asynchronous_loop_runs_calls_of_a_turn_concurrently() -> None:
    together = 0
    most = 0

    async def slow(n: int) -> int:
        nonlocal together, most
        together += 1
        most = max(most, together)
        await asyncio.sleep(0)
        together -= 1
        return n

    async def main() -> Any:
        given = iter([calls(("slow", {"n": 1}), ("slow", {"n": 2})), "Both."])

        async def model(messages: list[Message]) -> Message | str:
            return next(given)

        with Guard().run("Do both.", tools=[slow]) as run:
            while not run.done:
                await run.atools(await run.amodel(model))
        return run

    run = asyncio.run(main())
    assert most == 2
    assert [one.content for one in run.trajectory.steps[1].observations] == ["1", "2"]


@pytest.mark.parametrize("answer", [None, 3, {"choices": []}])
def test_invalid_model_answer_is_an_error(answer: Any) -> None:
    run = Guard().run("Hello.")
    if answer == {"choices": []}:
        assert run.model(lambda messages: answer) is not None, "a mapping is taken as the message"
        return
    with pytest.raises(ConfigError, match="model function returned"):
        run.model(lambda messages: answer)


def test_invalid_run_arguments_are_rejected() -> None:
    with pytest.raises(ConfigError, match="both save and restore"):
        Guard().run("x", save=dict)
    with pytest.raises(ConfigError, match="two functions have the name"):
        Guard().run("x", tools=[Seats().find, Seats().find])
    with pytest.raises(ConfigError, match="has no name"):
        Guard().run("x", tools=[lambda: 1])


def test_missing_models_of_policy_are_rejected() -> None:
    seats = Seats()
    guard = make(seats, recover=RecoveryPolicy(on_fail=[{"n_version": {"models": ["large"]}}]))
    with pytest.raises(ConfigError, match="the models large"):
        guard.run("Book seat 4.", tools=[seats.book])
    guard.run("Book seat 4.", tools=[seats.book], models={"large": lambda messages: "Done."})


def test_example_runs() -> None:
    script = Path(__file__).resolve().parents[3] / "examples" / "guard_loop.py"
    done = subprocess.run([sys.executable, script], capture_output=True, text=True, timeout=120, check=True)
    lines = done.stdout.splitlines()
    assert lines[:2] == ["Seat 4 is booked.", "booked: [4]"]
    assert [line.split(":")[0] for line in lines[2:]] == ["rollback", "restart"]


def test_voting_example_runs() -> None:
    script = Path(__file__).resolve().parents[3] / "examples" / "guard_voting.py"
    done = subprocess.run([sys.executable, script], capture_output=True, text=True, timeout=120, check=True)
    *recoveries, last = done.stdout.splitlines()
    assert [line.split(":")[0] for line in recoveries] == ["roll_forward", "roll_forward", "n_version"]
    assert last == "booked [4]; Seat 4 is booked."

"""Synthetic runs with a known flaw that a model must be able to learn."""

from __future__ import annotations

import random

from agentguard.trajectory.model import (
    Annotation,
    Observation,
    Record,
    RootCause,
    Source,
    Step,
    ToolCall,
    Trajectory,
)

A, E, U = Source.AGENT, Source.ENVIRONMENT, Source.USER
_THINGS = ("boats", "cranes", "ferries", "piers", "buoys", "tugs", "locks", "sails")


def group_chat(number: int, *, flaw: int | None = None) -> Record:
    """Return a brief, then workers and a shell; one worker assumes values, the others count them."""
    rng = random.Random(number)
    thing = _THINGS[number % len(_THINGS)]
    task = f"How many {thing} are moored in harbour {number} of the northern coast?"
    wrong = rng.choice((1, 3, 5)) if flaw is None else flaw
    turns: list[tuple[Source, str, str]] = [(A, "Lead_Expert", f"You are given a task. {task} Count them.")]
    for at in (1, 3, 5):
        agent = ("Harbour_Expert", "Count_Expert", "Check_Expert")[at // 2]
        total = rng.randrange(100, 900)
        if at == wrong:
            text = f"Let us assume sample values: there are {total} {thing}.\n```python\nprint({total})\n```"
        else:
            text = f"I count the {thing} row by row.\n```python\nprint(count('{thing}'))\n```"
        turns += [(A, agent, text), (E, "Shell", f"exitcode: 0\n{total}")]
    turns.append((A, "Check_Expert", f"There are {rng.randrange(100, 900)} {thing}. TERMINATE"))
    run = _run(f"chat-{number}", task, turns)
    cause = RootCause(step=wrong, agent=run.steps[wrong].agent)
    return Record(
        trajectory=run, annotation=Annotation(failed=True, root_cause=cause, group=task, answer="41")
    )


def steered(number: int, *, turns: int = 4, cause: int | None = None) -> Record:
    """Return a run of an orchestrator that assigns work to two workers."""
    task = f"Find the opening hours of lighthouse {number}."
    said: list[tuple[Source, str, str]] = [(U, "human", task), (A, "Chief", f"Plan for: {task}")]
    for at in range(turns):
        worker = "Reader" if at == turns - 1 else "Browser"
        said += [
            (A, "Chief", f"{worker}, please look at page {at} and tell me what it says about the hours."),
            (A, worker, f"The page {at} shows a list of {number + at} lighthouses and their keepers."),
        ]
    said.append((A, "Chief", "FINAL ANSWER: nine"))
    run = _run(f"steered-{number}", task, said)
    at = 3 if cause is None else cause
    root = RootCause(step=at, agent=run.steps[at].agent)
    return Record(trajectory=run, annotation=Annotation(failed=True, root_cause=root, group=task))


def dialogue(number: int, *, failed: bool) -> Record:
    """Return a run of one agent with tools and a user; a failed run books without a search."""
    looks = [_call("get_berth", number, "free: 7")] if not failed else []
    books = [_call("book_berth", number, "Error: berth taken" if failed else "booked")]
    texts = [
        (U, "user", f"I need a berth for boat {number}.", ()),
        (A, "assistant", "", tuple(looks or books)),
        (A, "assistant", "", tuple(books)),
        (U, "user", "No, that is wrong." if failed else "Great, thanks.", ()),
        (A, "assistant", "I apologise, I am unable to do that." if failed else "You are welcome to it.", ()),
    ]
    steps = tuple(
        Step(
            index=i,
            source=source,
            agent=agent,
            content=text,
            tool_calls=tuple(call for call, _ in calls),
            observations=tuple(seen for _, seen in calls),
        )
        for i, (source, agent, text, calls) in enumerate(texts)
    )
    task = f"Book berth {number}."
    run = Trajectory(id=f"talk-{number}-{failed}", format="test", task=task, steps=steps)
    return Record(trajectory=run, annotation=Annotation(failed=failed, group=str(number)))


def _call(name: str, number: int, text: str) -> tuple[ToolCall, Observation]:
    call = ToolCall(id=f"{name}-{number}", name=name, arguments={"boat": number})
    return call, Observation(content=text, call_id=call.id, tool=name)


def _run(id: str, task: str, turns: list[tuple[Source, str, str]]) -> Trajectory:
    steps = tuple(
        Step(index=i, source=source, agent=agent, content=text)
        for i, (source, agent, text) in enumerate(turns)
    )
    return Trajectory(id=id, format="test", task=task, steps=steps)

"""Synthetic runs: one failure with interchangeable names, numbers and topics."""

from __future__ import annotations

from dataclasses import dataclass

from agentguard.trajectory.model import Annotation, Record, RootCause, Source, Step, Trajectory

A, E = Source.AGENT, Source.ENVIRONMENT


@dataclass(frozen=True)
class Cast:
    """Topic of an invented run: agents, counted things, places and numbers."""

    lead: str = "Harbour_Expert"
    worker: str = "DataClerk"
    shell: str = "Shell"
    thing: str = "ferries"
    place: str = "Lisbon"
    first: str = "417"
    last: str = "58.25"
    run: str = "one"


LISBON = Cast()
BERGEN = Cast(
    lead="Orchard_Keeper",
    worker="TreeHands",
    shell="Stdio",
    thing="peaches",
    place="Bergen",
    first="693",
    last="71.90",
    run="two",
)
"""Letter for letter as long as the other: lengths are traits, too."""

GOLD = 2


def invented(cast: Cast = LISBON, *, step: int | None = GOLD, reason: str = "") -> Record:
    """Return a run of a worker that assumes values, runs code on them, and reports the result."""
    task = f"How many {cast.thing} were counted in {cast.place} last winter?"
    turns = (
        (A, cast.lead, f"You are given: {task} {cast.worker} counts, and verifies the result."),
        (A, cast.worker, f"I will search for the {cast.thing} of {cast.place} first, step by step."),
        (
            A,
            cast.worker,
            f"I could not access the source. Let's assume sample data for {cast.thing}: {cast.first}.\n"
            f"```python\n{cast.thing} = [{cast.first}]\nprint({cast.thing})\n```",
        ),
        (E, cast.shell, f"exitcode: 0 (execution succeeded)\n{cast.first}"),
        (A, cast.lead, f"Thank you. The result {cast.first} looks plausible, {cast.worker}."),
        (A, cast.worker, f"The final answer is {cast.last}. TERMINATE"),
    )
    run = Trajectory(
        id=cast.run,
        format="made",
        task=task,
        steps=tuple(
            Step(index=i, source=source, agent=agent, content=text)
            for i, (source, agent, text) in enumerate(turns)
        ),
    )
    cause = None if step is None else RootCause(step=step, agent=cast.worker, reason=reason)
    return Record(trajectory=run, annotation=Annotation(failed=True, root_cause=cause, group=task))

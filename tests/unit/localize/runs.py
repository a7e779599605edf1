"""Small runs written for the tests of localizers and evaluation."""

from __future__ import annotations

from agentguard.trajectory.model import Annotation, Observation, Record, RootCause, Source, Step, Trajectory

A, E, U = Source.AGENT, Source.ENVIRONMENT, Source.USER


def run(*turns: tuple[Source, str, str], id: str = "r", task: str = "Count the red boats.") -> Trajectory:
    steps = tuple(
        Step(index=i, source=source, agent=agent, content=content)
        for i, (source, agent, content) in enumerate(turns)
    )
    return Trajectory(id=id, format="test", task=task, steps=steps)


def chat(*, id: str = "chat", executes: bool = False, task: str = "Count the red boats.") -> Trajectory:
    """Return a group chat that begins with the forwarded task; the shell may answer it at once."""
    opening = [(A, "Boats_Expert", f"You are given a task: {task} Plan first.")]
    shell = [(E, "Shell", "exitcode: 0\n3")] if executes else []
    rest = [
        (A, "Counting_Expert", "I assume that there are 4 boats."),
        (E, "Shell", "exitcode: 1 (execution failed)\nNameError: boats"),
        (A, "Boats_Expert", "The answer is 4."),
    ]
    return run(*opening, *shell, *rest, id=id, task=task)


def steered(*, id: str = "steered", task: str = "Find a quiet harbour.") -> Trajectory:
    """Return a run of an orchestrator that plans and assigns, and two workers."""
    return run(
        (U, "human", task),
        (A, "Orchestrator", f"Initial plan for: {task}"),
        (A, "Orchestrator", "Next: Browser, please search."),
        (A, "Browser", "I typed the words into the search box."),
        (A, "Orchestrator", "Next: Reader."),
        (A, "Reader", "The harbour is called Elm."),
        id=id,
        task=task,
    )


def calls(*flags: bool | None, id: str = "calls", text: str = "fine") -> Trajectory:
    """Return a run of one agent whose tool calls return in the same step, flagged as errors or not."""
    steps = tuple(
        Step(
            index=i,
            source=A,
            agent="agent",
            content="next",
            observations=(Observation(content=text, call_id=str(i), is_error=flag),),
        )
        for i, flag in enumerate(flags)
    )
    return Trajectory(id=id, format="test", task="Book a berth.", steps=steps)


def record(
    trajectory: Trajectory, step: int | None = None, *, failed: bool = True, group: str = ""
) -> Record:
    """Return a record whose root cause is ``step``, by the agent that made it."""
    cause = None if step is None else RootCause(step=step, agent=trajectory.steps[step].agent)
    return Record(
        trajectory=trajectory,
        annotation=Annotation(failed=failed, root_cause=cause, group=group or trajectory.id),
    )

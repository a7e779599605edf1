"""Who does what in a run, told from behaviour: executor, orchestrator, worker, user; and who can be at fault.

Steps that only execute or relay are no candidates. Positions are ordinals among candidates or workers, never
indices of the recording, so that they mean the same whether a framework logs one entry a turn or four.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from itertools import pairwise

from agentguard.judge.features.scan import Scan, scan, words_of
from agentguard.trajectory.model import Source, Step, Trajectory

_RELAY_WORDS = 6
_EMPTY_WORDS = 3
_OBSERVED = 3_000


class Role(StrEnum):
    """What a speaker does in a run."""

    USER = "user"
    SYSTEM = "system"
    EXECUTOR = "executor"
    ORCHESTRATOR = "orchestrator"
    WORKER = "worker"


@dataclass(frozen=True, slots=True, kw_only=True)
class Layout:
    """A run as the features see it.

    Attributes:
        run: the run.
        roles: role of each step.
        said: scan of what each step said and did; ``seen``: of what came back inside it, if anything did.
        candidates: indices of the steps that can be at fault, in order; never empty if the run has steps.
        place: index of a candidate to its ordinal.
        brief: indices of opening steps that hand on the task.
        workers: indices of the workers' turns, with the brief only if it was acted on at once.
        turn: index of a workers' turn to its ordinal.
        task_words: words of the task.
        answered: whether one of the last steps ends the run with words of its own.
    """

    run: Trajectory
    roles: tuple[Role, ...]
    said: tuple[Scan, ...]
    seen: tuple[Scan | None, ...]
    candidates: tuple[int, ...]
    place: dict[int, int]
    brief: frozenset[int]
    workers: tuple[int, ...]
    turn: dict[int, int]
    task_words: frozenset[str]
    answered: bool

    @property
    def orchestrated(self) -> bool:
        """Whether one agent hands out the work."""
        return Role.ORCHESTRATOR in self.roles

    def outcome(self, index: int) -> Scan | None:
        """What came back from a step: inside it, or from the executor that speaks next."""
        if self.seen[index] is not None:
            return self.seen[index]
        after = index + 1
        executed = after < len(self.roles) and self.roles[after] is Role.EXECUTOR
        return self.said[after] if executed else None

    def ran(self, index: int) -> bool:
        """Whether something the step handed over was executed."""
        outcome = self.outcome(index)
        return outcome is not None and not outcome.idle

    def acts(self, index: int) -> bool:
        """Whether the step has code or calls a tool."""
        return self.said[index].has_code or bool(self.run.steps[index].tool_calls)


def layout(run: Trajectory) -> Layout:
    """Read a run once."""
    roles = _roles(run)
    said = tuple(scan(_spoken(step)) for step in run.steps)
    seen = tuple(_seen(step) for step in run.steps)
    candidates = _candidates(run, roles, said)
    task = frozenset(word for word in words_of(run.task.lower()) if len(word) > 3)
    brief = frozenset(i for i in range(min(2, len(roles))) if _hands_on(i, roles, said, task))
    workers = tuple(i for i in candidates if _works(i, roles, said, brief))
    return Layout(
        run=run,
        roles=roles,
        said=said,
        seen=seen,
        candidates=candidates,
        place={index: place for place, index in enumerate(candidates)},
        brief=brief,
        workers=workers,
        turn={index: turn for turn, index in enumerate(workers)},
        task_words=task,
        answered=any(scanned.ends for scanned in said[-3:]),
    )


def _spoken(step: Step) -> str:
    texts = [text for field, text in step.texts() if not field.startswith("observations")]
    return texts[0] if len(texts) == 1 else "\n".join(texts)


def _seen(step: Step) -> Scan | None:
    if not step.observations:
        return None
    return scan("\n".join(observation.content for observation in step.observations), _OBSERVED)


_BY_SOURCE = {
    Source.USER: Role.USER,
    Source.SYSTEM: Role.SYSTEM,
    Source.ENVIRONMENT: Role.EXECUTOR,
    Source.AGENT: Role.WORKER,
}


def _roles(run: Trajectory) -> tuple[Role, ...]:
    chief = _orchestrator(run.steps)
    return tuple(
        Role.ORCHESTRATOR if step.source is Source.AGENT and step.agent == chief else _BY_SOURCE[step.source]
        for step in run.steps
    )


def _orchestrator(steps: Sequence[Step]) -> str | None:
    """The agent that hands out the work most: it names who speaks next, and the others answer to it."""
    speakers = [step.agent for step in steps if step.source is Source.AGENT]
    turns = Counter(speakers)
    if len(turns) < 2:
        return None
    given = _handed(steps)
    best = max(turns, key=lambda name: (given[name], turns[name]))
    others = sum(given.values()) - given[best]
    back = sum(1 for a, b in pairwise(speakers) if a != best and b == best)
    apart = sum(1 for a, b in pairwise(speakers) if a != best and b != best)
    executed = any(b.source is Source.ENVIRONMENT and a.agent == best for a, b in pairwise(steps))
    steers = (
        given[best] >= max(2, others, 0.3 * turns[best])
        and turns[best] >= 0.4 * len(speakers)
        and back >= 2 * apart
        and not executed
    )
    return best if steers else None


def _handed(steps: Sequence[Step]) -> Counter[str]:
    """How often each agent names the agent that takes over from it."""
    given: Counter[str] = Counter()
    low = [step.content[:_OBSERVED].lower() for step in steps]
    for at, step in enumerate(steps):
        if step.source is not Source.AGENT:
            continue
        for after in steps[at + 1 : at + 4]:
            if after.source is Source.AGENT and after.agent != step.agent:
                addressed = after.agent.lower() in str(step.extra.get("role", "")).lower()
                given[step.agent] += addressed or after.agent.lower() in low[at]
                break
    return given


def _candidates(run: Trajectory, roles: Sequence[Role], said: Sequence[Scan]) -> tuple[int, ...]:
    names = {step.agent.lower() for step in run.steps if step.source is Source.AGENT}
    working = [i for i, role in enumerate(roles) if role in (Role.ORCHESTRATOR, Role.WORKER)]
    held = [i for i in working if not _relays(i, roles, said, names) and _says(run.steps[i])]
    if len(held) > 1 and _closes(held[-1], roles, said):
        last = held[-1]
        held = [i for i in held if i < last - 1 or not _closes(i, roles, said)] or held
    full = [i for i in held if _full(said[i]) or run.steps[i].tool_calls]
    return tuple((full if len(held) > 1 else held) or held or working or range(len(roles)))


def _says(step: Step) -> bool:
    return bool(step.content or step.reasoning or step.tool_calls)


def _full(one: Scan) -> bool:
    """Whether a text is more than a word of ending."""
    return one.words > _EMPTY_WORDS or one.has_code or bool(one.numbers)


def _relays(index: int, roles: Sequence[Role], said: Sequence[Scan], names: set[str]) -> bool:
    """Whether an orchestrator's step does no more than name the next speaker."""
    if roles[index] is not Role.ORCHESTRATOR or said[index].words > _RELAY_WORDS:
        return False
    return any(name in said[index].low for name in names)


def _closes(index: int, roles: Sequence[Role], said: Sequence[Scan]) -> bool:
    """Whether an orchestrator's step only reports the end of the run."""
    one = said[index]
    return roles[index] is Role.ORCHESTRATOR and one.ends and one.words < 400 and not one.flags


def _hands_on(index: int, roles: Sequence[Role], said: Sequence[Scan], task: frozenset[str]) -> bool:
    opens = roles[index] is Role.ORCHESTRATOR or (roles[index] is Role.WORKER and index == 0)
    if not opens or not task:
        return False
    return len(task & said[index].vocabulary) > 0.8 * len(task)


def _works(index: int, roles: Sequence[Role], said: Sequence[Scan], brief: frozenset[int]) -> bool:
    if roles[index] is not Role.WORKER:
        return False
    if index not in brief:
        return True
    after = index + 1
    return after < len(roles) and roles[after] is Role.EXECUTOR and not said[after].idle

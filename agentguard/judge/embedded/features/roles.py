"""Roles of the speakers in a run, inferred from behaviour, and the steps that can be at fault.

Steps that only execute or relay are not candidates. Positions are ordinals among candidates or workers, never
indices of the recording. They do not depend on the number of log entries that a framework writes for a turn.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from itertools import pairwise

from agentguard.detect.result_classification import ResultClassification
from agentguard.detect.step_facts import canonicalize_json
from agentguard.detect.tool_names import is_terminal_tool
from agentguard.judge.embedded.features.step_outcomes import classify_outcome, has_no_action
from agentguard.judge.embedded.features.text_scan import TextScan, extract_words, scan_text
from agentguard.trajectory.model import Source, Step, ToolCall, Trajectory

_MAX_RELAY_WORDS = 6
_MAX_EMPTY_WORDS = 3
_MAX_OBSERVATION_CHARS = 3_000
_MIN_ECHO_WORDS = 12
_ECHO_SHARE = 0.9


class SpeakerRole(StrEnum):
    """Role of a speaker in a run."""

    USER = "user"
    SYSTEM = "system"
    EXECUTOR = "executor"
    ORCHESTRATOR = "orchestrator"
    WORKER = "worker"


@dataclass(frozen=True, slots=True, kw_only=True)
class RunLayout:
    """Roles, candidate steps and text scans of a run, as the features need them.

    Attributes:
        run: the run.
        roles: role of each step.
        step_scans: for each step, the scan of its text and tool calls.
        observation_scans: for each step, the scan of its observations; None if it has no observations.
        results: for each step, the classification of its observations, or of an executor's text; else None.
        candidates: indices of the steps that can be at fault, in order; never empty if the run has steps.
        candidate_ordinals: ordinals of candidates by step index.
        task_handoffs: indices of opening steps that pass on the task.
        worker_steps: indices of the workers' turns. A task handoff is included only if the executor acted on
        it at once.
        turn_ordinals: ordinals of the workers' steps by step index.
        task_words: words of the task.
        has_final_answer: whether one of the last three steps is worded as the end of the run, or the last
        step is a terminal action.
    """

    run: Trajectory
    roles: tuple[SpeakerRole, ...]
    step_scans: tuple[TextScan, ...]
    observation_scans: tuple[TextScan | None, ...]
    results: tuple[ResultClassification | None, ...]
    candidates: tuple[int, ...]
    candidate_ordinals: dict[int, int]
    task_handoffs: frozenset[int]
    worker_steps: tuple[int, ...]
    turn_ordinals: dict[int, int]
    task_words: frozenset[str]
    has_final_answer: bool

    @property
    def has_orchestrator(self) -> bool:
        """True if one agent delegates the work."""
        return SpeakerRole.ORCHESTRATOR in self.roles

    def get_outcome_scan(self, index: int) -> TextScan | None:
        """Return the scan of a step's outcome: its observations, or the executor's step directly after it."""
        if self.observation_scans[index] is not None:
            return self.observation_scans[index]
        return self.step_scans[index + 1] if self.precedes_executor(index) else None

    def get_outcome(self, index: int) -> ResultClassification | None:
        """Return the classification of a step's outcome, from the same place as `get_outcome_scan`."""
        if self.observation_scans[index] is not None:
            return self.results[index]
        return self.results[index + 1] if self.precedes_executor(index) else None

    def precedes_executor(self, index: int) -> bool:
        """Return whether the next step is an executor's."""
        return self.roles[index + 1 : index + 2] == (SpeakerRole.EXECUTOR,)

    def was_executed(self, index: int) -> bool:
        """Return whether code or a call of the step was executed."""
        outcome = self.get_outcome(index)
        return outcome is not None and not has_no_action(outcome)

    def is_action(self, index: int) -> bool:
        """Return whether the step has code or calls a tool."""
        return self.step_scans[index].has_code or bool(self.run.steps[index].tool_calls)


def analyze_layout(run: Trajectory) -> RunLayout:
    """Assign roles and find the candidate steps of a run."""
    roles = _assign_roles(run)
    scans = tuple(scan_text(_collect_step_text(step)) for step in run.steps)
    observation_scans = tuple(_scan_observations(step) for step in run.steps)
    results = tuple(classify_outcome(step) for step in run.steps)
    task = frozenset(word for word in extract_words(run.task.lower()) if len(word) > 3)
    task_handoffs = _find_task_handoffs(run, roles, scans, task)
    candidates = _find_candidates(run, roles, scans, task_handoffs)
    workers = tuple(i for i in candidates if _is_worker_step(i, roles, results, task_handoffs))
    return RunLayout(
        run=run,
        roles=roles,
        step_scans=scans,
        observation_scans=observation_scans,
        results=results,
        candidates=candidates,
        candidate_ordinals={index: ordinal for ordinal, index in enumerate(candidates)},
        task_handoffs=task_handoffs,
        worker_steps=workers,
        turn_ordinals={index: turn for turn, index in enumerate(workers)},
        task_words=task,
        has_final_answer=any(scanned.is_ending for scanned in scans[-3:]) or _ends_with_terminal_action(run),
    )


def _collect_step_text(step: Step) -> str:
    return "\n".join(filter(None, (step.reasoning, step.content, *map(render_arguments, step.tool_calls))))


def render_arguments(call: ToolCall) -> str:
    """Return the arguments of a call as canonical JSON, or the recorded text if it could not be parsed."""
    return (call.raw_arguments or "") if call.arguments is None else canonicalize_json(call.arguments)


def _scan_observations(step: Step) -> TextScan | None:
    if not step.observations:
        return None
    return scan_text(
        "\n".join(observation.content for observation in step.observations), _MAX_OBSERVATION_CHARS
    )


_ROLE_BY_SOURCE = {
    Source.USER: SpeakerRole.USER,
    Source.SYSTEM: SpeakerRole.SYSTEM,
    Source.ENVIRONMENT: SpeakerRole.EXECUTOR,
    Source.AGENT: SpeakerRole.WORKER,
}


def _assign_roles(run: Trajectory) -> tuple[SpeakerRole, ...]:
    chief = _find_orchestrator(run.steps)
    return tuple(
        SpeakerRole.ORCHESTRATOR
        if step.source is Source.AGENT and step.agent == chief
        else _ROLE_BY_SOURCE[step.source]
        for step in run.steps
    )


def _find_orchestrator(steps: Sequence[Step]) -> str | None:
    """Return the agent that delegates most of the work, or None.

    An orchestrator names the next speaker, and the other agents answer to it.
    """
    speakers = [step.agent for step in steps if step.source is Source.AGENT]
    turns = Counter(speakers)
    if len(turns) < 2:
        return None
    handoffs = _count_handoffs(steps)
    candidate = max(turns, key=lambda name: (handoffs[name], turns[name]))
    others = sum(handoffs.values()) - handoffs[candidate]
    returns = sum(1 for a, b in pairwise(speakers) if a != candidate and b == candidate)
    detours = sum(1 for a, b in pairwise(speakers) if a != candidate and b != candidate)
    has_execution = any(b.source is Source.ENVIRONMENT and a.agent == candidate for a, b in pairwise(steps))
    is_orchestrator = (
        handoffs[candidate] >= max(2, others, 0.3 * turns[candidate])
        and turns[candidate] >= 0.4 * len(speakers)
        and returns >= 2 * detours
        and not has_execution
    )
    return candidate if is_orchestrator else None


def _count_handoffs(steps: Sequence[Step]) -> Counter[str]:
    """Return the number of times that each agent names the next speaker."""
    counts: Counter[str] = Counter()
    contents = [step.content[:_MAX_OBSERVATION_CHARS].lower() for step in steps]
    for index, step in enumerate(steps):
        if step.source is not Source.AGENT:
            continue
        for next_step in steps[index + 1 : index + 4]:
            if next_step.source is Source.AGENT and next_step.agent != step.agent:
                is_addressed = next_step.agent.lower() in str(step.extra.get("role", "")).lower()
                counts[step.agent] += is_addressed or next_step.agent.lower() in contents[index]
                break
    return counts


def _find_candidates(
    run: Trajectory, roles: Sequence[SpeakerRole], scans: Sequence[TextScan], handoffs: frozenset[int]
) -> tuple[int, ...]:
    names = {step.agent.lower() for step in run.steps if step.source is Source.AGENT}
    working = [i for i, role in enumerate(roles) if role in (SpeakerRole.ORCHESTRATOR, SpeakerRole.WORKER)]
    steps = [
        i
        for i in working
        if not _is_relay(i, roles, scans, names)
        and _has_content(run.steps[i])
        and (i in handoffs or not _is_prompt_echo(run, i, scans))
    ]
    if len(steps) > 1 and _is_closing(steps[-1], roles, scans):
        last = steps[-1]
        steps = [i for i in steps if i < last - 1 or not _is_closing(i, roles, scans)] or steps
    # The answer of a run with tools is a candidate even if it is short: findings on the end name it.
    answer = steps[-1] if any(step.tool_calls for step in run.steps) and steps else None
    substantial = [i for i in steps if _is_substantial(scans[i]) or run.steps[i].tool_calls or i == answer]
    return tuple((substantial if len(steps) > 1 else steps) or steps or working or range(len(roles)))


def _is_prompt_echo(run: Trajectory, index: int, scans: Sequence[TextScan]) -> bool:
    """Return whether a turn without a call only repeats the message before it, the task or its prompt."""
    step, words = run.steps[index], scans[index].vocabulary
    if len(words) < _MIN_ECHO_WORDS or step.tool_calls:
        return False
    previous = run.steps[index - 1] if index else None
    if (
        previous is not None
        and previous.agent != step.agent
        and _is_alike(words, scans[index - 1].vocabulary)
    ):
        return True
    prompts = (run.task, run.system_prompts.get(step.agent, ""), run.system_prompts.get("", ""))
    length = scans[index].length
    return any(
        0.8 * length <= len(prompt) <= 1.25 * length and _is_alike(words, scan_text(prompt).vocabulary)
        for prompt in prompts
    )


def _is_alike(words: frozenset[str], other: frozenset[str]) -> bool:
    return len(words & other) >= _ECHO_SHARE * len(words | other)


def _has_content(step: Step) -> bool:
    return bool(step.content or step.reasoning or step.tool_calls)


def _is_substantial(scan_result: TextScan) -> bool:
    """Return whether a text has more than a few words, or code, or a number."""
    return scan_result.word_count > _MAX_EMPTY_WORDS or scan_result.has_code or bool(scan_result.numbers)


def _is_relay(index: int, roles: Sequence[SpeakerRole], scans: Sequence[TextScan], names: set[str]) -> bool:
    """Return whether an orchestrator's step only names the next speaker."""
    if roles[index] is not SpeakerRole.ORCHESTRATOR or scans[index].word_count > _MAX_RELAY_WORDS:
        return False
    return any(name in scans[index].lower_text for name in names)


def _is_closing(index: int, roles: Sequence[SpeakerRole], scans: Sequence[TextScan]) -> bool:
    """Return whether an orchestrator's step only reports the end of the run."""
    one = scans[index]
    return (
        roles[index] is SpeakerRole.ORCHESTRATOR and one.is_ending and one.word_count < 400 and not one.flags
    )


def _find_task_handoffs(
    run: Trajectory, roles: Sequence[SpeakerRole], scans: Sequence[TextScan], task: frozenset[str]
) -> frozenset[int]:
    """Return the opening turns that pass on the task, with the rest of the opener's uninterrupted stretch.

    The stretch ends where the opener acts. A run of a single agent has no handoff beyond its first turns.
    """
    handoffs = [i for i in range(min(2, len(roles))) if _is_task_handoff(i, roles, scans, task)]
    if not handoffs or len({step.agent for step in run.steps if step.source is Source.AGENT}) < 2:
        return frozenset(handoffs)
    index = handoffs[-1] + 1
    opener = run.steps[handoffs[-1]].agent
    while index < len(roles) and run.steps[index].agent == opener and not run.steps[index].tool_calls:
        if index + 1 < len(roles) and roles[index + 1] is SpeakerRole.EXECUTOR:
            break
        handoffs.append(index)
        index += 1
    return frozenset(handoffs)


def _ends_with_terminal_action(run: Trajectory) -> bool:
    return bool(run.steps) and any(is_terminal_tool(call.name) for call in run.steps[-1].tool_calls)


def _is_task_handoff(
    index: int, roles: Sequence[SpeakerRole], scans: Sequence[TextScan], task: frozenset[str]
) -> bool:
    opens = roles[index] is SpeakerRole.ORCHESTRATOR or (roles[index] is SpeakerRole.WORKER and index == 0)
    if not opens or not task:
        return False
    return len(task & scans[index].vocabulary) > 0.8 * len(task)


def _is_worker_step(
    index: int,
    roles: Sequence[SpeakerRole],
    results: Sequence[ResultClassification | None],
    handoffs: frozenset[int],
) -> bool:
    if roles[index] is not SpeakerRole.WORKER:
        return False
    if index not in handoffs:
        return True
    after = index + 1
    executed = after < len(roles) and roles[after] is SpeakerRole.EXECUTOR
    return executed and not has_no_action(results[after])

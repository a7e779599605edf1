"""State of a run before a step and context of the whole run, computed in time linear in its steps."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field

from agentguard.detect.result_classification import ResultClassification
from agentguard.judge.embedded.features.lexicon import CLASS_INDEX
from agentguard.judge.embedded.features.outcomes import has_no_action, is_empty, is_failed
from agentguard.judge.embedded.features.roles import RunLayout, SpeakerRole
from agentguard.judge.embedded.features.text_scan import (
    TextScan,
    extract_names,
    extract_numbers,
    extract_words,
)

_ASSUME, _CORRECT = CLASS_INDEX["assume"], CLASS_INDEX["correct"]
_FAILURE = CLASS_INDEX["failure"]
_MIN_REPORT_FAILURES = 3  # words of failure that a worker's own report needs to count as an error


def compute_jaccard_overlap(a: frozenset[str], b: frozenset[str]) -> float:
    """Compute the Jaccard overlap, slightly shrunk; 0 if either is empty."""
    return len(a & b) / (1 + len(a | b)) if a and b else 0.0


def compute_coverage(a: frozenset[str], b: frozenset[str] | set[str]) -> float:
    """Compute the share of ``a`` that is in ``b``."""
    return len(a & b) / len(a) if a else 0.0


@dataclass(slots=True)
class RunProgress:
    """Counters before the current step.

    ``last_outcome`` is 1 if the last execution returned something, -0.5 if little, and -1 if it failed.
    """

    numbers: set[str]
    words: set[str]
    names: set[str]
    env_numbers: set[str]
    env_names: set[str] = field(default_factory=set)
    turns: dict[str, tuple[int, frozenset[str]]] = field(default_factory=dict)
    error_count: int = 0
    last_error: int | None = None
    assumption_count: int = 0
    correction_count: int = 0
    action_count: int = 0
    execution_count: int = 0
    successful_executions: int = 0
    failed_executions: int = 0
    evidence_characters: int = 0
    substantial_turns: int = 0
    claim_count: int = 0
    turns_after_execution: int = 0
    last_outcome: float = 0.0
    flags: dict[str, bool] = field(default_factory=dict)
    code_words: list[frozenset[str]] = field(default_factory=list)


@dataclass(frozen=True, slots=True, kw_only=True)
class RunContext:
    """Properties of the whole run that the features need.

    Attributes:
        error_flags: for each step, whether its outcome shows an error.
        error_steps: indices of the steps with an error.
        task_numbers, task_names: numbers and names in the task.
        final_steps: indices of the last two substantial candidates.
        final_words: words of the final steps that neither the task nor a task handoff contains.
        final_numbers, final_names: numbers and names of the run's last three steps; numbers without those of
            the task.
        first_mention_weight: step to the weight of the final words that it contains first.
        first_mention_total: sum of these weights, plus one.
        handoff_repetition: task handoff to the shares of the task's words that it contains at least twice,
            and at least three times.
        handoff_alignment: minimum of the first share; a handoff that strays from the task repeats little of
            it.
        mention_weight_before: step to the weight of first mentions before it.
        max_first_mention: maximum weight of a step by an author, not by the executor or a handoff.
        last_step_of_number: number to the last candidate that contains it.
        remaining_actions: candidate to the number of executions and actions from it on.
        all_failed: whether every execution failed.
        turns_by_agent: agent to the number of its candidates and the index of the last one.
        mean_length, max_length: length of the candidates' texts; the mean plus one.
    """

    error_flags: tuple[bool, ...]
    error_steps: tuple[int, ...]
    task_numbers: frozenset[str]
    task_names: frozenset[str]
    final_steps: tuple[int, ...]
    final_words: frozenset[str]
    final_numbers: frozenset[str]
    final_names: frozenset[str]
    first_mention_weight: dict[int, float]
    first_mention_total: float
    handoff_repetition: dict[int, tuple[float, float]]
    handoff_alignment: float
    mention_weight_before: dict[int, float]
    max_first_mention: float
    last_step_of_number: dict[str, int]
    remaining_actions: dict[int, tuple[int, int]]
    all_failed: bool
    turns_by_agent: dict[str, tuple[int, int]]
    mean_length: float
    max_length: int


def build_run_context(layout: RunLayout) -> RunContext:
    """Compute the context of a run in one pass."""
    scans, task = layout.step_scans, layout.run.task
    error_flags = tuple(_has_error(layout, i) for i in range(len(scans)))
    final_steps = (
        tuple(i for i in layout.candidates if scans[i].word_count > 12)[-2:] or layout.candidates[-2:]
    )
    ending = [
        scans[i]
        for i in range(max(0, len(scans) - 3), len(scans))
        if layout.roles[i] not in (SpeakerRole.EXECUTOR, SpeakerRole.USER)
    ]
    task_numbers = extract_numbers(task)
    task_words = _union(layout.task_words, task_numbers, *(scans[i].vocabulary for i in layout.task_handoffs))
    final_words = _union(*(_tokens(scans[i]) for i in final_steps)) - task_words
    first_weights = _compute_first_mentions(layout, final_words)
    repeats = {i: _compute_handoff_repetition(layout, i) for i in layout.task_handoffs}
    lengths = [scans[i].length for i in layout.candidates] or [0]
    return RunContext(
        error_flags=error_flags,
        error_steps=tuple(i for i, value in enumerate(error_flags) if value),
        task_numbers=task_numbers,
        task_names=extract_names(task),
        final_steps=final_steps,
        final_words=final_words,
        final_numbers=_union(*(one.numbers for one in ending)) - task_numbers,
        final_names=_union(*(one.names for one in ending)),
        first_mention_weight=first_weights,
        first_mention_total=sum(first_weights.values()) + 1,
        handoff_repetition=repeats,
        mention_weight_before=_accumulate_weights(layout, first_weights),
        max_first_mention=max((w for i, w in first_weights.items() if _is_authored(layout, i)), default=0.0),
        handoff_alignment=min((twice_share for twice_share, _ in repeats.values()), default=1.0),
        last_step_of_number={number: i for i in layout.candidates for number in layout.step_scans[i].numbers},
        remaining_actions=_count_remaining(layout),
        all_failed=_did_all_fail(layout),
        turns_by_agent=_count_turns(layout),
        mean_length=sum(lengths) / len(lengths) + 1,
        max_length=max(lengths),
    )


def start_progress(layout: RunLayout, context: RunContext) -> RunProgress:
    """Return the state before the first step."""
    return RunProgress(
        numbers=set(context.task_numbers),
        words=set(layout.task_words),
        names=set(context.task_names),
        env_numbers=set(context.task_numbers),
    )


def is_idle(layout: RunLayout, context: RunContext, index: int) -> bool:
    """Return whether a turn neither acts nor adds a number or a list."""
    one = layout.step_scans[index]
    return (
        not layout.is_action(index)
        and not (one.numbers - context.task_numbers)
        and one.items < 3
        and one.word_count < 90
    )


def update_progress(progress: RunProgress, layout: RunLayout, context: RunContext, index: int) -> None:
    """Update the state with one more step."""
    scan, observation_scan, role = (
        layout.step_scans[index],
        layout.observation_scans[index],
        layout.roles[index],
    )
    progress.numbers |= scan.numbers
    progress.words |= scan.vocabulary
    progress.names |= scan.names
    if role in (SpeakerRole.EXECUTOR, SpeakerRole.USER):
        progress.env_numbers |= scan.numbers
    if role is SpeakerRole.EXECUTOR:
        _add_outcome(progress, scan, layout.results[index])
    elif role in (SpeakerRole.ORCHESTRATOR, SpeakerRole.WORKER):
        _add_turn(progress, layout, context, index)
    if observation_scan is not None:
        progress.numbers |= observation_scan.numbers
        progress.env_numbers |= observation_scan.numbers
        _add_outcome(progress, observation_scan, layout.results[index])
    if context.error_flags[index]:
        progress.error_count += 1
        progress.last_error = index


def _add_outcome(progress: RunProgress, outcome: TextScan, result: ResultClassification | None) -> None:
    progress.env_names |= outcome.names
    if has_no_action(result):
        return
    progress.execution_count += 1
    if is_failed(result):
        progress.last_outcome = -1.0
        progress.failed_executions += 1
    elif is_empty(result):
        progress.last_outcome = -0.5
    else:
        progress.last_outcome = 1.0
        progress.successful_executions += 1
        progress.evidence_characters += outcome.length


def _add_turn(progress: RunProgress, layout: RunLayout, context: RunContext, index: int) -> None:
    one, agent = layout.step_scans[index], layout.run.steps[index].agent
    before, _ = progress.turns.get(agent, (0, frozenset()))
    progress.turns[agent] = (before + 1, one.vocabulary)
    progress.assumption_count += one.class_counts[_ASSUME] > 0
    progress.correction_count += one.class_counts[_CORRECT] > 0
    if one.flags:
        progress.flags = dict(one.flags)
    if index in layout.task_handoffs:
        progress.env_names |= one.names
        progress.env_numbers |= one.numbers
        return
    progress.turns_after_execution += not layout.is_action(index) and progress.execution_count > 0
    progress.substantial_turns += not is_idle(layout, context, index)
    if layout.is_action(index):
        progress.action_count += 1
        progress.code_words.append(one.code.identifiers)


def _has_error(layout: RunLayout, index: int) -> bool:
    """Return whether a result is an error, or the report of a directed worker is mostly about failure."""
    if layout.results[index] is not None:
        return is_failed(layout.results[index])
    is_report = layout.roles[index] is SpeakerRole.WORKER and layout.has_orchestrator
    return is_report and layout.step_scans[index].class_counts[_FAILURE] >= _MIN_REPORT_FAILURES


def _tokens(scan: TextScan) -> frozenset[str]:
    return scan.vocabulary | scan.numbers | scan.names


def _union(*sets: frozenset[str]) -> frozenset[str]:
    return frozenset().union(*sets)


def _compute_first_mentions(layout: RunLayout, wanted: frozenset[str]) -> dict[int, float]:
    """Map each step to the weight of the wanted words that it, or its observations, contain first."""
    remaining, weights = set(wanted), {}
    for index, role in enumerate(layout.roles):
        if role in (SpeakerRole.USER, SpeakerRole.SYSTEM) or not remaining:
            continue
        observation_scan = layout.observation_scans[index]
        mentions = remaining & (
            _tokens(layout.step_scans[index])
            | (_tokens(observation_scan) if observation_scan is not None else frozenset())
        )
        if mentions:
            weights[index] = sum(map(_weight, sorted(mentions)))
            remaining -= mentions
    return weights


def _weight(word: str) -> float:
    return 3.0 if word[0].isdigit() else 1.5 if word[0].isupper() else 0.5


def _is_authored(layout: RunLayout, index: int) -> bool:
    return layout.roles[index] is not SpeakerRole.EXECUTOR and index not in layout.task_handoffs


def _accumulate_weights(layout: RunLayout, first: dict[int, float]) -> dict[int, float]:
    before, total = {}, 0.0
    for index in range(len(layout.roles)):
        before[index] = total
        total += first.get(index, 0.0)
    return before


def _count_remaining(layout: RunLayout) -> dict[int, tuple[int, int]]:
    remaining, runs, acts = {}, 0, 0
    for index in reversed(layout.candidates):
        runs += layout.was_executed(index)
        acts += layout.is_action(index)
        remaining[index] = runs, acts
    return remaining


def _did_all_fail(layout: RunLayout) -> bool:
    outcomes = [layout.get_outcome(index) for index in layout.candidates if layout.was_executed(index)]
    return bool(outcomes) and all(map(is_failed, outcomes))


def _count_turns(layout: RunLayout) -> dict[str, tuple[int, int]]:
    turns: dict[str, tuple[int, int]] = {}
    for index in layout.candidates:
        agent = layout.run.steps[index].agent
        turns[agent] = turns.get(agent, (0, 0))[0] + 1, index
    return turns


def _compute_handoff_repetition(layout: RunLayout, index: int) -> tuple[float, float]:
    """Compute the share of task words that a handoff has at least twice, and at least three times."""
    task = layout.task_words
    counts = Counter(word for word in extract_words(layout.step_scans[index].lower_text) if word in task)
    total = max(1, len(task))
    return sum(1 for n in counts.values() if n >= 2) / total, sum(
        1 for n in counts.values() if n >= 3
    ) / total


def iter_previous_items(items: tuple[int, ...], place: int, width: int) -> Iterator[int]:
    """Yield up to ``width`` items before ``place``."""
    yield from items[max(0, place - width) : place]

"""State of a run before a step and context of the whole run, computed in time linear in its steps."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

from agentguard.detect.result_classification import ResultClassification
from agentguard.detect.step_facts import lazy_property
from agentguard.judge.embedded.features.lexicon import CLASS_INDEX
from agentguard.judge.embedded.features.roles import RunLayout, SpeakerRole
from agentguard.judge.embedded.features.step_outcomes import has_no_action, is_empty, is_failed
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
    """Compute the Jaccard index with one more element in the union; 0 if either set is empty."""
    return len(a & b) / (1 + len(a | b)) if a and b else 0.0


def compute_coverage(a: frozenset[str], b: frozenset[str] | set[str]) -> float:
    """Compute the share of ``a`` that is in ``b``; 0 if ``a`` is empty."""
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


class RunContext:
    """Properties of the whole run, each computed when a feature first reads it.

    Attributes:
        layout: the run's layout.
        error_flags: for each step, True if its outcome shows an error.
        error_steps: indices of the steps with an error.
        mean_length, max_length: length of the candidates' texts; the mean plus one.
    """

    def __init__(self, layout: RunLayout) -> None:
        self.layout = layout
        self.error_flags = tuple(_has_error(layout, i) for i in range(len(layout.step_scans)))
        self.error_steps = tuple(i for i, value in enumerate(self.error_flags) if value)
        lengths = [layout.step_scans[i].length for i in layout.candidates] or [0]
        self.mean_length, self.max_length = sum(lengths) / len(lengths) + 1, max(lengths)

    @lazy_property
    def task_numbers(self) -> frozenset[str]:
        """Numbers in the task."""
        return extract_numbers(self.layout.run.task)

    @lazy_property
    def task_names(self) -> frozenset[str]:
        """Names in the task."""
        return extract_names(self.layout.run.task)

    @lazy_property
    def final_steps(self) -> tuple[int, ...]:
        """Indices of the last two substantial candidates."""
        scans, candidates = self.layout.step_scans, self.layout.candidates
        return tuple(i for i in candidates if scans[i].word_count > 12)[-2:] or candidates[-2:]

    @lazy_property
    def final_words(self) -> frozenset[str]:
        """Words of the final steps that neither the task nor a task handoff contains."""
        layout, scans = self.layout, self.layout.step_scans
        handoff_words = (scans[i].vocabulary for i in layout.task_handoffs)
        known = _build_union(layout.task_words, self.task_numbers, *handoff_words)
        return _build_union(*(_extract_tokens(scans[i]) for i in self.final_steps)) - known

    @lazy_property
    def _ending(self) -> list[TextScan]:
        scans, roles = self.layout.step_scans, self.layout.roles
        last = range(max(0, len(scans) - 3), len(scans))
        return [scans[i] for i in last if roles[i] not in (SpeakerRole.EXECUTOR, SpeakerRole.USER)]

    @lazy_property
    def final_numbers(self) -> frozenset[str]:
        """Numbers of the run's last three steps, without those of the task."""
        return _build_union(*(one.numbers for one in self._ending)) - self.task_numbers

    @lazy_property
    def final_names(self) -> frozenset[str]:
        """Names of the run's last three steps."""
        return _build_union(*(one.names for one in self._ending))

    @lazy_property
    def first_mention_weight(self) -> dict[int, float]:
        """By step, the weight of the final words that occur there first."""
        return _compute_first_mentions(self.layout, self.final_words)

    @lazy_property
    def first_mention_total(self) -> float:
        """Sum of the weights of first mentions, plus one."""
        return sum(self.first_mention_weight.values()) + 1

    @lazy_property
    def mention_weight_before(self) -> dict[int, float]:
        """By step, the weight of the first mentions before it."""
        return _accumulate_weights(self.layout, self.first_mention_weight)

    @lazy_property
    def max_first_mention(self) -> float:
        """Maximum weight of a step by an author, not by the executor or a handoff."""
        weights = self.first_mention_weight.items()
        return max((weight for i, weight in weights if _is_authored(self.layout, i)), default=0.0)

    @lazy_property
    def handoff_repetition(self) -> dict[int, tuple[float, float]]:
        """By task handoff, the shares of the task's words that occur at least twice, and three times."""
        return {i: _compute_handoff_repetition(self.layout, i) for i in self.layout.task_handoffs}

    @lazy_property
    def handoff_alignment(self) -> float:
        """Minimum of the first share; a handoff with another topic repeats little of the task."""
        return min((twice_share for twice_share, _ in self.handoff_repetition.values()), default=1.0)

    @lazy_property
    def last_step_of_number(self) -> dict[str, int]:
        """Number to the last candidate that contains it."""
        return {number: i for i in self.layout.candidates for number in self.layout.step_scans[i].numbers}

    @lazy_property
    def remaining_actions(self) -> dict[int, tuple[int, int]]:
        """By candidate, the number of executions and actions from it on."""
        return _count_remaining(self.layout)

    @lazy_property
    def all_failed(self) -> bool:
        """True if every execution failed."""
        return _did_all_fail(self.layout)

    @lazy_property
    def turns_by_agent(self) -> dict[str, tuple[int, int]]:
        """By agent, the number of its candidates and the index of the last one."""
        return _count_turns(self.layout)


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
    """Return whether a result is an error, or a worker under an orchestrator mostly reports failure."""
    if layout.results[index] is not None:
        return is_failed(layout.results[index])
    is_report = layout.roles[index] is SpeakerRole.WORKER and layout.has_orchestrator
    return is_report and layout.step_scans[index].class_counts[_FAILURE] >= _MIN_REPORT_FAILURES


def _extract_tokens(scan: TextScan) -> frozenset[str]:
    return scan.vocabulary | scan.numbers | scan.names


def _build_union(*sets: frozenset[str]) -> frozenset[str]:
    return frozenset().union(*sets)


def _compute_first_mentions(layout: RunLayout, wanted: frozenset[str]) -> dict[int, float]:
    """Map each step to the weight of the wanted words that it, or its observations, contain first."""
    remaining, weights = set(wanted), {}
    for index, role in enumerate(layout.roles):
        if role in (SpeakerRole.USER, SpeakerRole.SYSTEM) or not remaining:
            continue
        observation_scan = layout.observation_scans[index]
        mentions = remaining & (
            _extract_tokens(layout.step_scans[index])
            | (_extract_tokens(observation_scan) if observation_scan is not None else frozenset())
        )
        if mentions:
            weights[index] = sum(map(_compute_weight, sorted(mentions)))
            remaining -= mentions
    return weights


def _compute_weight(word: str) -> float:
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

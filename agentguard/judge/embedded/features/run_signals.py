"""Signals of trouble in a run: measures with the same meaning for every agent, higher in worse runs.

The sign of each signal is fixed, not learnt. An unweighted sum of such signals transfers between agents
better than learnt weights (Dawes 1979), which describe the training agents.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Final

from agentguard.detect.base import Finding
from agentguard.judge.embedded.features.lexicon import CLASS_NAMES
from agentguard.judge.embedded.features.roles import RunLayout, SpeakerRole, render_arguments
from agentguard.judge.embedded.features.run_level import compute_run_features
from agentguard.judge.embedded.features.step_outcomes import is_error_observation

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray


@dataclass(frozen=True, slots=True)
class RunSignal:
    """Signal of a run.

    Attributes:
        name: identifier.
        meaning: noun phrase for a reader, e.g. "tool errors".
        is_count: whether the value is a number of things, which a report can show.
    """

    name: str
    meaning: str
    is_count: bool = False


RUN_SIGNALS: Final = (
    RunSignal("turns", "agents' turns", is_count=True),
    RunSignal("errors", "tool errors", is_count=True),
    RunSignal("error_share", "share of results that are errors"),
    RunSignal("late_errors", "share of errors among the last quarter of the results"),
    RunSignal("last_error", "the last result is an error"),
    RunSignal("consecutive_errors", "errors directly after an error", is_count=True),
    RunSignal("repeated_calls", "repeated calls", is_count=True),
    RunSignal("repeated_call_share", "share of calls that repeat an earlier call"),
    RunSignal("consecutive_calls", "calls that repeat the call before", is_count=True),
    RunSignal("repeated_results", "share of results that repeat an earlier result"),
    RunSignal("findings", "weight of the findings per step"),
    RunSignal("strongest_finding", "probability of the strongest finding"),
    RunSignal("late_findings", "weight of the findings in the last quarter"),
    RunSignal("closing_failure", "words of failure in the closing message"),
    RunSignal("closing_hedge", "words of doubt in the closing message"),
    RunSignal("closing_open", "no words of completion in the closing message"),
    RunSignal("regrets", "share of the agents' turns that regret something"),
    RunSignal("objections", "share of the users' turns that object"),
    RunSignal("unsourced_values", "argument values that occur nowhere before", is_count=True),
    RunSignal("text_length", "code points that agents wrote", is_count=True),
    RunSignal("longest_turn", "code points of the longest turn", is_count=True),
    RunSignal("closing_length", "code points of the closing message", is_count=True),
)
RUN_SIGNAL_NAMES: Final = tuple(signal.name for signal in RUN_SIGNALS)

_AGENT_ROLES: Final = (SpeakerRole.WORKER, SpeakerRole.ORCHESTRATOR)
_FAILURE, _HEDGE, _CONCLUDE = (CLASS_NAMES.index(name) for name in ("failure", "hedge", "conclude"))
_BASE_WORDS: Final = 20  # added to the words of a text, so that a short text has no extreme rate


def compute_run_signals(layout: RunLayout, findings: Sequence[Finding]) -> NDArray[np.float64]:
    """Compute the signals of a run, shape ``(len(RUN_SIGNALS),)``."""
    import numpy as np

    values = (
        _measure_results(layout)
        | _measure_calls(layout)
        | _measure_findings(findings, len(layout.roles))
        | _measure_texts(layout)
        | _select_run_features(layout)
    )
    return np.array([float(values[name]) for name in RUN_SIGNAL_NAMES])


def _measure_results(layout: RunLayout) -> dict[str, float]:
    results = [observation for step in layout.run.steps for observation in step.observations]
    errors = [is_error_observation(result) for result in results]
    late = errors[-max(1, len(errors) // 4) :]
    return {
        "errors": sum(errors),
        "error_share": sum(errors) / (1 + len(errors)),
        "late_errors": sum(late) / (1 + len(late)),
        "last_error": bool(errors) and errors[-1],
        "consecutive_errors": sum(first and second for first, second in pairwise(errors)),
        "repeated_results": _count_repeats(r.content for r in results if r.content) / (1 + len(results)),
    }


def _measure_calls(layout: RunLayout) -> dict[str, float]:
    calls = [(call.name, render_arguments(call)) for step in layout.run.steps for call in step.tool_calls]
    repeats = _count_repeats(calls)
    return {
        "repeated_calls": repeats,
        "repeated_call_share": repeats / (1 + len(calls)),
        "consecutive_calls": sum(first == second for first, second in pairwise(calls)),
    }


def _count_repeats(values: Iterable[object]) -> int:
    counts = Counter(values)
    return counts.total() - len(counts)


def _measure_findings(findings: Sequence[Finding], steps: int) -> dict[str, float]:
    probabilities = [finding.probability for finding in findings]
    return {
        "findings": math.fsum(probabilities) / max(1, steps),
        "strongest_finding": max(probabilities, default=0.0),
        "late_findings": math.fsum(f.probability for f in findings if f.step >= 0.75 * steps),
    }


def _measure_texts(layout: RunLayout) -> dict[str, float]:
    turns = [index for index, role in enumerate(layout.roles) if role in _AGENT_ROLES]
    steps = layout.run.steps
    lengths = [len(steps[index].content) + len(steps[index].reasoning) for index in turns]
    closing = next((index for index in reversed(turns) if steps[index].content), None)
    counts, words = (
        ((0,) * len(CLASS_NAMES), 0)
        if closing is None
        else (layout.step_scans[closing].class_counts, layout.step_scans[closing].word_count)
    )
    has_closing = bool(turns) and not steps[turns[-1]].tool_calls
    return {
        "turns": len(turns),
        "text_length": sum(lengths),
        "longest_turn": max(lengths, default=0),
        "closing_length": len(steps[turns[-1]].content) if has_closing else 0,
        "closing_failure": counts[_FAILURE] / (_BASE_WORDS + words),
        "closing_hedge": counts[_HEDGE] / (_BASE_WORDS + words),
        "closing_open": 1 / (1 + counts[_CONCLUDE]),
    }


def _select_run_features(layout: RunLayout) -> dict[str, float]:
    features = compute_run_features(layout)
    return {
        "regrets": features["trouble.regrets"],
        "objections": features["trouble.objections"],
        "unsourced_values": math.expm1(features["tools.unsourced"]),
    }

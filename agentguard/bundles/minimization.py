"""Minimization of a bundle: remove recorded calls while the replayed run keeps its verdict."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TypeVar

from agentguard.bundles.bindings import RecordableAgent, call_agent
from agentguard.bundles.bundle import Bundle, RecordedCall
from agentguard.bundles.call_recorder import BindingRecorder, build_bundle
from agentguard.bundles.call_replayer import CallReplayer
from agentguard.bundles.network_block import block_network
from agentguard.bundles.replay_scope import ReplayMode, ReplayScope
from agentguard.errors import ConfigError
from agentguard.trajectory.model import Step, Trajectory

_Item = TypeVar("_Item")


def minimize_bundle(bundle: Bundle, agent: RecordableAgent) -> Bundle:
    """Return a bundle of a run with fewer model calls and the same verdict.

    The function removes model answers by delta debugging (Zeller and Hildebrandt 2002). Each candidate is a
    scripted replay, so the agent's code decides on the tool calls. No single further answer can be removed.

    Args:
        bundle: bundle with an expected verdict.
        agent: the function that `record_run` recorded.

    Raises:
        ConfigError: the bundle expects no verdict, or its scripted replay has another one.
    """
    expected = bundle.expectations.get("verdict")
    if expected is None:
        raise ConfigError("minimize: the bundle expects no verdict")
    minimizer = _Minimizer(bundle, agent, expected)
    if not minimizer.keeps_verdict(bundle.model_calls):
        raise ConfigError(f"minimize: a replay in the mode scripted has no verdict {expected}")
    reduce_items(bundle.model_calls, minimizer.keeps_verdict)
    return minimizer.smallest


def reduce_items(items: Sequence[_Item], holds: Callable[[Sequence[_Item]], bool]) -> tuple[_Item, ...]:
    """Return a subsequence that has a property and loses it without any one of its items."""
    kept, size = tuple(items), max(1, len(items) // 2)
    while True:
        start, before = 0, len(kept)
        while start < len(kept):
            candidate = kept[:start] + kept[start + size :]
            if candidate and holds(candidate):
                kept = candidate
            else:
                start += size
        if size == 1 and len(kept) == before:
            return kept
        size = max(1, size // 2)


class _Minimizer:
    """Check of candidates; ``smallest`` is the bundle of the last candidate with the verdict."""

    def __init__(self, bundle: Bundle, agent: RecordableAgent, expected: str) -> None:
        self._bundle, self._agent, self._expected = bundle, agent, expected
        self.smallest = bundle

    def keeps_verdict(self, model_calls: Sequence[RecordedCall]) -> bool:
        """Return whether a run with these answers in this order has the expected verdict."""
        bundle = replace(self._bundle, model_calls=tuple(model_calls))
        replayer = CallReplayer(bundle, ReplayScope(mode=ReplayMode.SCRIPTED))
        recorder = BindingRecorder(replayer, {call.name: call.effect for call in bundle.tool_calls})
        try:
            with block_network():
                run = call_agent(self._agent, recorder, recorder.sessions)
            replayer.raise_mismatch()
        except Exception:  # the agent's code may raise anything on answers that it never got
            return False
        made = build_bundle(recorder, remove_times(replace(run, id=recorder.run_id)))
        if made.expectations["verdict"] != self._expected:
            return False
        self.smallest = replace(made, redaction_patterns=self._bundle.redaction_patterns)
        return True


def remove_times(run: Trajectory) -> Trajectory:
    """Return a run without the times of its steps, so that equal runs have equal bundles."""
    branches = tuple(
        replace(branch, steps=tuple(map(_remove_step_times, branch.steps))) for branch in run.branches
    )
    return replace(run, steps=tuple(map(_remove_step_times, run.steps)), branches=branches)


def _remove_step_times(step: Step) -> Step:
    return replace(step, started_at=None, ended_at=None)

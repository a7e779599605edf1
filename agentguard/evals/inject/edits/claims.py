"""Edits of an agent's statements: a misread result, and the recall of a value that never occurred."""

from __future__ import annotations

import random
from collections.abc import Iterator

from agentguard.evals.inject.edits.base import BaseEdit, RewrittenRun, TailHandling
from agentguard.evals.inject.edits.propagation import ValueSwap, propagate
from agentguard.evals.inject.edits.run_editor import RunEditor
from agentguard.evals.inject.edits.run_index import RunIndex
from agentguard.evals.inject.edits.values import Value, ValueKind, generate_variants, is_confusable

_RECALL_PHRASES = (ValueKind.AMOUNT, ValueKind.CODE, ValueKind.DATE)


class WrongClaim(BaseEdit):
    """Edit that makes a turn state a wrong value; ``reason`` describes it with ``{old}`` and ``{new}``."""

    reason: str

    def inject_claim(
        self, run_index: RunIndex, step: int, swaps: list[ValueSwap], rng: random.Random
    ) -> RewrittenRun | None:
        """Return the run for the first swap, drawn by ``rng``, that has a consistent continuation."""
        for swap in _shuffle_swaps(swaps, rng):
            draft = RunEditor(run_index, rng)
            tail = propagate(draft, step, swap, rng)
            if tail is not None and (tail is TailHandling.TRUNCATED or _has_consequence(draft)):
                reason = self.reason.format(old=swap.old.text, new=swap.new)
                cause = self.build_cause(run_index.steps[step].agent, step, reason)
                return draft.finish(step=step, cause=cause, tail=tail)
        return None


class MisreadObservation(WrongClaim):
    """Edit that makes a turn misstate a value of the last result; later turns use the wrong value."""

    name = "misread_observation"
    summary = "a value of the last result is stated wrongly and used so from there on"
    codes = (
        "agent_error:reflection.outcome_misinterpretation",
        "agentrx:misinterpretation_of_tool_output",
    )
    module = "reflection"
    reason = "The result says {old}; the agent states {new}."

    def make(self, run_index: RunIndex, step: int, rng: random.Random) -> RewrittenRun | None:
        """Swap a value for another value of the same result, or for a slip."""
        source = run_index.find_last_result_step(step)
        if source is None:
            return None
        swaps = [
            ValueSwap(old=old, new=new, invented=new.lower() not in run_index.known_texts, users=True)
            for old in _sort_values(run_index.stated_values[step])
            if old in run_index.result_values[source]
            and run_index.find_origin(old) == source
            and _is_used(run_index, step, old)
            for new in _find_misreadings(run_index, source, old)
        ]
        return self.inject_claim(run_index, step, swaps, rng)


class HallucinatedMemory(WrongClaim):
    """Edit that makes a turn recall an earlier value as one that never occurred."""

    name = "hallucinated_memory"
    summary = "a value from earlier in the run is recalled wrongly"
    codes = ("agent_error:memory.hallucination", "agentrx:invention_of_new_information")
    module = "memory"
    reason = "The agent recalls {new}, which nobody gave; it was {old}."

    def make(self, run_index: RunIndex, step: int, rng: random.Random) -> RewrittenRun | None:
        """Swap a value that is not in the last result for a slip."""
        source = run_index.find_last_result_step(step)
        new_values = run_index.result_values[source] if source is not None else frozenset()
        swaps = []
        for old in _sort_values(run_index.stated_values[step]):
            origin = run_index.find_origin(old)
            if old.kind not in _RECALL_PHRASES or old in new_values or origin is None or origin >= step:
                continue
            if not _is_used(run_index, step, old):
                continue
            from_user = origin < 0 or not run_index.result_values[origin] & {old}
            slips = [new for new in generate_variants(old) if new.lower() not in run_index.known_texts]
            swaps += [ValueSwap(old=old, new=new, invented=True, users=not from_user) for new in slips]
        return self.inject_claim(run_index, step, swaps, rng)


MISREAD_OBSERVATION = MisreadObservation()
HALLUCINATED_MEMORY = HallucinatedMemory()


def _is_used(run_index: RunIndex, step: int, value: Value) -> bool:
    """Return whether the value reaches a later call or the agent's last message; most values do not."""
    talk = [
        i for i in range(step, len(run_index.steps)) if run_index.is_agent(i) and run_index.steps[i].content
    ]
    acted = any(value in run_index.call_values[i] for i in range(step, len(run_index.steps)))
    return acted or (bool(talk) and value in run_index.stated_values[talk[-1]])


def _has_consequence(draft: RunEditor) -> bool:
    """Return whether the wrong value reaches a call or the agent's last message; otherwise no run fails."""
    source = draft.run_index.steps
    talk = [i for i in range(len(draft)) if draft.run_index.is_agent(i) and source[i].content]
    acted = any(draft[i].tool_calls != source[i].tool_calls for i in range(len(draft)))
    return acted or (bool(talk) and draft[talk[-1]].content != source[talk[-1]].content)


def _shuffle_swaps(swaps: list[ValueSwap], rng: random.Random) -> Iterator[ValueSwap]:
    """Yield all swaps in random order; each value is equally likely to be first."""
    shuffled = rng.sample(swaps, len(swaps))
    olds = list(dict.fromkeys(swap.old for swap in swaps))
    rng.shuffle(olds)
    yield from sorted(shuffled, key=lambda swap: olds.index(swap.old))


def _find_misreadings(run_index: RunIndex, source: int, old: Value) -> list[str]:
    confusable_texts = [
        one.text for one in _sort_values(run_index.result_values[source]) if is_confusable(one, old)
    ]
    return confusable_texts + [
        slip for slip in generate_variants(old) if slip.lower() not in run_index.known_texts
    ]


def _sort_values(values: frozenset[Value]) -> list[Value]:
    """Sort the values, so that a draw does not depend on the order of a set."""
    return sorted(values, key=lambda value: (value.kind, value.text))

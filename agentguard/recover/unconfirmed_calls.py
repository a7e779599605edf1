"""Calls that returned no output, so that an equal call in the next turn may be a mistake of the agent."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from agentguard.detect.result_classification import ResultReason, classify_result

if TYPE_CHECKING:
    from agentguard.recover.effect_ledger import Effect


@dataclass(slots=True, kw_only=True)
class _UnconfirmedCall:
    """The last call with a key; ``step`` is the index of the step that received its result."""

    effect: Effect
    step: int
    refusals: int = 0


class UnconfirmedCalls:
    """Completed calls of one run without output, by the key of their effect; not thread-safe.

    An agent that gets no output cannot see that its call took effect, and often makes the call again. So the
    register refuses an equal call in the turn directly after, a limited number of times.
    """

    def __init__(self) -> None:
        self._calls: dict[str, _UnconfirmedCall] = {}

    def record_result(self, effect: Effect, step: int) -> None:
        """Record the result that the agent got in a step."""
        if classify_result(effect.result.lower()).reason is not ResultReason.NO_OUTPUT:
            self.remove(effect.key)
            return
        call = self._calls.setdefault(effect.key, _UnconfirmedCall(effect=effect, step=step))
        call.effect, call.step = effect, step

    def remove(self, key: str) -> None:
        """Remove the call with a key, for example because it was undone."""
        self._calls.pop(key, None)

    def refuse_repetition(self, key: str, step: int, max_refusals: int | None) -> Effect | None:
        """Return the earlier effect if an equal call must not run; None if it may run.

        Args:
            key: key of the proposed call.
            step: index of the step of the proposed call.
            max_refusals: number of refusals after which the call may run; None for no limit.
        """
        call = self._calls.get(key)
        # Each refusal may have its own step, so the turn directly after moves by the number of refusals.
        if call is None or not call.step < step <= call.step + 1 + call.refusals:
            return None
        if max_refusals is not None and call.refusals >= max_refusals:
            return None
        call.refusals += 1
        return call.effect

    def rewind(self, to_step: int) -> None:
        """Remove the calls from ``to_step`` on, after a rollback to this step."""
        self._calls = {key: call for key, call in self._calls.items() if call.step < to_step}

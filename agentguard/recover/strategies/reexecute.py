"""``reexecute``: begin the run again with a different initial input."""

from __future__ import annotations

from agentguard.errors import ConfigError
from agentguard.recover.base import Plan, Restart, Situation, Tier
from agentguard.recover.strategies._plan import plan, reject
from agentguard.recover.wording import advice, listed, sentence


class Reexecute:
    """The acceptance-test loop's step: re-execution with another input (Wang, IFIP WG 10.4, 2024).

    A deterministic agent repeats its failure on the same input, so what went wrong is added to the task.

    Args:
        times: that a run may be begun again for one and the same reason; the budgets ``rollbacks`` and
            ``per_step`` must allow as many.

    Raises:
        ConfigError: ``times`` is no whole number of at least 1, or an option does not exist.
    """

    name = "reexecute"

    def __init__(self, *, times: int = 1, **unknown: object) -> None:
        reject(self.name, unknown)
        if isinstance(times, bool) or not isinstance(times, int) or times < 1:
            raise ConfigError(f"strategy 'reexecute': times is {times!r}, expected 1 or more")
        self.times = times

    def plan(self, situation: Situation) -> Plan | None:
        """Restart with the correction as a note; effects that stand are told."""
        if not situation.can.restart:
            return None
        reason = sentence(situation.hypothesis.reason)
        note = f"[guard] An earlier attempt failed. {reason} {advice(situation.hypothesis)}"
        done = situation.ledger.since(0)
        if done:
            note += f" These calls have already taken effect; do not repeat them: {listed(done)}."
        return plan(situation, self.name, Tier.RESTART, Restart(note=note), undone=situation.last + 1)

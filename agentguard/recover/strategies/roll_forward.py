"""``roll_forward``: repair what is wrong and go on; nothing is lost and no model is asked."""

from __future__ import annotations

from agentguard.errors import ConfigError
from agentguard.recover.base import Plan, Repair, RepairFunction, Situation, Tell, Tier
from agentguard.recover.mend import mend_turn, mended
from agentguard.recover.strategies._plan import plan, reject
from agentguard.recover.wording import repaired_call


class RollForward:
    """Forward error recovery (Randell, Lee and Treleaven 1978; Anderson and Lee 1981).

    It repairs three things, and invents nothing:

    - calls of a turn that break their tool's schema in a way that can be read in one way alone, before they
      run (`agentguard.recover.mend`);
    - what a tool declared ``read`` returned, where that is an error, empty or cut off: the call is made once
      more, and what it returns then takes its place;
    - whatever a function of one's own repairs: ``Guard(repair=...)``, or the option ``repair``.

    Args:
        acts_from: probability from which it acts on a turn, though the policy's threshold be higher: that a
            call breaks its schema is certain, how much it matters is not.
        calls: repair calls.
        reads: make failed reads once more.
        repair: given the run and the hypothesis; returns the field of its step and the text to put there, or
            None. It cannot be given in a file.

    Raises:
        ConfigError: an option does not exist or is out of its range.
    """

    name = "roll_forward"

    def __init__(
        self,
        *,
        acts_from: float = 0.3,
        calls: bool = True,
        reads: bool = True,
        repair: RepairFunction | None = None,
        **unknown: object,
    ) -> None:
        reject(self.name, unknown)
        if isinstance(acts_from, bool) or not isinstance(acts_from, int | float) or not 0 < acts_from <= 1:
            raise ConfigError(f"strategy 'roll_forward': acts_from is {acts_from!r}, expected (0, 1]")
        if repair is not None and not callable(repair):
            raise ConfigError("strategy 'roll_forward': repair is no function")
        self.acts_from, self.calls, self.reads, self.repair = float(acts_from), calls, reads, repair

    def plan(self, situation: Situation) -> Plan | None:
        """Repair the step; None if nothing is known that would be right."""
        if not situation.can.repair:
            return None
        given = self._given(situation)
        if given is not None:
            return given
        if not self.calls or situation.committed or situation.hypothesis.step != situation.last:
            return None
        made = mend_turn(situation.run.steps[situation.last], situation.run)
        if made is None:
            return None
        repairs, said = made
        told = (Tell(text=repaired_call(said)),) if situation.can.tell else ()
        return plan(situation, self.name, Tier.REPAIR, *repairs, *told)

    def _given(self, situation: Situation) -> Plan | None:
        """What the user's own function repairs."""
        function = self.repair or situation.repair
        made = None if function is None else function(situation.run, situation.hypothesis)
        if made is None:
            return None
        step = situation.hypothesis.step
        field, text = made
        open_turn = not situation.committed and step == situation.last
        if open_turn == field.startswith("observations"):
            return None  # what was done is not undone by other words; what was not has no result yet
        repair = Repair(step=step, field=field, text=text)
        mended(situation.run.steps[step], (repair,))  # raises where it cannot be carried out
        text = f"[guard] {field} of your step {step} was wrong and has been put right."
        told = (Tell(text=text),) if situation.can.tell else ()
        return plan(situation, self.name, Tier.REPAIR, repair, *told)

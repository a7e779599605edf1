"""``recovery_block``: a primary, alternates, and an acceptance test; the first that is accepted is taken."""

from __future__ import annotations

from collections.abc import Callable

from agentguard.errors import ConfigError
from agentguard.recover.actions import Sample
from agentguard.recover.base_strategy import BaseStrategy
from agentguard.recover.plan import RecoveryPlan
from agentguard.recover.strategies._plan import reject_unknown_options
from agentguard.recover.strategies._sampling import (
    MAX_CANDIDATES,
    build_sample_plan,
    parse_count,
    parse_names,
)
from agentguard.recover.strategy import RecoveryContext
from agentguard.trajectory.model import Trajectory


class RecoveryBlockStrategy(BaseStrategy):
    """The recovery block (B. Randell, "System structure for software fault tolerance", IEEE TSE 1(2), 1975).

    The primary is the turn that the agent proposed. Its acceptance test is what the detectors foresee of it,
    and a function of one's own. Where it is not accepted, alternates are asked for, one after the other, only
    until one is. It is as good as its acceptance test is, and cheap, since a good primary costs nothing.

    Args:
        models: names of the models that give the alternates; the agent's own if absent.
        prompts: what the alternates are told, each its own.
        temperatures: of the alternates' sampling.
        tries: alternates at most; as many as the longest of the three lists if absent, and one at least.
        accept: given the run with the candidate as its last step: True, or False or a reason against it. It
            cannot be given in a file.

    Raises:
        ConfigError: an option does not exist or is out of its range.
    """

    name = "recovery_block"
    sample: Sample

    def __init__(
        self,
        *,
        models: tuple[str, ...] | list[str] = (),
        prompts: tuple[str, ...] | list[str] = (),
        temperatures: tuple[float, ...] | list[float] = (),
        tries: int | None = None,
        accept: Callable[[Trajectory], bool | str] | None = None,
        **unknown: object,
    ) -> None:
        reject_unknown_options(self.name, unknown)
        if accept is not None and not callable(accept):
            raise ConfigError("strategy 'recovery_block': accept is no function")
        longest = max(1, len(models), len(prompts), len(temperatures))
        count = longest if tries is None else tries
        self._accept = accept
        self.sample = Sample(
            n=1 + parse_count(self.name, "tries", count, 1, MAX_CANDIDATES - 1),
            quorum=1,
            models=parse_names(self.name, "models", models),
            tells=parse_names(self.name, "prompts", prompts),
            temperatures=tuple(_parse_temperature(one) for one in temperatures),
        )

    def plan(self, context: RecoveryContext) -> RecoveryPlan | None:
        """Ask for alternates; None where the integration cannot."""
        return build_sample_plan(context, self.name, self.sample)

    def accept(self, run: Trajectory) -> bool | str:
        """Call the user's function, if there is one; it decides on the last step of ``run``."""
        return True if self._accept is None else self._accept(run)


def _parse_temperature(value: object) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value <= 2:
        raise ConfigError(f"strategy 'recovery_block': temperature {value!r}, expected a number from 0 to 2")
    return float(value)

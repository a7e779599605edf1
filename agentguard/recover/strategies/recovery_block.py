"""``recovery_block``: primary, alternates and an acceptance test; the first accepted candidate wins."""

from __future__ import annotations

from collections.abc import Callable

from agentguard.errors import ConfigError
from agentguard.recover.actions import Sample
from agentguard.recover.plan import RecoveryPlan
from agentguard.recover.strategies._plan import reject_unknown_options
from agentguard.recover.strategies._sampling import (
    MAX_CANDIDATES,
    build_sample_plan,
    parse_count,
    parse_names,
)
from agentguard.recover.strategy import BaseStrategy, RecoveryContext
from agentguard.trajectory.model import Trajectory


class RecoveryBlockStrategy(BaseStrategy):
    """Recovery block (B. Randell, "System structure for software fault tolerance", IEEE TSE 1(2), 1975).

    The primary is the turn that the agent proposed. Its acceptance test consists of the detectors and an
    optional function of the user. If it refuses the primary, alternates are requested one after the other
    until it accepts one. The result is as good as the acceptance test. An accepted primary costs nothing.

    Args:
        models: names of the models of the alternates; by default the agent's own model.
        prompts: instructions of the alternates, each added after the other messages of the request.
        temperatures: sampling temperatures of the alternates.
        tries: maximum number of alternates; by default the length of the longest list, at least 1.
        accept: function of the run with the candidate as its last step. It returns True, False or the reason
            of the refusal. A policy file cannot set it.

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
            raise ConfigError("strategy 'recovery_block': accept is not a function")
        longest = max(1, len(models), len(prompts), len(temperatures))
        count = longest if tries is None else tries
        self._accept = accept
        self.sample = Sample(
            n=1 + parse_count(self.name, "tries", count, 1, MAX_CANDIDATES - 1),
            quorum=1,
            models=parse_names(self.name, "models", models),
            instructions=parse_names(self.name, "prompts", prompts),
            temperatures=tuple(_parse_temperature(one) for one in temperatures),
        )

    def plan(self, context: RecoveryContext) -> RecoveryPlan | None:
        """Request alternates; None if the integration cannot request any."""
        return build_sample_plan(context, self.name, self.sample)

    def accept(self, run: Trajectory) -> bool | str:
        """Call the user's function, if there is one; it decides on the last step of ``run``."""
        return True if self._accept is None else self._accept(run)


def _parse_temperature(value: object) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value <= 2:
        raise ConfigError(
            f"strategy 'recovery_block': a temperature is {value!r}, expected a number from 0 to 2"
        )
    return float(value)

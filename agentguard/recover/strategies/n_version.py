"""``n_version``: let different models vote on a turn."""

from __future__ import annotations

from agentguard.errors import ConfigError
from agentguard.recover.base import Plan, Sample, Situation
from agentguard.recover.strategies._candidates import MOST, majority, names, sampled, whole
from agentguard.recover.strategies._plan import reject


class NVersion:
    """N-version programming (A. Avizienis, "The N-version approach to fault-tolerant software", IEEE TSE
    11(12), 1985): versions that were made apart fail apart.

    Better than asking one model again only as far as the models' errors are independent, which they are less
    than one would hope (J. C. Knight, N. G. Leveson, "An experimental evaluation of the assumption of
    independence in multiversion programming", IEEE TSE 12(1), 1986).

    Args:
        models: names of the models to ask, besides the agent's own.
        quorum: how many must agree, the agent's own turn among them; more than half if absent.
        staged, ignore: as for ``vote``.

    Raises:
        ConfigError: no model is named, or an option does not exist or is out of its range.
    """

    name = "n_version"

    def __init__(
        self,
        *,
        models: tuple[str, ...] | list[str] = (),
        quorum: int | None = None,
        staged: bool = True,
        ignore: tuple[str, ...] | list[str] = (),
        **unknown: object,
    ) -> None:
        reject(self.name, unknown)
        named = names(self.name, "models", models)
        if not named:
            raise ConfigError("strategy 'n_version': name at least one model besides the agent's own")
        n = whole(self.name, "the number of models", len(named) + 1, 2, MOST)
        self.sample = Sample(
            n=n,
            quorum=majority(self.name, n, quorum),
            models=named,
            staged=bool(staged),
            ignore=names(self.name, "ignore", ignore),
        )

    def plan(self, situation: Situation) -> Plan | None:
        """Have the models vote; None where the integration cannot ask them."""
        return sampled(situation, self.name, self.sample)

"""``vote``: ask for several candidates of one turn, and take what most of them agree on."""

from __future__ import annotations

from agentguard.errors import ConfigError
from agentguard.recover.actions import Sample
from agentguard.recover.base_strategy import BaseStrategy
from agentguard.recover.plan import RecoveryPlan
from agentguard.recover.strategies._plan import reject_unknown_options
from agentguard.recover.strategies._sampling import (
    MAX_CANDIDATES,
    build_sample_plan,
    compute_quorum,
    parse_count,
    parse_names,
)
from agentguard.recover.strategy import RecoveryContext


class NVersionStrategy(BaseStrategy):
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
    sample: Sample

    def __init__(
        self,
        *,
        models: tuple[str, ...] | list[str] = (),
        quorum: int | None = None,
        staged: bool = True,
        ignore: tuple[str, ...] | list[str] = (),
        **unknown: object,
    ) -> None:
        reject_unknown_options(self.name, unknown)
        named = parse_names(self.name, "models", models)
        if not named:
            raise ConfigError("strategy 'n_version': name at least one model besides the agent's own")
        n = parse_count(self.name, "the number of models", len(named) + 1, 2, MAX_CANDIDATES)
        self.sample = Sample(
            n=n,
            quorum=compute_quorum(self.name, n, quorum),
            models=named,
            staged=bool(staged),
            ignore=parse_names(self.name, "ignore", ignore),
        )

    def plan(self, context: RecoveryContext) -> RecoveryPlan | None:
        """Have the models vote; None where the integration cannot ask them."""
        return build_sample_plan(context, self.name, self.sample)


class VoteStrategy(BaseStrategy):
    """Triple modular redundancy, or m of n (von Neumann 1956; Lyons and Vanderkulk 1962).

    Candidates agree if their calls do: the same tools with the same canonical arguments; turns without calls,
    if their texts do. One that the detectors foresee as failing has no vote. It masks what an agent does
    wrong now and then. What it gets wrong each time, all candidates get wrong: for that, see ``n_version``.

    Args:
        n: candidates, the proposed turn among them.
        quorum: how many must agree, more than half of them; just that if absent. Without it the next rung is
            taken.
        staged: ask for no more candidates at a time than may decide it: fewer calls, and where candidates are
            asked for side by side, more time. Else all are asked for at once.
        ignore: names of arguments in which candidates may differ, e.g. a free text.

    Raises:
        ConfigError: an option does not exist or is out of its range.
    """

    name = "vote"
    sample: Sample

    def __init__(
        self,
        *,
        n: int = 3,
        quorum: int | None = None,
        staged: bool = True,
        ignore: tuple[str, ...] | list[str] = (),
        **unknown: object,
    ) -> None:
        reject_unknown_options(self.name, unknown)
        parse_count(self.name, "n", n, 2, MAX_CANDIDATES)
        self.sample = Sample(
            n=n,
            quorum=compute_quorum(self.name, n, quorum),
            staged=bool(staged),
            ignore=parse_names(self.name, "ignore", ignore),
        )

    def plan(self, context: RecoveryContext) -> RecoveryPlan | None:
        """Have candidates vote; None where the integration cannot ask for any."""
        return build_sample_plan(context, self.name, self.sample)

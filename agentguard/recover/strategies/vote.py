"""``vote`` and ``n_version``: request several candidates of one turn and accept the majority."""

from __future__ import annotations

from agentguard.errors import ConfigError
from agentguard.recover.actions import Sample
from agentguard.recover.plan import RecoveryPlan
from agentguard.recover.strategies._plan import reject_unknown_options
from agentguard.recover.strategies._sampling import (
    MAX_CANDIDATES,
    build_sample_plan,
    compute_quorum,
    parse_count,
    parse_names,
)
from agentguard.recover.strategy import BaseStrategy, RecoveryContext


class NVersionStrategy(BaseStrategy):
    """N-version programming with different models (A. Avizienis, "The N-version approach to fault-tolerant
    software", IEEE TSE 11(12), 1985).

    It is better than several candidates of one model only if the models' errors are independent. They are
    less independent than expected (J. C. Knight, N. G. Leveson, "An experimental evaluation of the
    assumption of independence in multiversion programming", IEEE TSE 12(1), 1986).

    Args:
        models: names of the further models that vote.
        quorum: number of candidates that must agree, including the agent's own turn; by default a majority.
        staged, ignore: as for ``vote``.

    Raises:
        ConfigError: no model is given, or an option does not exist or is out of its range.
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
            raise ConfigError("strategy 'n_version': expected at least one further model")
        n = parse_count(self.name, "the number of models", len(named) + 1, 2, MAX_CANDIDATES)
        self.sample = Sample(
            n=n,
            quorum=compute_quorum(self.name, n, quorum),
            models=named,
            staged=bool(staged),
            ignore=parse_names(self.name, "ignore", ignore),
        )

    def plan(self, context: RecoveryContext) -> RecoveryPlan | None:
        """Start a vote of the models; None if the integration cannot request candidates."""
        return build_sample_plan(context, self.name, self.sample)


class VoteStrategy(BaseStrategy):
    """Majority vote of candidates: triple modular redundancy, or m of n (Lyons and Vanderkulk 1962).

    - Candidates agree if they call the same tools with the same canonical arguments. Turns without calls
      agree if their texts are equal.
    - A candidate with a finding above the threshold has no vote.
    - A vote masks occasional errors. A systematic error occurs in all candidates: see ``n_version``.

    Args:
        n: number of candidates, including the proposed turn.
        quorum: number of candidates that must agree; at least a majority, which is the default. If it is not
            reached, the planner tries the next escalation level.
        staged: True to request only as many candidates at a time as may decide the vote, which saves calls.
            False to request all candidates concurrently, which is faster.
        ignore: names of arguments in which candidates may differ, for example a free text.

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
        """Start a vote of candidates; None if the integration cannot request candidates."""
        return build_sample_plan(context, self.name, self.sample)

"""``vote``: ask for several candidates of one turn, and take what most of them agree on."""

from __future__ import annotations

from agentguard.recover.base import Plan, Sample, Situation
from agentguard.recover.strategies._candidates import MOST, majority, names, sampled, whole
from agentguard.recover.strategies._plan import reject


class Vote:
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

    def __init__(
        self,
        *,
        n: int = 3,
        quorum: int | None = None,
        staged: bool = True,
        ignore: tuple[str, ...] | list[str] = (),
        **unknown: object,
    ) -> None:
        reject(self.name, unknown)
        whole(self.name, "n", n, 2, MOST)
        self.sample = Sample(
            n=n,
            quorum=majority(self.name, n, quorum),
            staged=bool(staged),
            ignore=names(self.name, "ignore", ignore),
        )

    def plan(self, situation: Situation) -> Plan | None:
        """Have candidates vote; None where the integration cannot ask for any."""
        return sampled(situation, self.name, self.sample)

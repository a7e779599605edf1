"""Elections: of several candidates of one turn, the one that enough of them agree on.

N-modular redundancy with a majority voter (J. von Neumann, "Probabilistic logics and the synthesis of
reliable organisms from unreliable components", 1956; R. E. Lyons and W. Vanderkulk, "The use of
triple-modular redundancy to improve computer reliability", IBM Journal 6(2), 1962). Independent errors are
outvoted; an error that the candidates have in common is not. Candidates are asked for in stages, no more at a
time than may decide it (A. Bondavalli, F. Di Giandomenico, J. Xu, "Cost-effective and flexible scheme for
software fault tolerance", Computer Systems Science and Engineering 8(4), 1993).

With a quorum of one, an election is the acceptance test of a recovery block: the first acceptable one is
taken. Everything here is a function of its arguments.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from agentguard.detect._text import normalize_text
from agentguard.recover.actions import Sample
from agentguard.recover.tool_effects import compute_effect_key
from agentguard.trajectory.model import Step, ToolCall


@dataclass(frozen=True, slots=True, kw_only=True)
class VoteCandidate:
    """One candidate.

    Attributes:
        turn: what was proposed; None if the model that was asked failed.
        unfit: why it has no vote, e.g. what the detectors foresee; empty if it has one.
    """

    turn: Step | None
    rejection_reason: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class VoteTally:
    """How an election stands.

    Attributes:
        winner: place of the candidate that is taken; None while it is undecided, and where nobody has won.
        ask: how many more candidates are to be asked for; 0 once it is decided.
        votes: how many agree with the leading candidate.
        leader: place of the earliest candidate of the largest group; None if nobody has a vote.
        reason: how it stands, in a sentence for a person.
    """

    winner: int | None
    additional_candidates: int
    votes: int
    leader: int | None
    reason: str


def to_ballot(turn: Step, ignored_arguments: Sequence[str] = ()) -> str:
    """What a turn votes for: its calls in canonical form, in any order; else its text, case and spaces aside.

    Empty for a turn that does nothing and says nothing.

    Args:
        turn: one candidate.
        ignore: names of arguments that do not count.
    """
    if turn.tool_calls:
        return " ".join(
            sorted(_to_call_ballot(call, frozenset(ignored_arguments)) for call in turn.tool_calls)
        )
    return normalize_text(turn.content).rstrip(" .!")


def count_votes(candidates: Sequence[VoteCandidate], sample: Sample) -> VoteTally:
    """Count the votes.

    Args:
        candidates: those asked for so far, in the order of asking; at least one.
        rule: how many are asked for at most, and how many must agree.
    """
    places = _map_ballots(candidates, sample)
    groups = Counter(places.values())
    most = max(groups.values(), default=0)
    leader = next((place for place, vote in places.items() if groups[vote] == most), None)
    left = sample.n - len(candidates)
    if most >= sample.quorum:
        return VoteTally(
            winner=leader,
            additional_candidates=0,
            votes=most,
            leader=leader,
            reason=_format_success(candidates, most, sample, leader),
        )
    if most + left < sample.quorum:
        return VoteTally(
            winner=None,
            additional_candidates=0,
            votes=most,
            leader=leader,
            reason=_format_failure(candidates, most, sample),
        )
    ask = min(left, sample.quorum - most) if sample.staged else left
    return VoteTally(winner=None, additional_candidates=ask, votes=most, leader=leader, reason="undecided")


def _map_ballots(candidates: Sequence[VoteCandidate], sample: Sample) -> dict[int, str]:
    """Place of each candidate that has a vote to what it votes for."""
    made = {}
    for place, one in enumerate(candidates):
        if one.turn is not None and not one.rejection_reason and (vote := to_ballot(one.turn, sample.ignore)):
            made[place] = vote if sample.quorum > 1 else str(place)  # nobody has to agree with anybody
    return made


def _to_call_ballot(call: ToolCall, ignored_arguments: frozenset[str]) -> str:
    if call.arguments is None:
        return f"{call.name}\0{normalize_text(call.raw_arguments or '')}"
    kept = {name: value for name, value in call.arguments.items() if name not in ignored_arguments}
    return compute_effect_key(call.name, kept)


def _format_success(
    candidates: Sequence[VoteCandidate], votes: int, sample: Sample, winner_index: int | None
) -> str:
    if sample.quorum == 1:
        return f"candidate {(winner_index or 0) + 1} of at most {sample.n} was accepted"
    return f"{votes} of {len(candidates)} candidates agree, {sample.quorum} were needed"


def _format_failure(candidates: Sequence[VoteCandidate], votes: int, sample: Sample) -> str:
    unfit = sum(bool(one.rejection_reason) or one.turn is None for one in candidates)
    said = f"; {unfit} had no vote" if unfit else ""
    if sample.quorum == 1:
        return f"none of {len(candidates)} candidates was accepted"
    return f"no more than {votes} of {len(candidates)} candidates agree, {sample.quorum} were needed{said}"

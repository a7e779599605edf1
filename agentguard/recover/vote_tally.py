"""Tally of a vote: selection of the candidate of one turn on which enough candidates agree.

N-modular redundancy with a majority voter (J. von Neumann, "Probabilistic logics and the synthesis of
reliable organisms from unreliable components", 1956; R. E. Lyons and W. Vanderkulk, "The use of
triple-modular redundancy to improve computer reliability", IBM Journal 6(2), 1962). A majority outvotes
independent errors, but not an error that the candidates have in common. Candidates are requested in stages,
each with only as many as may decide the vote (A. Bondavalli, F. Di Giandomenico, J. Xu, "Cost-effective and
flexible scheme for software fault tolerance", Computer Systems Science and Engineering 8(4), 1993).

With a quorum of one, a vote is the acceptance test of a recovery block: the first acceptable candidate wins.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from agentguard.detect._text import normalize_text
from agentguard.recover.actions import Sample
from agentguard.recover.effect_store import compute_effect_key
from agentguard.trajectory.model import Step, ToolCall


@dataclass(frozen=True, slots=True, kw_only=True)
class VoteCandidate:
    """Candidate of a vote.

    Attributes:
        turn: turn of the candidate; None if the model request failed.
        rejection_reason: reason for which the candidate has no vote, for example a finding; empty if it has a
            vote.
    """

    turn: Step | None
    rejection_reason: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class VoteTally:
    """Tally of a vote.

    Attributes:
        winner: index of the accepted candidate; None if the vote is undecided or has no winner.
        additional_candidates: number of candidates to request next; 0 when the vote is over.
        votes: size of the largest group of equal candidates.
        leader: index of the first candidate of that group; None if no candidate has a vote.
        reason: explanation as a clause for a person.
    """

    winner: int | None
    additional_candidates: int
    votes: int
    leader: int | None
    reason: str


def to_ballot(turn: Step, ignored_arguments: Sequence[str] = ()) -> str:
    """Return the ballot of a turn: its calls in canonical form and order, or else its normalised text.

    The ballot of a turn without calls and text is empty.

    Args:
        turn: turn of the candidate.
        ignored_arguments: names of arguments that are not compared.
    """
    if turn.tool_calls:
        return " ".join(
            sorted(_to_call_ballot(call, frozenset(ignored_arguments)) for call in turn.tool_calls)
        )
    return normalize_text(turn.content).rstrip(" .!")


def count_votes(candidates: Sequence[VoteCandidate], sample: Sample) -> VoteTally:
    """Return the tally of a vote.

    Args:
        candidates: candidates so far, in the order of the requests; at least one.
        sample: maximum number of candidates, and the quorum.
    """
    ballots = _map_ballots(candidates, sample)
    groups = Counter(ballots.values())
    most = max(groups.values(), default=0)
    leader = next((index for index, ballot in ballots.items() if groups[ballot] == most), None)
    remaining = sample.n - len(candidates)
    if most >= sample.quorum:
        return VoteTally(
            winner=leader,
            additional_candidates=0,
            votes=most,
            leader=leader,
            reason=_format_success(candidates, most, sample, leader),
        )
    if most + remaining < sample.quorum:
        return VoteTally(
            winner=None,
            additional_candidates=0,
            votes=most,
            leader=leader,
            reason=_format_failure(candidates, most, sample),
        )
    next_count = min(remaining, sample.quorum - most) if sample.staged else remaining
    return VoteTally(
        winner=None, additional_candidates=next_count, votes=most, leader=leader, reason="undecided"
    )


def _map_ballots(candidates: Sequence[VoteCandidate], sample: Sample) -> dict[int, str]:
    """Return the ballot of each candidate that has a vote, by its index."""
    ballots = {}
    for index, one in enumerate(candidates):
        if one.turn is None or one.rejection_reason:
            continue
        if ballot := to_ballot(one.turn, sample.ignore):
            ballots[index] = ballot if sample.quorum > 1 else str(index)  # with quorum 1, each is a group
    return ballots


def _to_call_ballot(call: ToolCall, ignored_arguments: frozenset[str]) -> str:
    if call.arguments is None:
        return f"{call.name}\0{normalize_text(call.raw_arguments or '')}"
    compared = {name: value for name, value in call.arguments.items() if name not in ignored_arguments}
    return compute_effect_key(call.name, compared)


def _format_success(
    candidates: Sequence[VoteCandidate], votes: int, sample: Sample, winner_index: int | None
) -> str:
    if sample.quorum == 1:
        return f"candidate {(winner_index or 0) + 1} of at most {sample.n} was accepted"
    return f"{votes} of {len(candidates)} candidates agree, {sample.quorum} were needed"


def _format_failure(candidates: Sequence[VoteCandidate], votes: int, sample: Sample) -> str:
    rejected = sum(bool(one.rejection_reason) or one.turn is None for one in candidates)
    suffix = f"; {rejected} had no vote" if rejected else ""
    if sample.quorum == 1:
        return f"none of {len(candidates)} candidates was accepted"
    return f"no more than {votes} of {len(candidates)} candidates agree, {sample.quorum} were needed{suffix}"

"""Votes: agreement of candidates, decision, and cost."""

from __future__ import annotations

from itertools import product
from typing import Any

import pytest
from hypothesis import given, strategies as st

from agentguard.recover.actions import Sample, SampleVariant
from agentguard.recover.vote_tally import VoteCandidate, count_votes, to_ballot
from agentguard.trajectory.model import Source, Step, ToolCall

TMR = Sample(n=3, quorum=2)


def says(text: str) -> Step:
    return Step(index=0, source=Source.AGENT, agent="clerk", content=text)


def calls(*wanted: tuple[str, dict[str, Any]], content: str = "") -> Step:
    made = tuple(ToolCall(id=f"x{i}", name=n, arguments=a) for i, (n, a) in enumerate(wanted))
    return Step(index=0, source=Source.AGENT, agent="clerk", content=content, tool_calls=made)


def seat(number: int, unfit: str = "") -> VoteCandidate:
    return VoteCandidate(turn=calls(("book", {"seat": number})), rejection_reason=unfit)


def test_equivalent_calls_agree() -> None:
    one = calls(("book", {"seat": 4, "side": "aisle"}), ("find", {}), content="I book it.")
    other = calls(("find", {}), ("book", {"side": "aisle", "seat": 4.0}), content="Let me see.")
    assert to_ballot(one) == to_ballot(other)
    assert to_ballot(one) != to_ballot(calls(("book", {"seat": 4, "side": "aisle"})))
    assert to_ballot(one) != to_ballot(calls(("book", {"seat": "4", "side": "aisle"}), ("find", {})))


def test_texts_agree_except_case_spaces_and_final_mark() -> None:
    assert to_ballot(says("Seat  4 is\nfree.")) == to_ballot(says("seat 4 is free"))
    assert to_ballot(says("Seat 4 is free.")) != to_ballot(says("Seat 5 is free."))


def test_excluded_arguments_may_differ() -> None:
    one, other = calls(("mail", {"to": "a", "text": "Hi"})), calls(("mail", {"to": "a", "text": "Hello"}))
    assert to_ballot(one) != to_ballot(other)
    assert to_ballot(one, ["text"]) == to_ballot(other, ["text"])


def test_only_deciding_candidates_are_requested() -> None:
    assert count_votes([seat(4)], TMR).additional_candidates == 1
    assert count_votes([seat(4)], Sample(n=3, quorum=2, staged=False)).additional_candidates == 2
    assert count_votes([seat(4), seat(4)], TMR).winner == 0
    assert count_votes([seat(4), seat(5)], TMR).additional_candidates == 1
    assert count_votes([seat(4), seat(5), seat(5)], TMR).winner == 1
    lost = count_votes([seat(4), seat(5), seat(6)], TMR)
    assert (lost.winner, lost.additional_candidates, lost.votes, lost.leader) == (None, 0, 1, 0)


def test_failing_or_unavailable_candidate_has_no_vote() -> None:
    bad = count_votes([seat(4, unfit="loop"), seat(4, unfit="loop"), seat(5)], TMR)
    assert (bad.winner, bad.additional_candidates, bad.leader) == (None, 0, 2)
    gone = count_votes([VoteCandidate(turn=None), seat(4), seat(4)], TMR)
    assert gone.winner == 1
    assert (
        count_votes([VoteCandidate(turn=says("")), VoteCandidate(turn=says("")), seat(5)], TMR).winner is None
    )


def test_lost_vote_ends_early() -> None:
    five = Sample(n=5, quorum=4)
    assert count_votes([seat(1), seat(2), seat(3)], five).additional_candidates == 0


def test_recovery_block_takes_first_accepted_candidate() -> None:
    block = Sample(n=4, quorum=1)
    assert count_votes([seat(4)], block).winner == 0
    assert count_votes([seat(4, unfit="no")], block).additional_candidates == 1
    assert count_votes([seat(4, unfit="no"), seat(5, unfit="no"), seat(5)], block).winner == 2
    none = count_votes([seat(n, unfit="no") for n in range(4)], block)
    assert (none.winner, none.additional_candidates, none.leader) == (None, 0, None)


def test_each_candidate_is_requested_by_its_variant() -> None:
    sample = Sample(n=4, quorum=1, models=("a", "b"), instructions=("think",), temperatures=(0.1, 0.5, 0.9))
    assert sample.build_variants() == (
        SampleVariant(model="a", instruction="think", temperature=0.1),
        SampleVariant(model="b", instruction="think", temperature=0.5),
        SampleVariant(model="a", instruction="think", temperature=0.9),
    )
    assert TMR.build_variants() == (SampleVariant(), SampleVariant())


@pytest.mark.parametrize("n", [3, 5])
def test_winner_has_quorum_in_any_staging(n: int) -> None:
    for votes in product(range(3), repeat=n):
        everyone = [seat(vote) for vote in votes]
        rule = Sample(n=n, quorum=n // 2 + 1)
        whole = count_votes(everyone, rule)
        count = 1
        while (state := count_votes(everyone[:count], rule)).additional_candidates:
            count += state.additional_candidates
        assert state.winner == whole.winner
        assert count <= n
        if whole.winner is None:
            assert max(votes.count(one) for one in votes) < rule.quorum
        else:
            assert votes.count(votes[whole.winner]) >= rule.quorum


@given(
    st.lists(st.tuples(st.integers(0, 3), st.booleans()), min_size=1, max_size=7),
    st.integers(1, 7),
    st.booleans(),
)
def test_vote_terminates_and_never_elects_without_votes(
    given: list[tuple[int, bool]], quorum: int, staged: bool
) -> None:
    n = max(len(given), quorum)
    candidates = [seat(number, unfit="bad" if bad else "") for number, bad in given]
    state = count_votes(candidates, Sample(n=n, quorum=quorum, staged=staged))
    assert 0 <= state.additional_candidates <= n - len(candidates)
    assert (state.winner is None) or (
        state.additional_candidates == 0 and not candidates[state.winner].rejection_reason
    )

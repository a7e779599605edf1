"""Effect ledger: no effect runs twice on any branch, and abandoned effects are reported."""

from __future__ import annotations

from collections import Counter
from concurrent.futures import ThreadPoolExecutor

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from agentguard.recover.effect_ledger import EffectLedger, ExecutionDecision
from agentguard.recover.effect_store import Effect, EffectState, InMemoryEffectStore
from agentguard.recover.tool_effects import EffectClass, ToolEffect
from agentguard.trajectory.model import Source, Step, ToolSpec
from tests.unit.recover.situations import TOOLS


def test_call_after_rollback_is_not_repeated() -> None:
    ledger = EffectLedger(tools=TOOLS)
    first = ledger.claim_call("book", {"seat": 4}, step=5)
    ledger.mark_done(first.effect, "booked")
    ledger.rewind(2)
    again = ledger.claim_call("book", {"seat": 4.0}, step=3)
    assert (again.decision, again.effect.result) == (ExecutionDecision.REUSE, "booked")
    assert ledger.list_active_since(2) == (again.effect,)
    assert ledger.list_active_since(4) == ()


def test_intentional_repetition_is_allowed() -> None:
    ledger = EffectLedger(tools=TOOLS)
    for step in range(2):
        claim = ledger.claim_call("book", {"seat": 4}, step=step)
        assert claim.decision is ExecutionDecision.RUN
        ledger.mark_done(claim.effect, f"booked {step}")
    ledger.rewind(0)
    assert [ledger.claim_call("book", {"seat": 4}, step=s).effect.result for s in (0, 1)] == [
        "booked 0",
        "booked 1",
    ]
    assert ledger.claim_call("book", {"seat": 4}, step=2).decision is ExecutionDecision.RUN


def _repeat_call(ledger: EffectLedger, tool: str, steps: range, result: str) -> list[ExecutionDecision]:
    decisions = []
    for step in steps:
        claim = ledger.claim_call(tool, {"to": "a"}, step=step)
        decisions.append(claim.decision)
        if claim.decision is ExecutionDecision.RUN:
            ledger.mark_done(claim.effect, result)
    return decisions


_RUN, _UNKNOWN = ExecutionDecision.RUN, ExecutionDecision.OUTCOME_UNKNOWN


@pytest.mark.parametrize(
    ("tool", "result", "expected"),
    [
        ("book", "", [_RUN, _UNKNOWN, _UNKNOWN, _RUN, _RUN]),
        ("book", "null", [_RUN, _UNKNOWN, _UNKNOWN, _RUN, _RUN]),
        ("book", "ok", [_RUN] * 5),
        ("mail", "", [_RUN] + [_UNKNOWN] * 4),
        ("look", "", [_RUN] * 5),
        ("undeclared", "", [_RUN] * 5),
    ],
)
def test_equal_call_after_call_without_output_is_refused_by_declared_effect(
    tool: str, result: str, expected: list[ExecutionDecision]
) -> None:
    assert _repeat_call(EffectLedger(tools=TOOLS), tool, range(5), result) == expected


def test_equal_call_after_another_turn_runs_without_output() -> None:
    ledger = EffectLedger(tools=TOOLS)
    assert _repeat_call(ledger, "mail", range(0, 6, 2), "") == [_RUN] * 3


def test_equal_calls_of_one_turn_run_without_output() -> None:
    ledger = EffectLedger(tools=TOOLS)
    claims = [ledger.claim_call("mail", {"to": "a"}, step=0) for _ in range(2)]
    for claim in claims:
        ledger.mark_done(claim.effect, "")
    assert [claim.decision for claim in claims] == [_RUN] * 2


def test_call_after_reused_result_without_output_is_refused() -> None:
    ledger = EffectLedger(tools=TOOLS)
    _repeat_call(ledger, "mail", range(3, 4), "")
    ledger.rewind(2)
    assert _repeat_call(ledger, "mail", range(2, 4), "") == [ExecutionDecision.REUSE, _UNKNOWN]


def test_undone_call_without_output_may_be_repeated() -> None:
    ledger = EffectLedger(tools=TOOLS)
    claim = ledger.claim_call("book", {"seat": 4}, step=0)
    ledger.mark_done(claim.effect, "")
    ledger.mark_compensated(claim.effect)
    assert ledger.claim_call("book", {"seat": 4}, step=1).decision is _RUN


def test_idempotency_key_runs_once() -> None:
    ledger = EffectLedger(tools={"pay": ToolEffect(effect=EffectClass.DESTRUCTIVE, key=("order",))})
    ledger.mark_done(ledger.claim_call("pay", {"order": 7, "note": "first"}, step=0).effect, "paid")
    again = ledger.claim_call("pay", {"order": 7, "note": "again"}, step=3)
    assert (again.decision, again.effect.result) == (ExecutionDecision.REUSE, "paid")
    assert ledger.claim_call("pay", {"order": 8}, step=3).decision is ExecutionDecision.RUN


def test_attempted_call_is_unknown_unless_idempotent() -> None:
    book = InMemoryEffectStore()
    tools = TOOLS | {"set": ToolEffect(effect=EffectClass.WRITE, idempotent=True)}
    before = EffectLedger(book, tools)
    before.claim_call("mail", {"to": "a"}, step=0)
    before.claim_call("set", {"to": "a"}, step=0)
    after = EffectLedger(book, tools)  # the process died between the attempt and its result
    assert after.claim_call("mail", {"to": "a"}, step=0).decision is ExecutionDecision.OUTCOME_UNKNOWN
    assert after.claim_call("set", {"to": "a"}, step=0).decision is ExecutionDecision.RUN


def test_failed_call_may_be_repeated() -> None:
    ledger = EffectLedger(tools=TOOLS)
    claim = ledger.claim_call("book", {"seat": 4}, step=0)
    ledger.mark_failed(claim.effect)
    assert ledger.list_active() == ()
    assert ledger.claim_call("book", {"seat": 4}, step=1).decision is ExecutionDecision.RUN


def test_undone_call_may_be_repeated_and_is_not_active() -> None:
    ledger = EffectLedger(tools=TOOLS)
    effect = ledger.claim_call("book", {"seat": 4}, step=1).effect
    ledger.mark_done(effect, "booked")
    ledger.mark_compensated(effect)
    ledger.rewind(1)
    assert ledger.list_active_since(1) == ()
    assert ledger.claim_call("book", {"seat": 4}, step=1).decision is ExecutionDecision.RUN
    assert [e.state for e in ledger.effects()] == [EffectState.ATTEMPTED]


def test_ambiguous_call_is_settled_by_reconciliation_or_a_late_result() -> None:
    store = InMemoryEffectStore()
    ledger = EffectLedger(store, TOOLS)
    for seat in (1, 2):
        ledger.mark_ambiguous(ledger.claim_call("book", {"seat": seat}, step=0).effect)
    after = EffectLedger(store, TOOLS)
    after.replay([Step(index=0, source=Source.AGENT, agent="a")])
    unknown = [after.claim_call("book", {"seat": seat}, step=1) for seat in (1, 2)]
    assert {claim.decision for claim in unknown} == {ExecutionDecision.OUTCOME_UNKNOWN}
    after.mark_reconciled(unknown[0].effect, "found")
    after.mark_done(unknown[1].effect, "late")
    again = [after.claim_call("book", {"seat": seat}, step=0).effect for seat in (1, 2)]
    assert [(one.state, one.result) for one in again] == [
        (EffectState.RECONCILED, "found"),
        (EffectState.DONE, "late"),
    ]


def test_calls_that_differ_in_type_are_one_effect_under_the_schema_of_the_tool() -> None:
    parameters = {"type": "object", "properties": {"seat": {"type": "integer"}, "name": {"type": "string"}}}
    ledger = EffectLedger(tools=TOOLS)
    ledger.add_schemas([ToolSpec(name="book", parameters=parameters)])
    ledger.mark_done(ledger.claim_call("book", {"seat": 4, "name": "7"}, step=2).effect, "booked")
    ledger.rewind(0)
    same = ledger.claim_call("book", {"seat": "4", "name": 7}, step=0)
    other = ledger.claim_call("book", {"seat": "5", "name": 7}, step=0)
    assert (same.decision, other.decision) == (ExecutionDecision.REUSE, ExecutionDecision.RUN)


def test_read_is_always_allowed_and_never_stored() -> None:
    ledger = EffectLedger(tools=TOOLS)
    for step in range(3):
        claim = ledger.claim_call("look", {"at": "seats"}, step=step)
        assert claim.decision is ExecutionDecision.RUN
        ledger.mark_done(claim.effect, "free")
    assert ledger.effects() == ()


def test_undeclared_tool_is_assumed_to_have_effects() -> None:
    ledger = EffectLedger()
    ledger.mark_done(ledger.claim_call("launch", {}, step=0).effect, "gone")
    ledger.rewind(0)
    assert ledger.claim_call("launch", {}, step=0).decision is ExecutionDecision.REUSE


def test_concurrent_calls_run_once_each() -> None:
    book = InMemoryEffectStore()

    def one(process: int) -> ExecutionDecision:
        return EffectLedger(book, TOOLS).claim_call("mail", {"to": "all"}, step=process % 2).decision

    with ThreadPoolExecutor(8) as pool:
        rulings = list(pool.map(one, range(64)))
    assert rulings.count(ExecutionDecision.RUN) == 1


class NothingTwice(RuleBasedStateMachine):
    """State machine: an agent calls tools, is rolled back and killed; a counter records the real effects."""

    @initialize()
    def begin(self) -> None:
        self.book = InMemoryEffectStore()
        self.ledger = EffectLedger(self.book, TOOLS)
        self.really: Counter[tuple[str, int]] = Counter()
        self.allowed: Counter[tuple[str, int]] = Counter()
        self.line: list[tuple[str, str, int]] = []

    @rule(seat=st.integers(0, 2), dies=st.booleans())
    def call(self, seat: int, dies: bool) -> None:
        claim = self.ledger.claim_call("book", {"seat": seat}, step=len(self.line))
        if claim.decision is ExecutionDecision.RUN:
            self.really[claim.effect.id] += 1
            if dies:
                self.resume()
                return
            self.ledger.mark_done(claim.effect, str(seat))
        self.line.append(("book", str(seat), len(self.line)))

    @rule(share=st.floats(0, 1))
    def rollback(self, share: float) -> None:
        to_step = int(share * len(self.line))
        self.ledger.rewind(to_step)
        del self.line[to_step:]

    @rule()
    def undo_the_last(self) -> None:
        done = [e for e in self.ledger.list_active() if e.state is EffectState.DONE]
        if done:
            self.ledger.mark_compensated(done[-1])
            self.allowed[done[-1].id] += 1

    def resume(self) -> None:
        """Start a new process: the ledger exists, the branch is replayed up to the last boundary."""
        self.ledger = EffectLedger(self.book, TOOLS)
        for _, seat, step in self.line:
            self.ledger.claim_call("book", {"seat": int(seat)}, step=step)

    @invariant()
    def no_effect_happened_twice(self) -> None:
        for effect, times in self.really.items():
            assert times <= 1 + self.allowed[effect]

    @invariant()
    def all_that_happened_is_known(self) -> None:
        known = {effect.id for effect in self.ledger.effects()}
        assert set(self.really) <= known


TestNothingTwice = NothingTwice.TestCase


def test_effect_is_identified_by_key_and_occurrence() -> None:
    assert Effect(key="k", occurrence=2, tool="book").id == ("k", 2)

"""No effect twice, on whatever line, and whatever was left behind is told."""

from __future__ import annotations

from collections import Counter
from concurrent.futures import ThreadPoolExecutor

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from agentguard.recover.effects import EffectClass, ToolEffect
from agentguard.recover.ledger import Effect, EffectState, Ledger, MemoryBook, Ruling
from tests.unit.recover.situations import TOOLS


def test_a_call_after_a_rollback_is_not_done_again() -> None:
    ledger = Ledger(tools=TOOLS)
    first = ledger.begin("book", {"seat": 4}, step=5)
    ledger.done(first.effect, "booked")
    ledger.rewind(2)
    again = ledger.begin("book", {"seat": 4.0}, step=3)
    assert (again.ruling, again.effect.result) == (Ruling.REUSE, "booked")
    assert ledger.since(2) == (again.effect,)
    assert ledger.since(4) == ()


def test_an_agent_may_do_the_same_thing_twice_on_purpose() -> None:
    ledger = Ledger(tools=TOOLS)
    for step in range(2):
        claim = ledger.begin("book", {"seat": 4}, step=step)
        assert claim.ruling is Ruling.RUN
        ledger.done(claim.effect, f"booked {step}")
    ledger.rewind(0)
    assert [ledger.begin("book", {"seat": 4}, step=s).effect.result for s in (0, 1)] == [
        "booked 0",
        "booked 1",
    ]
    assert ledger.begin("book", {"seat": 4}, step=2).ruling is Ruling.RUN


def test_an_idempotency_key_is_done_once_however_often_it_is_called() -> None:
    ledger = Ledger(tools={"pay": ToolEffect(effect=EffectClass.DESTRUCTIVE, key=("order",))})
    ledger.done(ledger.begin("pay", {"order": 7, "note": "first"}, step=0).effect, "paid")
    again = ledger.begin("pay", {"order": 7, "note": "again"}, step=3)
    assert (again.ruling, again.effect.result) == (Ruling.REUSE, "paid")
    assert ledger.begin("pay", {"order": 8}, step=3).ruling is Ruling.RUN


def test_what_was_attempted_is_in_doubt_unless_repeating_it_is_harmless() -> None:
    book = MemoryBook()
    tools = TOOLS | {"set": ToolEffect(effect=EffectClass.WRITE, idempotent=True)}
    before = Ledger(book, tools)
    before.begin("mail", {"to": "a"}, step=0)
    before.begin("set", {"to": "a"}, step=0)
    after = Ledger(book, tools)  # the process died between the attempt and its result
    assert after.begin("mail", {"to": "a"}, step=0).ruling is Ruling.IN_DOUBT
    assert after.begin("set", {"to": "a"}, step=0).ruling is Ruling.RUN


def test_a_tool_that_refused_may_be_called_again() -> None:
    ledger = Ledger(tools=TOOLS)
    claim = ledger.begin("book", {"seat": 4}, step=0)
    ledger.failed(claim.effect)
    assert ledger.standing() == ()
    assert ledger.begin("book", {"seat": 4}, step=1).ruling is Ruling.RUN


def test_what_was_undone_may_be_done_again_and_is_not_left_behind() -> None:
    ledger = Ledger(tools=TOOLS)
    effect = ledger.begin("book", {"seat": 4}, step=1).effect
    ledger.done(effect, "booked")
    ledger.compensated(effect)
    ledger.rewind(1)
    assert ledger.since(1) == ()
    assert ledger.begin("book", {"seat": 4}, step=1).ruling is Ruling.RUN
    assert [e.state for e in ledger.effects()] == [EffectState.ATTEMPTED]


def test_reading_is_always_allowed_and_never_kept() -> None:
    ledger = Ledger(tools=TOOLS)
    for step in range(3):
        claim = ledger.begin("look", {"at": "seats"}, step=step)
        assert claim.ruling is Ruling.RUN
        ledger.done(claim.effect, "free")
    assert ledger.effects() == ()


def test_a_tool_nobody_declared_is_held_to_have_effects() -> None:
    ledger = Ledger()
    ledger.done(ledger.begin("launch", {}, step=0).effect, "gone")
    ledger.rewind(0)
    assert ledger.begin("launch", {}, step=0).ruling is Ruling.REUSE


def test_side_by_side_calls_run_once_each() -> None:
    book = MemoryBook()

    def one(process: int) -> Ruling:
        return Ledger(book, TOOLS).begin("mail", {"to": "all"}, step=process % 2).ruling

    with ThreadPoolExecutor(8) as pool:
        rulings = list(pool.map(one, range(64)))
    assert rulings.count(Ruling.RUN) == 1


class NothingTwice(RuleBasedStateMachine):
    """An agent that calls tools, is taken back, and is killed, against a count of what really happened."""

    @initialize()
    def begin(self) -> None:
        self.book = MemoryBook()
        self.ledger = Ledger(self.book, TOOLS)
        self.really: Counter[tuple[str, int]] = Counter()
        self.allowed: Counter[tuple[str, int]] = Counter()
        self.line: list[tuple[str, str, int]] = []

    @rule(seat=st.integers(0, 2), dies=st.booleans())
    def call(self, seat: int, dies: bool) -> None:
        claim = self.ledger.begin("book", {"seat": seat}, step=len(self.line))
        if claim.ruling is Ruling.RUN:
            self.really[claim.effect.id] += 1
            if dies:
                self.resume()
                return
            self.ledger.done(claim.effect, str(seat))
        self.line.append(("book", str(seat), len(self.line)))

    @rule(share=st.floats(0, 1))
    def rollback(self, share: float) -> None:
        to_step = int(share * len(self.line))
        self.ledger.rewind(to_step)
        del self.line[to_step:]

    @rule()
    def undo_the_last(self) -> None:
        done = [e for e in self.ledger.standing() if e.state is EffectState.DONE]
        if done:
            self.ledger.compensated(done[-1])
            self.allowed[done[-1].id] += 1

    def resume(self) -> None:
        """A new process: the book is there, the line is replayed up to the last boundary."""
        self.ledger = Ledger(self.book, TOOLS)
        for _, seat, step in self.line:
            self.ledger.begin("book", {"seat": int(seat)}, step=step)

    @invariant()
    def no_effect_happened_twice(self) -> None:
        for effect, times in self.really.items():
            assert times <= 1 + self.allowed[effect]

    @invariant()
    def all_that_happened_is_known(self) -> None:
        known = {effect.id for effect in self.ledger.effects()}
        assert set(self.really) <= known


TestNothingTwice = NothingTwice.TestCase


def test_an_effect_is_named_by_key_and_occurrence() -> None:
    assert Effect(key="k", occurrence=2, tool="book").id == ("k", 2)

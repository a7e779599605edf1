"""Judge beside a running agent: its answers start recoveries, and it never delays a turn."""

from __future__ import annotations

import statistics
import threading
import time
from collections.abc import Sequence

import pytest

from agentguard.config.policy import Policy
from agentguard.errors import ConfigError
from agentguard.guard import Guard
from agentguard.judge.base import JudgeAnswer, Question
from agentguard.recover.capabilities import Capabilities
from agentguard.recover.plan import RecoveryTier
from agentguard.recover.recovery_policy import RecoveryPolicy
from agentguard.runtime.live_judge import LiveJudge, LiveJudgeOptions
from agentguard.runtime.session import Session
from agentguard.trajectory.model import Source, Step, Trajectory
from tests.unit.judge.chat_server import Script, closed_port, serving

CAN = Capabilities(reject=True, truncate=True)
META = Trajectory(id="live", format="test", task="Book seat 4.", steps=())
LONG_S = 60.0


class ScriptedJudge:
    """Judge with a fixed probability; it waits for ``released`` and counts its questions."""

    name = "scripted"

    def __init__(self, yes: float, *, is_held: bool = False, tokens: int = 10, cost_usd: float = 0.0) -> None:
        self.yes, self.tokens, self.cost_usd = yes, tokens, cost_usd
        self.seen: list[int] = []
        self.asked, self.released = threading.Event(), threading.Event()
        if not is_held:
            self.released.set()

    def decide(self, transcript: Trajectory, questions: Sequence[Question]) -> tuple[JudgeAnswer, ...]:
        self.seen.append(len(transcript.steps))
        self.asked.set()
        assert self.released.wait(LONG_S)
        shares = {"yes": self.yes, "no": 1 - self.yes}
        usage = {"calls": 1, "prompt_tokens": self.tokens, "completion_tokens": 0, "cost_usd": self.cost_usd}
        return tuple(JudgeAnswer(question=q.id, probabilities=shares, usage=usage) for q in questions)


def begin(live: LiveJudge, **recover: object) -> Session:
    policy = RecoveryPolicy(**{"on_fail": "rollback", **recover})  # type: ignore[arg-type]
    guard = Guard(detectors={}, localizer="last_error", recover=policy, live_judge=live)
    return guard.session(META, CAN)


def act(session: Session, text: str = "Seat 5 is booked.") -> None:
    session.commit(Step(index=0, source=Source.AGENT, agent="assistant", content=text))


def test_answer_of_one_judge_leads_to_a_hint_at_the_next_boundary() -> None:
    live = LiveJudge(ScriptedJudge(0.95))
    session = begin(live)
    act(session)
    assert live.queue.flush(LONG_S)
    plan = session.check_boundary()
    assert plan is not None
    assert (plan.tier, plan.step) == (RecoveryTier.HINT, 0)
    assert [(one.detector, one.probability) for one in session.findings] == [("judge", 0.95)]
    assert session.findings[0].codes == ("fault_model:degraded_accuracy",)
    assert session.check_boundary() is None


def test_two_judges_that_agree_follow_the_policy() -> None:
    live = LiveJudge(ScriptedJudge(0.95), second_judge=ScriptedJudge(0.99))
    session = begin(live)
    act(session, "First.")
    act(session)
    assert live.queue.flush(LONG_S)
    plan = session.check_boundary()
    assert plan is not None
    assert plan.strategy == "rollback"


def test_two_judges_that_disagree_lead_to_nothing() -> None:
    live = LiveJudge(ScriptedJudge(0.95), second_judge=ScriptedJudge(0.05))
    session = begin(live)
    act(session)
    assert live.queue.flush(LONG_S)
    assert session.check_boundary() is None


def test_policy_cannot_give_one_judge_more_than_a_hint() -> None:
    live = LiveJudge(ScriptedJudge(0.95))
    session = begin(live, escalations={"judge": "stop"})
    act(session)
    assert live.queue.flush(LONG_S)
    plan = session.check_boundary()
    assert plan is not None
    assert plan.tier is RecoveryTier.HINT


def test_answer_below_the_threshold_leads_to_nothing() -> None:
    live = LiveJudge(ScriptedJudge(0.89))
    session = begin(live)
    act(session)
    assert live.queue.flush(LONG_S)
    assert session.check_boundary() is None


def test_slow_judge_is_asked_about_the_newest_step_only() -> None:
    judge = ScriptedJudge(0.1, is_held=True)
    live = LiveJudge(judge)
    session = begin(live)
    act(session)
    assert judge.asked.wait(LONG_S)
    for _ in range(5):
        act(session)
    judge.released.set()
    assert live.queue.flush(LONG_S)
    assert judge.seen == [1, 6]


def test_run_beyond_its_tokens_asks_no_further() -> None:
    judge = ScriptedJudge(0.1, tokens=60)
    live = LiveJudge(judge, options=LiveJudgeOptions(max_tokens=100))
    session = begin(live)
    for _ in range(4):
        act(session)
        assert live.queue.flush(LONG_S)
    assert judge.seen == [1, 2]
    assert session.live_run is not None
    assert session.live_run.usage["prompt_tokens"] == 120


def test_run_beyond_its_cost_asks_no_further() -> None:
    judge = ScriptedJudge(0.1, cost_usd=0.06)
    live = LiveJudge(judge, options=LiveJudgeOptions(max_cost_usd=0.1))
    session = begin(live)
    for _ in range(4):
        act(session)
        assert live.queue.flush(LONG_S)
    assert judge.seen == [1, 2]


def test_answer_about_a_step_that_was_rolled_back_is_dropped() -> None:
    judge = ScriptedJudge(0.95, is_held=True)
    live = LiveJudge(judge)
    session = begin(live)
    act(session)
    assert judge.asked.wait(LONG_S)
    session.recorder.fork(0, reason="test")
    act(session, "Another first step.")
    judge.yes = 0.95
    judge.released.set()
    assert live.queue.flush(LONG_S)
    assert session.live_run is not None
    found = session.live_run.take_findings(session.run.steps)
    assert [one.step for one in found] == [0], "only the answer about the step that took its place"


TURNS = 60
MAX_TURN_CPU_S = 0.001


def play_turns(policy: Policy) -> float:
    """Play turns; return the median CPU time that a turn takes in the agent's thread."""
    seconds = []
    with Guard.from_policy(policy) as guard:
        session = guard.session(META, CAN)
        for number in range(TURNS):
            began = time.thread_time()
            session.check_boundary()
            act(session, f"Step {number}.")
            seconds.append(time.thread_time() - began)
        assert len(session.run.steps) == TURNS
    return statistics.median(seconds)


@pytest.mark.parametrize("fault", ["unreachable", "hang", "500", "lie"])
def test_faulty_judge_adds_less_than_a_millisecond_of_the_agents_thread_to_a_turn(fault: str) -> None:
    script = Script(
        always=None if fault in ("unreachable", "lie") else fault, prefer=lambda prompt, label: 0.5
    )
    with serving(script) as (url, _):
        address = f"http://127.0.0.1:{closed_port()}/v1" if fault == "unreachable" else url
        judge = {"base_url": address, "deadline_s": 1, "live": {"threshold": 0.4}}
        document = {"enabled_detectors": ["exact_loop"], "budgets": {"hints": 0}}
        alone = play_turns(Policy.parse(document))
        assert play_turns(Policy.parse({**document, "judge": judge})) < alone + MAX_TURN_CPU_S


def test_hanging_judge_holds_no_turn() -> None:
    """The judge answers only after all turns: a turn that waited for it would fail its wait of a minute."""
    judge = ScriptedJudge(0.99, is_held=True)
    live = LiveJudge(judge, second_judge=ScriptedJudge(0.99))
    session = begin(live)
    act(session)
    assert judge.asked.wait(LONG_S)
    for number in range(TURNS):
        assert session.check_boundary() is None
        assert session.propose(Step(index=0, source=Source.AGENT, agent="assistant", content="A.")) is None
        act(session, f"Step {number}.")
    assert not judge.released.is_set()
    assert judge.seen == [1], "the judge still has its first question"
    judge.released.set()
    assert live.queue.flush(LONG_S)


HOLD = LiveJudgeOptions(hold_effects=True, hold_s=LONG_S)


def book_with(live: LiveJudge) -> tuple[list[int], Session]:
    """Run an agent that books a seat and then answers; return the booked seats."""
    seats: list[int] = []
    guard = Guard(
        detectors={}, localizer="last_error", live_judge=live, recover=RecoveryPolicy(on_fail="hint")
    )

    @guard.tool(effect="destructive")
    def book(seat: int) -> str:
        seats.append(seat)
        return "booked"

    @guard.tool(effect="read")
    def find(row: int) -> str:
        return f"row {row} is free"

    def call(name: str, arguments: str) -> dict[str, object]:
        function = {"name": name, "arguments": arguments}
        calls = [{"id": name, "type": "function", "function": function}]
        return {"role": "assistant", "content": "", "tool_calls": calls}

    answers = iter(
        [call("find", '{"row": 1}'), call("book", '{"seat": 5}'), {"role": "assistant", "content": "Done."}]
    )
    with guard.run("Book seat 4.", tools=[book, find]) as run:
        while not run.done:
            run.tools(run.model(lambda messages: next(answers)))
    assert live.queue.flush(LONG_S)
    return seats, run.session


def test_held_call_runs_if_one_judge_lies() -> None:
    for yes, other in ((1.0, 0.0), (0.0, 1.0)):
        live = LiveJudge(ScriptedJudge(yes), second_judge=ScriptedJudge(other), options=HOLD)
        seats, session = book_with(live)
        assert seats == [5]
        assert session.recoveries == []


def test_held_call_is_refused_if_two_judges_agree() -> None:
    live = LiveJudge(ScriptedJudge(0.99), second_judge=ScriptedJudge(0.99), options=HOLD)
    seats, session = book_with(live)
    assert seats == []
    assert any(one.trigger == "judge" and one.plan.strategy == "reprompt" for one in session.recoveries)


def test_closed_judge_is_not_asked_the_waiting_questions() -> None:
    judge = ScriptedJudge(0.1, is_held=True)
    live = LiveJudge(judge)
    sessions = [begin(live) for _ in range(4)]
    for session in sessions:
        act(session)
    assert judge.asked.wait(LONG_S)
    live.close()
    judge.released.set()
    assert live.queue.flush(LONG_S)
    assert judge.seen == [1]
    assert live.queue.dropped_jobs == 3


def test_held_call_does_not_wait_for_questions_of_other_runs() -> None:
    judge = ScriptedJudge(0.99)
    live = LiveJudge(judge, second_judge=ScriptedJudge(0.99), options=HOLD)
    blocked = threading.Event()
    live.queue.put(lambda: blocked.wait(LONG_S))
    waiting = begin(live)
    turn = Step(index=0, source=Source.AGENT, agent="assistant", content="Book seat 5.")
    assert waiting.check_with_judges(turn) is not None, "two judges refuse the call while the queue waits"
    assert not blocked.is_set()
    blocked.set()
    assert live.queue.flush(LONG_S)


def test_held_call_runs_after_the_bounded_wait() -> None:
    slow = ScriptedJudge(0.99, is_held=True)
    options = LiveJudgeOptions(hold_effects=True, hold_s=0.05)
    live = LiveJudge(slow, second_judge=ScriptedJudge(0.99), options=options)
    release = threading.Timer(1.0, slow.released.set)
    release.start()
    seats, _ = book_with(live)
    release.join()
    assert seats == [5]


def test_call_is_not_held_without_the_option() -> None:
    slow = ScriptedJudge(0.99, is_held=True)
    live = LiveJudge(slow, second_judge=ScriptedJudge(0.99))
    release = threading.Timer(0.2, slow.released.set)
    release.start()
    seats, _ = book_with(live)
    release.join()
    assert seats == [5]


def test_holding_for_a_single_judge_is_a_config_error() -> None:
    with pytest.raises(ConfigError, match="two judges"):
        LiveJudge(ScriptedJudge(0.9), options=HOLD)
    live = {"base_url": "http://127.0.0.1:1/v1", "live": {"hold_effects": True}}
    with pytest.raises(ConfigError, match="two judges"):
        Policy.parse({"judge": live})


def test_embedded_model_leads_to_a_hint_beside_the_agent() -> None:
    policy = Policy.parse({"live_model": {"threshold": 0.01}, "recover": {"on_fail": "stop"}})
    guard = Guard.from_policy(Policy.model_validate_json(policy.model_dump_json()))
    session = guard.session(META, CAN)
    act(session, "I could not do it. I give up.")
    live = guard.components.live_judge
    assert live is not None
    assert live.queue.flush(LONG_S)
    plan = session.check_boundary()
    assert plan is not None
    assert plan.tier is RecoveryTier.HINT
    assert session.recoveries[-1].trigger == "outcome_model"


def test_step_model_leads_to_a_hint_on_the_faulty_step_once_in_a_run_without_other_findings() -> None:
    settings = {"threshold": 1.0, "step_threshold": 0.01}
    policy = Policy.parse({"live_model": settings, "recover": {"on_fail": "stop"}})
    guard = Guard.from_policy(Policy.model_validate_json(policy.model_dump_json()))
    session = guard.session(META, CAN)
    live = guard.components.live_judge
    assert live is not None
    plans = []
    for text in ("I look at the seats.", "Seat 5 is free.", "I chose seat 5."):
        act(session, text)
        assert live.queue.flush(LONG_S)
        plans.append(session.check_boundary())
    assert {one.detector for one in session.findings} == {"step_model"}
    steps = [one.step for one in session.findings]
    assert len(steps) == len(set(steps)), "a step is reported once"
    assert [one.tier for one in plans if one is not None] == [RecoveryTier.HINT] * len(steps)
    assert {one.trigger for one in session.recoveries} == {"step_model"}
    assert all(0.01 <= one.probability <= 1 for one in session.findings)


def test_step_model_starts_no_recovery_by_default_or_below_its_threshold() -> None:
    for settings in ({"threshold": 1.0}, {"threshold": 1.0, "step_threshold": 1.0}):
        guard = Guard.from_policy(Policy.parse({"live_model": settings}))
        session = guard.session(META, CAN)
        act(session, "I look at the seats.")
        live = guard.components.live_judge
        assert live is not None
        assert live.queue.flush(LONG_S)
        assert session.check_boundary() is None
        assert not session.findings


def test_embedded_model_and_live_judge_exclude_each_other() -> None:
    judge = {"base_url": "http://127.0.0.1:1/v1", "live": {}}
    with pytest.raises(ConfigError, match="exclude each other"):
        Policy.parse({"judge": judge, "live_model": {}})

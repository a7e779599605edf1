"""The chat judge against a real HTTP server that answers as vLLM does."""

import asyncio
import json
import threading
import time
from collections.abc import Iterator

import pytest

from agentguard.errors import ConfigError
from agentguard.judge.base import (
    RUN_FAILED,
    ChoiceQuestion,
    Predicate,
    Question,
    ScoreQuestion,
    build_root_cause_question,
)
from agentguard.judge.llm.chat_judge import ChatJudge, ChatOptions
from agentguard.judge.llm.client import JudgeEndpoint
from agentguard.judge.llm.multiple_choice import BEAM_WIDTH, pick_option, split_options
from agentguard.judge.llm.types import CallError, CallUsage, EndpointOptions, ErrorKind, LabelProbabilities
from agentguard.trajectory.model import Source, Step, Trajectory
from tests.unit.judge.chat_server import LONG_S, Script, closed_port, serving
from tests.unit.judge.clock import Clock
from tests.unit.judge.runs import group_chat

RUN = group_chat(3).trajectory
QUESTIONS: tuple[Question, ...] = (
    RUN_FAILED,
    build_root_cause_question(RUN),
    ScoreQuestion(id="progress", text="How far did it get?", low=1, high=5),
    ChoiceQuestion(id="module", text="Which part?", options=("memory", "planning", "action")),
)


@pytest.fixture
def served() -> Iterator[tuple[str, Script]]:
    with serving() as (url, script):
        yield url, script


def patient(url: str) -> JudgeEndpoint:
    """Return an endpoint with a timeout that no busy machine exceeds."""
    return JudgeEndpoint(url, options=EndpointOptions(deadline_s=60))


def decide(url: str, run: Trajectory = RUN, questions: tuple[Question, ...] = QUESTIONS, **more: object):  # type: ignore[no-untyped-def]
    judge = ChatJudge(patient(url), **more)  # type: ignore[arg-type]
    try:
        return judge.decide(run, questions)
    finally:
        judge.close()


def shared(texts: list[str]) -> str:
    least, greatest = min(texts), max(texts)
    return least[: next((i for i, c in enumerate(least) if c != greatest[i]), len(least))]


def long_run(steps: int, text: str = "I look around.") -> Trajectory:
    made = tuple(Step(index=i, source=Source.AGENT, agent="walker", content=text) for i in range(steps))
    return Trajectory(id="long", format="test", task="Find the key.", steps=made)


def test_every_question_type_has_probabilities_over_its_options(served: tuple[str, Script]) -> None:
    answers = decide(served[0])
    assert [a.question for a in answers] == [q.id for q in QUESTIONS]
    assert [a.error for a in answers] == [None] * 4
    assert set(answers[0].probabilities) == {"yes", "no"}
    assert list(answers[1].probabilities) == [str(i) for i in range(len(RUN.steps))]
    assert list(answers[2].probabilities) == ["1", "2", "3", "4", "5"]
    assert set(answers[3].probabilities) == {"memory", "planning", "action"}
    for answer in answers:
        assert sum(answer.probabilities.values()) == pytest.approx(1)
        assert answer.usage["calls"] == 1
        assert answer.usage["prompt_tokens"] > 0
        assert 0 < answer.usage["label_mass"] <= 1


def test_all_questions_share_a_prefix_and_end_with_the_question(
    served: tuple[str, Script],
) -> None:
    url, script = served
    decide(url, schemata=("How it shows: it assumes a value.",))
    prompts = script.prompts()
    common = shared(prompts)
    assert "end of recording" in common
    assert RUN.steps[-1].content in common.replace("\n| ", "\n")
    assert "it assumes a value" in common
    assert all(p.endswith("Answer with one capital letter.") for p in prompts)
    assert all(sum(m["role"] == "user" for m in body["messages"]) == 1 for body in script.seen)
    assert not any("tools" in body for body in script.seen)


def test_schemata_do_not_change_the_transcript_bytes(served: tuple[str, Script]) -> None:
    url, script = served
    options = ChatOptions(nonce_secret=b"one")
    for schemata in ((), ("How it shows: it assumes a value.",), lambda run: ["a", "b", "c", "d"]):
        decide(url, questions=(RUN_FAILED,), schemata=schemata, options=options)
    bare, one, many = script.prompts()
    assert "--- end of recording" in shared([bare, one, many])
    assert "| c\n" in many
    assert "| d\n" not in many  # k is small


def test_first_question_is_sent_alone_and_the_others_together(served: tuple[str, Script]) -> None:
    url, script = served
    judge = ChatJudge(patient(url))

    def before_the_first() -> None:
        script.hold = bool
        time.sleep(0.15)  # time for another request to arrive
        assert script.at_once == script.most_at_once == 1
        script.meet = 3

    try:
        script.hold = before_the_first
        answers = judge.decide(RUN, QUESTIONS)
    finally:
        judge.close()
    assert [one.error for one in answers] == [None] * 4
    assert script.most_at_once == 3


def test_asynchronous_method_is_equal_and_does_not_block(served: tuple[str, Script]) -> None:
    url, script = served
    judge = ChatJudge(patient(url))
    ticked = threading.Event()

    async def main() -> tuple[object, int]:
        ticks = 0

        async def tick() -> None:
            nonlocal ticks
            while True:
                ticks += 1
                if ticks > 3:
                    ticked.set()  # the server answers only now
                await asyncio.sleep(0.01)

        ticking = asyncio.create_task(tick())
        answers = await judge.adecide(RUN, QUESTIONS)
        ticking.cancel()
        return answers, ticks

    script.hold = lambda: ticked.wait(LONG_S)
    try:
        answers, ticks = asyncio.run(main())
        again = judge.decide(RUN, QUESTIONS)
    finally:
        judge.close()
    assert [a.probabilities for a in answers] == [a.probabilities for a in again]  # type: ignore[attr-defined]
    assert all(a.probabilities for a in again)
    assert ticks > 3


def test_judge_is_callable_within_a_running_loop(served: tuple[str, Script]) -> None:
    async def main() -> object:
        return decide(served[0], questions=(RUN_FAILED,))[0].error

    assert asyncio.run(main()) is None


@pytest.mark.parametrize(
    "what", ["500", "503", "429", "400", "html", "truncated", "reset", "not-chat", "401"]
)
def test_failure_is_an_error_for_each_question(served: tuple[str, Script], what: str) -> None:
    url, script = served
    script.always = what
    answers = decide(url)
    assert len(answers) == len(QUESTIONS)
    for answer in answers:
        assert answer.error is not None
        assert answer.error.startswith(f"{answer.usage['fault']}: ")
        assert not answer.probabilities


def test_hanging_server_ends_all_questions_within_one_deadline(served: tuple[str, Script]) -> None:
    url, script = served
    clock = Clock()
    judge = ChatJudge(clock.on(patient(url)), options=ChatOptions(deadline_s=50))
    script.always, script.stuck = "hang", lambda: clock.forward(50)
    started = clock.now()
    try:
        answers = judge.decide(RUN, QUESTIONS)
    finally:
        judge.close()
    assert {a.usage["fault"] for a in answers} == {ErrorKind.TIMEOUT}
    assert len(script.seen) == 1  # the others would have failed equally
    assert clock.now() - started < 2 * 50


def test_unreachable_server_is_tried_once() -> None:
    answers = decide(f"http://127.0.0.1:{closed_port()}/v1")
    assert {a.usage["fault"] for a in answers} == {ErrorKind.UNREACHABLE}


def test_failed_question_does_not_affect_others(served: tuple[str, Script]) -> None:
    url, script = served
    script.faults = ["500"]
    first, *rest = decide(url)
    assert first.usage["fault"] == ErrorKind.SERVER
    assert [a.error for a in rest] == [None] * 3


def test_run_too_long_for_the_model_is_truncated(served: tuple[str, Script]) -> None:
    url, script = served
    script.longest = 6_000
    answers = decide(url, long_run(40, "I look around and see a great many things. " * 20))
    assert [a.error for a in answers] == [None] * 4
    assert any(len(p) > 6_000 for p in script.prompts())
    first, *later = [p for p in script.prompts() if len(p) <= 6_000]
    assert later
    assert "end of recording" in shared([first, *later])


def test_context_too_small_for_a_step_is_an_error(served: tuple[str, Script]) -> None:
    url, script = served
    script.context = 150
    answers = decide(url)
    text = f"too_long: the context of 150 tokens is too small for a single step ({url}); serve the model"
    assert all(str(a.error).startswith(text) for a in answers)
    assert all(a.usage["fault"] == ErrorKind.TOO_LONG for a in answers)


@pytest.mark.parametrize(
    ("question", "said"),
    [
        (ChoiceQuestion(id="q", text="?", options=()), "no option"),
        (ChoiceQuestion(id="q", text="?", options=("a", "a")), "duplicate"),
        (ScoreQuestion(id="q", text="?", low=5, high=1), "no option"),
        (ScoreQuestion(id="q", text="?", low=0, high=10**12), "more than"),
    ],
)
def test_unanswerable_question_is_an_error(served: tuple[str, Script], question: Question, said: str) -> None:
    wrong, right = decide(served[0], questions=(question, RUN_FAILED))
    assert said in str(wrong.error)
    assert right.error is None


def test_no_questions_make_no_call(served: tuple[str, Script]) -> None:
    assert decide(served[0], questions=()) == ()
    assert not served[1].seen


def test_run_without_steps_is_judged(served: tuple[str, Script]) -> None:
    assert all(a.error for a in decide(served[0], long_run(0)))


def test_low_label_mass_is_a_fault_if_configured(served: tuple[str, Script]) -> None:
    url, script = served
    script.prefer = lambda prompt, label: 1e-9
    assert decide(url, questions=(RUN_FAILED,))[0].error is None
    (answer,) = decide(url, questions=(RUN_FAILED,), options=ChatOptions(min_label_mass=0.01))
    assert answer.usage["fault"] == ErrorKind.LOW_LABEL_MASS


def test_many_steps_are_asked_in_groups(served: tuple[str, Script]) -> None:
    url, script = served
    run = long_run(130)

    def prefer(prompt: str, label: str) -> float:
        line = next(one for one in prompt.split("\n") if one.startswith(f"{label}: "))
        said = line[3:].removeprefix("one of ").split(" to ")
        low, high = int(said[0]), int(said[-1])
        return 0.5 if low <= 77 <= high else 0.01

    script.prefer = prefer
    (answer,) = decide(url, run, (build_root_cause_question(run),))
    assert answer.error is None
    assert len(answer.probabilities) == 130
    assert sum(answer.probabilities.values()) == pytest.approx(1)
    assert max(answer.probabilities, key=lambda step: answer.probabilities[step]) == "77"
    assert answer.usage["calls"] <= 1 + BEAM_WIDTH
    assert "end of recording" in shared(script.prompts())


@pytest.mark.parametrize("count", [1, 2, 20, 21, 130, 400, 401, 4_096])
def test_probabilities_of_any_number_of_options_sum_to_one(count: int) -> None:
    calls = 0

    async def ask(shown: list[str]) -> LabelProbabilities:
        nonlocal calls
        calls += 1
        assert 2 <= len(shown) <= 20
        shares = {chr(65 + i): (i + 1) / sum(range(1, len(shown) + 1)) for i in range(len(shown))}
        return LabelProbabilities(probabilities=shares, label_mass=0.5, usage=CallUsage(calls=1))

    options = [f"option {i}" for i in range(count)]
    picked = asyncio.run(pick_option(options, ask))  # type: ignore[arg-type]
    assert isinstance(picked, LabelProbabilities)
    assert set(picked.probabilities) == set(options)
    assert sum(picked.probabilities.values()) == pytest.approx(1)
    assert picked.usage.calls == calls


def test_label_mass_of_grouped_options_is_the_smallest_of_all_calls() -> None:
    async def ask(shown: list[str]) -> LabelProbabilities:
        is_group = shown[0].startswith("one of")
        shares = {chr(65 + i): 1 / len(shown) for i in range(len(shown))}
        return LabelProbabilities(
            probabilities=shares, label_mass=0.9 if is_group else 0.2, usage=CallUsage(calls=1)
        )

    result = asyncio.run(pick_option([f"option {i}" for i in range(40)], ask))  # type: ignore[arg-type]
    assert isinstance(result, LabelProbabilities)
    assert result.label_mass == 0.2


def test_failed_group_is_a_fault() -> None:
    async def ask(shown: list[str]) -> LabelProbabilities | CallError:
        if shown[0].startswith("one of"):
            return LabelProbabilities(
                probabilities={"A": 0.5, "B": 0.5}, label_mass=None, usage=CallUsage(calls=1)
            )
        return CallError(kind=ErrorKind.SERVER, message="away")

    assert isinstance(asyncio.run(pick_option([str(i) for i in range(30)], ask)), CallError)  # type: ignore[arg-type]


def test_groups_are_consecutive_and_of_equal_size() -> None:
    groups = split_options([str(i) for i in range(45)])
    assert [len(group) for group in groups] == [15, 15, 15]
    assert [one for group in groups for one in group] == [str(i) for i in range(45)]


def test_version_names_model_prompts_and_schemata(served: tuple[str, Script]) -> None:
    url, _ = served
    judges = [ChatJudge(patient(url), schemata=shown) for shown in ((), ("a",), ("b",))]
    try:
        versions = {judge.version(RUN) for judge in judges}
    finally:
        for judge in judges:
            judge.close()
    assert len(versions) == 3
    assert all("judge (/models/small)" in version for version in versions)


def test_growing_run_keeps_its_prefix(served: tuple[str, Script]) -> None:
    url, script = served
    judge = ChatJudge(patient(url))
    try:
        for count in (5, 6):
            judge.decide(long_run(count), (Predicate(id="stuck", text="Is it stuck?"),))
    finally:
        judge.close()
    assert "[step 4]" in shared(script.prompts())


@pytest.mark.parametrize(
    ("options", "most"), [(ChatOptions(), 400), (ChatOptions(max_line_characters=40), 40)]
)
def test_generated_line_is_limited_to_its_maximum_length(
    served: tuple[str, Script], options: ChatOptions, most: int
) -> None:
    url, script = served
    judge = ChatJudge(patient(url), options=options)
    try:
        judge.decide(RUN, (RUN_FAILED,))
        script.writes = json.dumps({"text": "a\n" * (most // 2)})
        written = judge.generate_text(RUN, "What went wrong?")
        script.writes = json.dumps({"text": "a" * (most + 1)})
        longer = judge.generate_text(RUN, "What went wrong?")
    finally:
        judge.close()
    assert (written.text, written.error) == (" ".join("a" * (most // 2)), None)
    assert (longer.text, longer.error) == ("", "outside")
    asked = script.seen[-1]
    assert f'"maxLength": {most}' in json.dumps(asked["response_format"])
    assert most < asked["max_tokens"] <= most + 20
    assert "end of recording" in shared(script.prompts())


def test_invalid_options_are_rejected_with_the_name_of_the_option() -> None:
    endpoint = JudgeEndpoint("http://127.0.0.1:9/v1")
    for option, wrong in (
        ("deadline_s", ChatOptions(deadline_s=0)),
        ("characters_per_token", ChatOptions(characters_per_token=0)),
        ("max_schemata", ChatOptions(max_schemata=-1)),
        ("max_line_characters", ChatOptions(max_line_characters=0)),
        ("max_line_characters", ChatOptions(max_line_characters=401)),
    ):
        with pytest.raises(ConfigError, match=option):
            ChatJudge(endpoint, options=wrong)

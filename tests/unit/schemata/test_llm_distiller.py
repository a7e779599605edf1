"""Schemata from a model: allowed content, kept content, and failures of the model."""

import json
from collections.abc import Iterator

import pytest

from agentguard.errors import JudgeError
from agentguard.judge.llm.client import JudgeEndpoint
from agentguard.judge.llm.types import EndpointOptions
from agentguard.schemata.distillation.distiller import EmbeddedDistiller
from agentguard.schemata.distillation.llm_distiller import RESPONSE_SCHEMA, LLMDistiller
from agentguard.schemata.model import ErrorSchema
from agentguard.schemata.profiles.delexicalization import CLASS_WORDS
from agentguard.schemata.profiles.vocabulary import WORDS
from agentguard.trajectory.model import Record
from tests.unit.judge.chat_server import Script, serving
from tests.unit.judge.runs import group_chat

RECORD = group_chat(3, flaw=3)
GOOD = "The agent assumes a value instead of checking the result of the call."
AFTER = "The agent has not seen any result before it answers."


@pytest.fixture
def served() -> Iterator[tuple[str, Script]]:
    with serving() as (url, script):
        yield url, script


def told(signature: list[str], context: list[str] | None = None, heuristics: list[str] | None = None) -> str:
    return json.dumps({"signature": signature, "context": context or [], "heuristics": heuristics or []})


def distil(url: str, record: Record = RECORD, *, deadline_s: float = 20) -> ErrorSchema | None:
    endpoint = JudgeEndpoint(url, options=EndpointOptions(deadline_s=deadline_s))
    try:
        return LLMDistiller(endpoint).distill(record, ())
    finally:
        endpoint.close()


def test_llm_schema_has_the_shape_of_the_embedded_one(served: tuple[str, Script]) -> None:
    url, script = served
    script.text = told([GOOD], [AFTER])
    schema = distil(url)
    embedded = EmbeddedDistiller().distill(RECORD, ())
    assert schema is not None
    assert embedded is not None
    assert schema.signature[0].lower().startswith("the agent assumes a value instead of")
    assert len(schema.context) == 1
    assert schema.provenance.method == "chat:judge"
    assert schema.provenance.runs == embedded.provenance.runs
    assert schema.provenance.groups == embedded.provenance.groups
    assert schema.traits == embedded.traits
    assert schema.codes == embedded.codes
    assert schema.id != embedded.id


def test_one_call_shows_the_run_and_marks_the_step(served: tuple[str, Script]) -> None:
    url, script = served
    script.text = told([GOOD])
    distil(url)
    (body,), (prompt,) = script.seen, script.prompts()
    assert body["response_format"]["json_schema"]["schema"] == RESPONSE_SCHEMA
    marked = prompt[prompt.index("step at fault") :]
    assert "Let us assume sample values" in marked
    assert prompt.index("end of recording") < prompt.index("step at fault")


@pytest.mark.parametrize(
    "leak",
    [
        "It goes wrong in step 3 of the run and the agent did not check it.",
        "The third step is wrong and the agent did not check the result.",
        "The last turn is the one that was wrong and nobody did check it.",
        "Step three has the error and the agent did not check the result.",
        f"{RECORD.trajectory.steps[3].agent} did not check the result of the call.",
        f"{RECORD.trajectory.steps[3].agent.replace('_', ' ').lower()} did not check the result of the call.",
        "Harbour boats ferries piers northern coast moored.",
    ],
)
def test_revealing_sentence_is_dropped(served: tuple[str, Script], leak: str) -> None:
    url, script = served
    script.text = told([leak, GOOD], [leak], [leak])
    schema = distil(url)
    assert schema is not None
    assert len(schema.signature) == 1
    assert schema.context == schema.heuristics == ()
    script.text = told([leak])
    with pytest.raises(JudgeError, match="no sentence of a signature"):
        distil(url)


def test_topic_words_are_removed(served: tuple[str, Script]) -> None:
    url, script = served
    script.text = told(
        ["The agent assumes 41 for the ferries and does not check the result of the call before it answers."]
    )
    schema = distil(url)
    assert schema is not None
    words = schema.to_text().lower().replace(".", " ").replace("…", " ").split()
    assert set(words) <= WORDS | CLASS_WORDS


def test_step_beyond_recording_or_passed_run_makes_no_call(served: tuple[str, Script]) -> None:
    url, script = served
    from dataclasses import replace

    passed = replace(RECORD, annotation=replace(RECORD.annotation, failed=False))
    assert distil(url, passed) is None
    cause = RECORD.annotation.root_cause
    assert cause is not None
    beyond = replace(RECORD, annotation=replace(RECORD.annotation, root_cause=replace(cause, step=99)))
    assert distil(url, beyond) is None
    assert not script.seen


@pytest.mark.parametrize("what", ["500", "hang", "truncated", "html", "overlong"])
def test_unavailable_model_is_a_judge_error(served: tuple[str, Script], what: str) -> None:
    url, script = served
    script.always = what
    with pytest.raises(JudgeError, match="returned no schema"):
        distil(url, deadline_s=2)


@pytest.mark.parametrize(
    "text", ["no JSON", "[]", told([]), told(["too long " * 40]), '{"signature": ["x"]}']
)
def test_invalid_answer_is_a_judge_error(served: tuple[str, Script], text: str) -> None:
    url, script = served
    script.text = text
    with pytest.raises(JudgeError, match="returned no schema"):
        distil(url)

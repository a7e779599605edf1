"""Distillation of a failure: the schema describes the failure, and contains no part of the label's answer."""

from __future__ import annotations

from dataclasses import replace
from itertools import permutations
from pathlib import Path

import orjson
import pytest
from hypothesis import assume, given, settings, strategies as st

from agentguard.detect.base import Finding
from agentguard.detect.detection import detect
from agentguard.localize.base import Diagnosis, Hypothesis
from agentguard.schemata.advice import select_correction
from agentguard.schemata.distillation.distiller import (
    HAS_TEMPLATE,
    LACKS_TEMPLATE,
    EmbeddedDistiller,
    FailureLocation,
    compute_trait_similarity,
    describe_contrast,
)
from agentguard.schemata.merge import merge_schemata
from agentguard.schemata.model import ErrorSchema, SchemaOrigin
from agentguard.schemata.profiles.delexicalization import Delexicalizer
from agentguard.schemata.profiles.step_profile import (
    VOCABULARY,
    StepProfile,
    is_words_sentence,
    profile_steps,
)
from agentguard.schemata.profiles.vocabulary import WORDS
from agentguard.schemata.serialization import decode_schema, encode_schema
from agentguard.trajectory.formats.sdk import JsonNode
from agentguard.trajectory.grouping import normalize_group_key
from agentguard.trajectory.model import Annotation, Record, RootCause, Source, Step, Trajectory
from agentguard.verdict import Verdict
from tests.data import shared_data
from tests.unit.schemata.runs import BERGEN, GOLD, LISBON, Cast, invented

DISTILLER = EmbeddedDistiller()


def distilled(record: Record) -> ErrorSchema:
    schema = DISTILLER.distill(record, detect(record.trajectory).findings)
    assert schema is not None
    return schema


def told(schema: ErrorSchema) -> tuple[object, ...]:
    """Return the content of a schema without the identity of its run."""
    return (
        schema.signature, schema.context, schema.heuristics, schema.traits, schema.codes, schema.module,
        schema.correction,
    )  # fmt: skip


def test_schema_contains_the_step_profile() -> None:
    record = invented()
    findings = detect(record.trajectory).findings
    schema = distilled(record)
    portrait = next(one for one in profile_steps(record.trajectory, findings) if one.step == GOLD)
    assert schema.to_text() == portrait.text
    assert schema.traits == portrait.traits
    assert "A number that nothing gave reaches the end from here." in schema.signature
    assert "What came back shows no error." in schema.signature
    assert "Nothing had been run before." in schema.context
    assert schema.codes[0] == "agentrx:invention_of_new_information"
    assert schema.module == "memory"
    assert schema.correction.startswith("Do not continue with assumed data.")
    assert schema.provenance.runs == ("one",)
    assert schema.provenance.groups == (normalize_group_key(record.trajectory.task),)
    assert (schema.provenance.method, schema.provenance.origin) == ("embedded", SchemaOrigin.NATURAL)
    assert (schema.version, schema.support, schema.used) == (1, 1, 0)


def test_paraphrased_failure_gives_the_same_schema() -> None:
    mine, theirs = distilled(invented(LISBON)), distilled(invented(BERGEN))
    assert told(mine) == told(theirs)
    assert mine.id != theirs.id  # two runs, two failures
    assert mine.id == distilled(invented(LISBON)).id


def test_label_text_is_absent_from_schema() -> None:
    reason = f"{LISBON.worker} invents {LISBON.thing} at step {GOLD}"
    schema = distilled(invented(reason=reason))
    assert told(schema) == told(distilled(invented(reason="")))
    whole = " ".join((*schema.to_lines(), schema.to_text(), schema.correction, *schema.traits)).lower()
    hiding = (LISBON.worker, LISBON.lead, LISBON.thing, LISBON.place, LISBON.first, "invents", "harbour")
    for hidden in hiding:
        assert hidden.lower() not in whole
    assert not any(character.isdigit() for character in whole)


def test_agent_of_label_does_not_change_schema() -> None:
    record = invented()
    cause = RootCause(step=GOLD, agent="Somebody_Else")
    assert distilled(replace(record, annotation=replace(record.annotation, root_cause=cause))) == distilled(
        record
    )


def test_codes_and_module_of_label_come_first() -> None:
    record = invented()
    cause = RootCause(step=GOLD, module="planning", codes=("mast:task_derailment", "Lisbon is wrong"))
    schema = distilled(replace(record, annotation=replace(record.annotation, root_cause=cause)))
    assert schema.codes == ("mast:task_derailment",)
    assert schema.module == "planning"


@pytest.mark.parametrize(
    "annotation",
    [
        Annotation(),
        Annotation(failed=True),
        Annotation(failed=True, root_cause=RootCause(agent="x")),
        Annotation(failed=False, root_cause=RootCause(step=GOLD)),
        Annotation(failed=True, root_cause=RootCause(step=99)),
        Annotation(failed=True, root_cause=RootCause(step=-1)),
    ],
)
def test_undistillable_failure_gives_none(annotation: Annotation) -> None:
    assert DISTILLER.distill(replace(invented(), annotation=annotation), ()) is None


def test_run_without_steps_gives_none() -> None:
    record = invented()
    empty = replace(record.trajectory, steps=())
    assert DISTILLER.distill(replace(record, trajectory=empty), ()) is None


def test_executed_report_represents_the_step_that_ran_it() -> None:
    assert told(distilled(invented(step=GOLD + 1))) == told(distilled(invented(step=GOLD)))


def test_codes_default_to_findings_of_the_next_step() -> None:
    record = invented()
    back = Finding(
        detector="tool_error", step=GOLD + 1, codes=("mine:broke",), probability=0.5, message="",
        correction="Retry.",
    )  # fmt: skip
    later = replace(back, step=GOLD + 2, codes=("mine:later",))
    schema = DISTILLER.distill(record, (back, later))
    assert schema is not None
    assert (schema.codes, schema.correction) == (("mine:broke",), "Retry.")
    both = DISTILLER.distill(record, (back, replace(back, step=GOLD, codes=("mine:here",))))
    assert both is not None
    assert both.codes == ("mine:here",)


def test_injected_failure_is_marked() -> None:
    record = invented()
    marked = replace(record, annotation=replace(record.annotation, extra={"origin": "injected"}))
    assert distilled(marked).provenance.origin is SchemaOrigin.INJECTED


def test_diagnosis_is_distilled_like_a_label() -> None:
    record = invented()
    findings = detect(record.trajectory).findings
    first = Hypothesis(step=GOLD, agent=LISBON.worker, correction="Search again and verify the result.")
    second = Hypothesis(step=4, agent=LISBON.lead, codes=("mast:task_derailment",), module="reflection")
    diagnosis = Diagnosis(
        trajectory_id="one", method="m", verdict=Verdict.FAILED, probability=1.0,
        hypotheses=(first, second), findings=findings,
    )  # fmt: skip
    schema = DISTILLER.distill_diagnosis(record.trajectory, diagnosis)
    assert schema is not None
    assert schema.to_text() == distilled(record).to_text()
    assert schema.correction == "Search again and verify the result."
    assert schema.provenance.groups == (normalize_group_key(record.trajectory.task),)
    other = DISTILLER.distill_diagnosis(record.trajectory, diagnosis, hypothesis=1, group="Task-7")
    assert other is not None
    assert (other.codes, other.module) == (("mast:task_derailment",), "reflection")
    assert other.provenance.groups == ("task 7",)
    assert DISTILLER.distill_diagnosis(record.trajectory, diagnosis, hypothesis=2) is None


def test_run_without_group_and_task_has_no_group() -> None:
    run = replace(invented().trajectory, task="")
    schema = DISTILLER.distill_step(run, (), FailureLocation(step=GOLD))
    assert schema is not None
    assert schema.provenance.groups == ()


def finding(correction: str, probability: float = 0.9, codes: tuple[str, ...] = ()) -> Finding:
    return Finding(
        detector="d", step=0, codes=codes, probability=probability, message="", correction=correction
    )


PLAINER = Delexicalizer(invented().trajectory)


@pytest.mark.parametrize(
    ("given", "found", "codes", "module", "expected"),
    [
        ("Verify it again.", ("Retry.",), (), None, "Verify it again."),
        ("Ask Zed about ferries.", ("Retry.",), (), None, "Retry."),
        (
            "Ask for ferries before you retry and verify.",
            (),
            (),
            None,
            "Ask for … before you retry and verify.",
        ),
        ("Zed: ferries, pears!", (), (), "reflection", "Compare the result with the expected result"),
        ("", (), ("agent_error:memory.hallucination",), None, "Use only observations"),
        ("", (), ("nobody:knows.it",), None, ""),
        ("", (), (), None, ""),
    ],
)
def test_correction_contains_no_topic_words(
    given: str, found: tuple[str, ...], codes: tuple[str, ...], module: str | None, expected: str
) -> None:
    said = select_correction(given, [finding(text) for text in found], codes, module, PLAINER)
    assert said.startswith(expected)
    assert bool(said) == bool(expected)


def test_contrast_names_the_distinguishing_traits() -> None:
    def look(step: int, **traits: float) -> StepProfile:
        return StepProfile(
            step=step, traits={name.replace("__", ":"): w for name, w in traits.items()}, words=""
        )

    seen = (
        look(0, role__worker=1, form__code=1, after__failed=1, place__first=1),
        look(1, role__worker=1, form__code=1, after__fine=1),
        look(2, role__worker=1, form__code=1, after__fine=1),
    )
    assert describe_contrast(seen, 0) == (
        HAS_TEMPLATE.format("What came back shows an error."),
        LACKS_TEMPLATE.format("What came back shows no error."),
    )
    assert describe_contrast(seen[:1], 0) == ()
    assert describe_contrast(seen[1:], 0) == ()
    assert compute_trait_similarity({}, {"a": 1.0}) == 0.0
    assert compute_trait_similarity({"a": 0.5}, {"a": 1.0}) == pytest.approx(1.0)


def test_runs_with_exchanged_names_differ_only_in_provenance() -> None:
    third = Cast(lead="X_1", worker="Y", shell="Z", thing="q", place="W", first="111", last="22.33", run="c")
    assert distilled(invented(third)).heuristics == distilled(invented()).heuristics


def test_schemata_of_recorded_failures_contain_no_names_or_numbers() -> None:
    from agentguard.trajectory.formats.reader import load_records

    for record in load_records(shared_data("who_and_when"))[::20]:
        schema = distilled(record)
        free = [line for line in schema.signature if line not in VOCABULARY]
        assert all(is_words_sentence(line) for line in free)
        said = " ".join((*free, schema.correction)).lower()
        assert not any(character.isdigit() for character in said)
        assert not any(step.agent.lower() in said.split() for step in record.trajectory.steps)


letters = st.text("bcdfgjklmnpqrstvwxz", min_size=1, max_size=20)


def dealt(letters_: str, model: str) -> str:
    """Return a word with the length and capitals of ``model``, other letters, and absent from the list."""
    drawn = (letters_ * len(model))[: len(model)]
    return "".join(
        (one.upper() if old.isupper() else one) if old.isalpha() else old
        for one, old in zip(drawn, model, strict=True)
    )


@given(st.lists(letters, min_size=5, max_size=5, unique=True), st.integers(600, 999), st.integers(6000, 9999))
def test_any_names_topic_and_numbers_give_the_same_schema(words: list[str], first: int, last: int) -> None:
    lead, worker, shell, thing, place = (
        dealt(word, model)
        for word, model in zip(
            words, (LISBON.lead, LISBON.worker, LISBON.shell, LISBON.thing, LISBON.place), strict=True
        )
    )
    drawn = [word.lower() for word in (*lead.split("_"), worker, shell, thing, place)]
    assume(not any(one in other for one, other in permutations(drawn, 2)))  # no name is a part of another
    assume(not set(drawn) & WORDS)
    cast = Cast(lead, worker, shell, thing, place, str(first), f"{last // 100}.{last % 100:02}", "other")
    assert told(distilled(invented(cast))) == told(distilled(invented(LISBON)))


turns = st.tuples(
    st.sampled_from(list(Source)),
    st.sampled_from(["Alice", "Bob", "search", "a number", ""]),
    st.text(max_size=30)
    | st.sampled_from(["error 12", "I assume 12 boats", "```python\nx = 1\n```", "TERMINATE"]),
)


@settings(max_examples=50)
@given(st.lists(turns, min_size=1, max_size=6), st.text(max_size=20), st.integers(0, 5))
def test_any_failure_can_be_distilled(turned: list[tuple[Source, str, str]], task: str, step: int) -> None:
    steps = tuple(
        Step(index=i, source=source, agent=agent, content=text)
        for i, (source, agent, text) in enumerate(turned)
    )
    run = Trajectory(id="r", format="made", task=task, steps=steps)
    cause = RootCause(step=step, agent="Alice", reason=task)
    record = Record(trajectory=run, annotation=Annotation(failed=True, root_cause=cause, group=task))
    schema = DISTILLER.distill(record, detect(run).findings)
    first = min(one.step for one in profile_steps(run, ()) if one.step is not None)
    assert (schema is None) == (step >= len(steps) or step < first)
    if schema is None:
        return
    assert all(line in VOCABULARY or is_words_sentence(line) for line in (*schema.signature, *schema.context))
    assert decode_schema(JsonNode.from_value(orjson.loads(orjson.dumps(encode_schema(schema))))) == schema
    assert merge_schemata(schema, schema) == replace(
        schema, version=2, traits=merge_schemata(schema, schema).traits
    )


def test_example_in_the_documentation_is_real() -> None:
    page = " ".join((Path(__file__).parents[3] / "docs" / "schemata.md").read_text("utf-8").split())
    schema = distilled(invented())
    assert " ".join(schema.to_lines()) in page
    assert all(f"`{code}`" in page for code in schema.codes)
    assert schema.correction in page

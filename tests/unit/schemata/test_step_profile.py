"""Step profiles use a closed vocabulary and match the rows of the feature table."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings, strategies as st

from agentguard.detect.base import Finding, detectors
from agentguard.detect.detection import detect
from agentguard.judge.embedded.features.catalogue import COLUMN_BY_NAME
from agentguard.judge.embedded.features.table import build_step_table
from agentguard.schemata.profiles.finding_traits import (
    FINDING_SENTENCES,
    OTHER_DETECTOR,
    build_finding_traits,
)
from agentguard.schemata.profiles.step_profile import (
    MIN_SENTENCE_WEIGHT,
    VOCABULARY,
    format_sentences,
    get_sentence,
    is_words_sentence,
    profile_run,
    profile_steps,
)
from agentguard.schemata.profiles.traits import TRAITS, TraitPart
from agentguard.trajectory.model import Source, Step, Trajectory
from tests.unit.schemata.runs import BERGEN, GOLD, LISBON, invented

RUN = invented().trajectory


def found(step: int, detector: str = "tool_error", codes: tuple[str, ...] = ("a:b",)) -> Finding:
    return Finding(detector=detector, step=step, codes=codes, probability=0.8, message="")


def test_rows_match_the_feature_table() -> None:
    portraits = profile_steps(RUN, ())
    assert tuple(one.step for one in portraits) == build_step_table(RUN).steps


def test_profile_describes_step_and_outcome() -> None:
    gold = next(one for one in profile_steps(RUN, detect(RUN).findings) if one.step == GOLD)
    lines = gold.text.split("\n")
    assert {"A worker speaks.", "It brings code.", "What it handed over is executed next."} <= set(lines)
    assert "It is the first that assumes something." in lines
    assert "A detector fired here: a value was made up or has no source." in lines
    assert gold.traits["finding:unknown_origin"] > MIN_SENTENCE_WEIGHT
    assert gold.traits["code:agentrx:invention_of_new_information"] > MIN_SENTENCE_WEIGHT
    words = [line for line in lines if is_words_sentence(line)]
    assert len(words) == 1
    assert "could not access the source" in words[0]


def test_every_sentence_except_words_is_in_the_vocabulary() -> None:
    for one in profile_steps(RUN, detect(RUN).findings):
        lines = one.text.split("\n")
        assert all(line in VOCABULARY or is_words_sentence(line) for line in lines)
        told = {VOCABULARY[line] for line in lines if line in VOCABULARY}
        assert told == {
            name
            for name, weight in one.traits.items()
            if weight >= MIN_SENTENCE_WEIGHT and get_sentence(name)
        }


def test_run_with_other_names_numbers_and_topics_has_the_same_profile() -> None:
    other = invented(BERGEN).trajectory
    mine = profile_steps(RUN, detect(RUN).findings)
    theirs = profile_steps(other, detect(other).findings)
    assert [one.text for one in mine] == [one.text for one in theirs]
    assert [one.traits for one in mine] == [one.traits for one in theirs]
    assert profile_run(RUN, ()) == profile_run(other, ())


def test_label_does_not_change_profile() -> None:
    assert profile_steps(invented(step=4, reason="x").trajectory, ()) == profile_steps(
        invented(step=None).trajectory, ()
    )


def test_profiles_are_deterministic() -> None:
    findings = detect(RUN).findings
    assert profile_steps(RUN, findings) == profile_steps(replace(RUN), findings)
    assert profile_steps(RUN, findings) == profile_steps(RUN, tuple(reversed(findings)))


def test_run_without_steps_has_no_profiles() -> None:
    empty = replace(RUN, steps=())
    assert profile_steps(empty, ()) == ()
    whole = profile_run(empty, ())
    assert (whole.text, dict(whole.traits), whole.step) == ("", {}, None)


def test_profile_of_whole_run_contains_all_findings() -> None:
    whole = profile_run(RUN, (found(3, "exact_loop"),))
    assert whole.step is None
    assert "A detector fired here: the same move is repeated with the same outcome." in whole.text
    assert "The run is short." in whole.text
    assert all(line in VOCABULARY for line in whole.text.split("\n"))


def test_every_built_in_detector_has_its_sentences() -> None:
    built_in = set(detectors().names())
    for prefix in ("finding", "finding_next", "finding_before"):
        told = {
            name.removeprefix(f"{prefix}:") for name in FINDING_SENTENCES if name.startswith(f"{prefix}:")
        }
        assert told == built_in | {OTHER_DETECTOR}


def test_vocabulary_is_consistent() -> None:
    names = [trait.name for trait in TRAITS]
    assert len(set(names)) == len(names)
    assert len(VOCABULARY) == len(TRAITS) + len(FINDING_SENTENCES)  # no two traits share a sentence
    for trait in TRAITS:
        assert trait.sentence.endswith(".")
        assert trait.bounds
        for bound in trait.bounds:
            assert bound.feature in COLUMN_BY_NAME
            assert bound.zero_at != bound.one_at
    assert not any(character.isdigit() for sentence in VOCABULARY for character in sentence)


def test_finding_is_assigned_to_its_step() -> None:
    rows = build_finding_traits((0, 2, 4), (found(2), found(3, "refusal")), 6)
    assert rows[0] == {"finding_next:tool_error": pytest.approx(0.9)}
    assert set(rows[1]) == {"finding:tool_error", "finding_next:refusal", "code:a:b"}
    assert set(rows[2]) == {"finding_before:tool_error", "finding_before:refusal"}


def test_name_of_foreign_detector_is_omitted() -> None:
    rows = build_finding_traits((0, 1), (found(0, "Paris", ("not a code", "x:Lisbon", "my:kind.of")),), 2)
    assert set(rows[0]) == {f"finding:{OTHER_DETECTOR}", "code:my:kind.of"}
    assert build_finding_traits((), (found(0),), 0) == []
    assert build_finding_traits((0,), (found(7),), 1) == [{}]


def test_sentences_keep_the_order_of_the_vocabulary() -> None:
    traits = {"after:failed": 1.0, "role:worker": 1.0, "before:failed": 1.0, "code:a:b": 1, "form:asks": 0.4}
    assert format_sentences(traits, TraitPart.SELF, TraitPart.AFTER) == (
        "A worker speaks.",
        "What came back shows an error.",
    )
    assert format_sentences(traits, TraitPart.BEFORE) == ("What came back just before shows an error.",)


turns = st.tuples(
    st.sampled_from(list(Source)),
    st.sampled_from(["Alice", "Bob", "I", "search", "a number", ""]),
    st.text(max_size=30) | st.sampled_from(["error", "I assume 12 boats", "```python\nx\n```", "TERMINATE"]),
)


@settings(max_examples=60)
@given(st.lists(turns, max_size=8), st.text(max_size=20))
def test_any_run_has_profiles(told: list[tuple[Source, str, str]], task: str) -> None:
    steps = tuple(
        Step(index=i, source=source, agent=agent, content=text)
        for i, (source, agent, text) in enumerate(told)
    )
    run = Trajectory(id="r", format="made", task=task, steps=steps)
    portraits = profile_steps(run, detect(run).findings)
    assert len(portraits) == len(build_step_table(run).steps)
    for one in portraits:
        assert all(0 < weight <= 1 for weight in one.traits.values())
        assert all(line in VOCABULARY or is_words_sentence(line) for line in one.text.split("\n") if line)
    assert profile_run(run, ()).step is None


def test_synthetic_casts_differ_in_topic() -> None:
    assert LISBON != BERGEN
    assert not {LISBON.thing, LISBON.place, LISBON.first} & {BERGEN.thing, BERGEN.place, BERGEN.first}

"""Clusters that no code covers become proposals, and accepted ones codes of a taxonomy file."""

from __future__ import annotations

import random
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st
from numpy.typing import NDArray

from agentguard.errors import InputError, TaxonomyError
from agentguard.schemata.induction.clustering import CodeProposal, propose_codes
from agentguard.schemata.induction.taxonomy_writer import accept_proposals, format_taxonomy
from agentguard.schemata.model import ErrorSchema, Provenance
from agentguard.schemata.profiles.step_profile import format_signature
from agentguard.taxonomy.parser import read_taxonomy

KINDS = {
    "gives_up": {"role:worker": 1.0, "talk:after_failure": 1.0, "talk:gives_up": 1.0, "form:ends": 0.8},
    "invents": {"role:worker": 1.0, "claim:numbers": 1.0, "after:unsourced_to_end": 0.9, "form:code": 0.7},
    "errs": {"role:worker": 1.0, "after:failed": 1.0, "form:call": 1.0},
}
NAMES = sorted({name for traits in KINDS.values() for name in traits})


def made(kind: str, number: int, **other: object) -> ErrorSchema:
    rng = random.Random(f"{kind}{number}")
    traits = {name: min(1.0, weight * rng.uniform(0.8, 1.0)) for name, weight in KINDS[kind].items()}
    schema = ErrorSchema(
        id=f"{kind}-{number}",
        signature=format_signature(traits, ""),
        traits=traits,
        codes=("mine:call_failed",) if kind == "errs" else (),
        provenance=Provenance(method="embedded", runs=(f"{kind}{number}",), groups=(f"task {kind}{number}",)),
    )
    return replace(schema, **other)  # type: ignore[arg-type]


def vectors(schemata: list[ErrorSchema]) -> NDArray[np.float32]:
    rows = np.array([[one.traits.get(name, 0.0) for name in NAMES] for one in schemata], dtype=np.float32)
    rows = rows.reshape(len(schemata), len(NAMES))
    lengths = np.linalg.norm(rows, axis=1, keepdims=True)
    result: NDArray[np.float32] = rows / np.where(lengths == 0, 1, lengths)
    return result


MANY = [made(kind, number) for kind in KINDS for number in range(6)]


def test_each_kind_without_a_code_is_proposed() -> None:
    proposals = propose_codes(MANY, vectors(MANY), min_similarity=0.8)
    assert [one.code for one in proposals] == [
        "claim_numbers_after_unsourced_to_end", "talk_after_failure_talk_gives_up",
    ]  # fmt: skip
    gives_up = proposals[1]
    assert (gives_up.size, gives_up.support) == (6, 6)
    assert gives_up.cohesion > 0.95
    assert gives_up.nearest == "mine:call_failed"
    assert gives_up.nearest_similarity < 0.5
    assert set(gives_up.exemplars) <= {one.id for one in MANY if one.id.startswith("gives_up")}
    assert gives_up.title == (
        "Only talks after an action that failed; only talks after a failure, and nothing is run any more"
    )
    assert "It declares the end." in gives_up.definition


def test_default_level_is_estimated() -> None:
    assert len(propose_codes(MANY, vectors(MANY))) == 2


@settings(max_examples=15)
@given(st.permutations(MANY))
def test_order_does_not_change_clusters(many: list[ErrorSchema]) -> None:
    assert propose_codes(many, vectors(many)) == propose_codes(MANY, vectors(MANY))


def test_cluster_similar_to_a_code_is_not_proposed() -> None:
    uncoded = [made("errs", number, id=f"u{number}", codes=()) for number in range(6)]
    coded = [made("errs", number) for number in range(6)]
    with pytest.raises(InputError, match="no cluster of 4 of them"):
        propose_codes([*coded, *uncoded], vectors([*coded, *uncoded]), min_similarity=0.8)


def test_code_without_similar_schemata_covers_nothing() -> None:
    odd = [made("gives_up", number, codes=(f"mine:c{number}",)) for number in range(1)]
    rest = [made("gives_up", number) for number in range(1, 4)]
    proposals = propose_codes([*odd, *rest], vectors([*odd, *rest]), min_similarity=0.8)
    assert proposals[0].size == 4
    assert proposals[0].nearest is None


@pytest.mark.parametrize("count", [0, 1, 3])
def test_too_few_schemata_are_rejected_with_reason(count: int) -> None:
    few = [made("gives_up", number) for number in range(count)]
    with pytest.raises(InputError, match="too few failures"):
        propose_codes(few, vectors(few))


def test_failures_of_one_question_are_not_a_kind() -> None:
    same = [
        replace(one, provenance=replace(one.provenance, groups=("one task",)))
        for one in MANY
        if one.id.startswith("gives_up")
    ]
    with pytest.raises(InputError, match="at least two questions"):
        propose_codes(same, vectors(same), min_similarity=0.5)


def test_support_counts_instead_of_schemata() -> None:
    two = [made("gives_up", number, support=5) for number in range(2)]
    assert propose_codes(two, vectors(two), min_similarity=0.5)[0].support == 10


def test_schemata_without_vector_are_omitted_and_rows_must_match() -> None:
    empty = replace(made("gives_up", 99), traits={}, signature=())
    many = [*MANY, empty]
    assert propose_codes(many, vectors(many), min_similarity=0.8)[1].size == 6
    with pytest.raises(InputError, match="expected equal numbers"):
        propose_codes(MANY, vectors(MANY[:-1]))


def test_free_texts_without_traits_are_named() -> None:
    chat = [
        made("gives_up", number, traits={}, signature=("The agent stops asking.", "It leaves."))
        for number in range(4)
    ]
    proposals = propose_codes(
        chat, vectors([made("gives_up", number) for number in range(4)]), min_similarity=0.5
    )
    assert proposals[0].title == "Agent stops asking; leaves"
    assert proposals[0].code.startswith("kind_")


def test_majority_content_is_adopted() -> None:
    many = [
        made("gives_up", number, module="reflection", correction="Retry." if number else "Stop.")
        for number in range(4)
    ]
    first = propose_codes(many, vectors(many), min_similarity=0.5)[0]
    assert (first.module, first.correction) == ("reflection", "Retry.")


ONE = CodeProposal(
    code="gives_up",
    title="Gives: up",
    definition="It stops. # really",
    exemplars=("a", "b"),
    size=4,
    support=5,
    cohesion=0.9,
    nearest="mast:task_derailment",
    nearest_similarity=0.3,
    module="planning",
    correction="Retry.",
)
TWO = replace(ONE, code="invents", title="Invents", module=None, correction="", nearest=None)


def test_proposals_make_a_valid_taxonomy(tmp_path: Path) -> None:
    path = tmp_path / "induced.yaml"
    path.write_text(format_taxonomy((ONE, TWO)), encoding="utf-8")
    taxonomy = read_taxonomy(path)
    assert [code.id for code in taxonomy.codes] == ["gives_up", "invents"]
    first = taxonomy.codes[0]
    assert (first.title, first.module, first.correction) == ("Gives: up", "planning", "Retry.")
    assert first.definition.startswith("It stops. # really (5 failures, 4 schemata, similarity 0.90;")
    assert "mast:task_derailment (0.30)" in first.definition
    assert first.examples == ("schema a", "schema b")


def test_induced_proposals_make_a_valid_taxonomy(tmp_path: Path) -> None:
    path = tmp_path / "mine.yaml"
    path.write_text(
        format_taxonomy(propose_codes(MANY, vectors(MANY), min_similarity=0.8), name="mine"), encoding="utf-8"
    )
    assert len(read_taxonomy(path).codes) == 2


def test_empty_or_badly_named_taxonomy_is_rejected() -> None:
    with pytest.raises(TaxonomyError, match="at least one code"):
        format_taxonomy(())
    with pytest.raises(TaxonomyError, match="not the name of a taxonomy"):
        format_taxonomy((ONE,), name="My Codes")


def test_accept_creates_and_extends_a_file(tmp_path: Path) -> None:
    path = tmp_path / "new" / "mine.yaml"
    assert [code.id for code in accept_proposals(path, (ONE,)).codes] == ["gives_up"]
    assert [code.id for code in accept_proposals(path, (TWO,)).codes] == ["gives_up", "invents"]
    assert read_taxonomy(path).name == "mine"
    assert accept_proposals(path, ()) == read_taxonomy(path)
    assert [one.name for one in path.parent.iterdir()] == ["mine.yaml"]


OWN = """# my codes
name: own
title: Own
version: "1.0"
codes:
    # the first
    - id: lost
      title: Lost
      definition: |
        It is lost.
        # not a comment
    - {id: late, title: Late, definition: It is late.}   # inline

# about the work
summary: Codes of our own.
source:
  work: Ours
"""


@pytest.mark.parametrize("newline", ["\n", "\r\n"])
def test_file_of_a_user_keeps_its_layout(tmp_path: Path, newline: str) -> None:
    path = tmp_path / "own.yaml"
    path.write_bytes(OWN.replace("\n", newline).encode())
    before = read_taxonomy(path).codes
    taxonomy = accept_proposals(path, (ONE, TWO))
    assert taxonomy.codes[:2] == before
    assert [code.id for code in taxonomy.codes[2:]] == ["gives_up", "invents"]
    text = path.read_bytes().decode().replace("\r\n", "\n")
    assert all(line in text for line in OWN.splitlines())
    assert text.index("- id: gives_up") < text.index("# about the work")


def test_existing_code_is_never_overwritten(tmp_path: Path) -> None:
    path = tmp_path / "own.yaml"
    path.write_text(OWN)
    with pytest.raises(TaxonomyError, match=r"own\.yaml, field codes: there is a code 'lost' already"):
        accept_proposals(path, (TWO, replace(ONE, code="lost")))
    assert path.read_text() == OWN
    with pytest.raises(TaxonomyError, match="occurs twice"):
        accept_proposals(path, (ONE, ONE))
    assert path.read_text() == OWN


def test_unextendable_file_is_unchanged(tmp_path: Path) -> None:
    brackets = tmp_path / "own.yaml"
    text = OWN[: OWN.index("codes:")] + "codes: [{id: a, title: A, definition: B}]\n"
    text += "summary: S\nsource: {work: W}\n"
    brackets.write_text(text)
    with pytest.raises(TaxonomyError, match="in brackets"):
        accept_proposals(brackets, (ONE,))
    assert brackets.read_text() == text
    broken = tmp_path / "broken.yaml"
    broken.write_text("name: other")
    with pytest.raises(TaxonomyError):
        accept_proposals(broken, (ONE,))
    (tmp_path / "file").write_text("")
    with pytest.raises(TaxonomyError, match="cannot be written"):
        accept_proposals(tmp_path / "file" / "x.yaml", (ONE,))

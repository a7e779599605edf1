from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings, strategies as st

from agentguard.errors import TaxonomyError
from agentguard.taxonomy.model import Relation
from agentguard.taxonomy.parser import format_path, read_crosswalk_links, read_taxonomy

GOOD = """\
name: mine
title: Mine
version: "1"
summary: A taxonomy for a test.
source: {work: Ourselves, arxiv: "2401.00001"}
groups: [{id: talk, title: Talking}]
codes:
  - {id: too_loud, title: Too loud, definition: It shouts., group: talk, module: action, examples: [AAAH]}
  - {id: talk.too_soft, title: Too soft, definition: It whispers.}
"""


def write(tmp_path: Path, text: str | bytes, name: str = "mine.yaml") -> Path:
    path = tmp_path / name
    path.write_bytes(text.encode() if isinstance(text, str) else text)
    return path


def error_of(path: Path) -> TaxonomyError:
    with pytest.raises(TaxonomyError) as caught:
        read_taxonomy(path)
    return caught.value


def test_taxonomy_is_parsed_with_all_fields(tmp_path: Path) -> None:
    taxonomy = read_taxonomy(write(tmp_path, GOOD))
    assert (taxonomy.name, taxonomy.version, taxonomy.source.arxiv) == ("mine", "1", "2401.00001")
    loud, soft = taxonomy.codes
    assert (loud.qualified_id, loud.group, loud.module, loud.examples) == (
        "mine:too_loud",
        "talk",
        "action",
        ("AAAH",),
    )
    assert soft.qualified_id == "mine:talk.too_soft"
    assert soft.group is None
    assert taxonomy.get_code("too_loud") is loud
    assert taxonomy.get_code("nothing") is None


@pytest.mark.parametrize(
    ("old", "new", "field", "words"),
    [
        ("name: mine", "name: yours", "name", "yours.yaml"),
        ("title: Mine\n", "", "the document", '"title" is a required property'),
        ("title: Mine", "title: '  '", "title", "does not match"),
        ('version: "1"', "version: 1", "version", "string"),
        ("title: Too loud,", "title: Too loud, colour: red,", "codes[0]", "colour"),
        ("id: too_loud", "id: Too-Loud", "codes[0].id", "does not match"),
        ("module: action", "module: legs", "codes[0].module", "legs"),
        ("group: talk", "group: walk", "codes[0].group", "there are: talk"),
        ("talk.too_soft", "too_loud", "codes[1].id", "codes[0] has the same id"),
        ("examples: [AAAH]", "examples: AAAH", "codes[0].examples", "array"),
    ],
)
def test_error_names_the_field(tmp_path: Path, old: str, new: str, field: str, words: str) -> None:
    assert old in GOOD
    path = write(tmp_path, GOOD.replace(old, new))
    error = error_of(path)
    assert error.file == str(path)
    assert error.field == field
    assert words in str(error)
    assert error.hint


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "empty"),
        ("name: [", "not YAML at line"),
        ("name: mine\nname: mine\n", "'name' twice"),
        ("a: &x [1]\nb: *x\n", "alias"),
        ("!!python/object/apply:os.system [true]", "not YAML"),
        ("- 1\n- 2\n", "object"),
        ("42", "object"),
        (b"\xff\xfe\x00", "UTF-8"),
        ("a: \x00", "not YAML"),
        ("[" * 200 + "]" * 200, "nested too deeply"),
        ("[" * 100_000, "nest"),  # PyYAML 6.0.4 itself limits the depth
        ("x: 1\n---\ny: 2\n", "not YAML"),
        ("x" * 1_000_001, "larger than"),
    ],
)
def test_invalid_taxonomy_is_rejected(tmp_path: Path, text: str | bytes, words: str) -> None:
    assert words in str(error_of(write(tmp_path, text)))


def test_short_file_cannot_expand_to_gigabytes(tmp_path: Path) -> None:
    lines = ["a0: &a0 [x, x, x, x, x, x, x, x, x]"]
    lines += [f"a{i}: &a{i} [{', '.join([f'*a{i - 1}'] * 9)}]" for i in range(1, 12)]
    assert "alias" in str(error_of(write(tmp_path, "\n".join(lines))))


def test_date_remains_text(tmp_path: Path) -> None:
    taxonomy = read_taxonomy(write(tmp_path, GOOD.replace("title: Mine", "title: 2024-01-01")))
    assert taxonomy.title == "2024-01-01"


def test_missing_file_is_reported(tmp_path: Path) -> None:
    assert "No such file" in str(error_of(tmp_path / "none.yaml"))


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.binary(max_size=300) | st.text(max_size=300).map(lambda text: text.encode("utf-8", "replace")))
def test_garbage_is_a_taxonomy_error(tmp_path: Path, content: bytes) -> None:
    error_of(write(tmp_path, content))


def test_links_are_parsed(tmp_path: Path) -> None:
    text = 'version: "1"\nlinks:\n  - {from: "a:x", relation: broad, to: "b:y", note: why}\n'
    (link,) = read_crosswalk_links(write(tmp_path, text, "crosswalk.yaml"))
    assert (link.source, link.relation, link.target, link.note) == ("a:x", Relation.BROAD, "b:y", "why")


@pytest.mark.parametrize(
    ("link", "field"),
    [
        ('{from: "a:x", relation: similar, to: "b:y"}', "links[0].relation"),
        ('{from: "a", relation: broad, to: "b:y"}', "links[0].from"),
        ('{from: "a:x", relation: exact, to: "a:x"}', "links[0]"),
        ('{from: "a:x", relation: exact}', "links[0]"),
    ],
)
def test_invalid_links_are_named(tmp_path: Path, link: str, field: str) -> None:
    path = write(tmp_path, f'version: "1"\nlinks:\n  - {link}\n', "crosswalk.yaml")
    with pytest.raises(TaxonomyError) as caught:
        read_crosswalk_links(path)
    assert caught.value.field == field


def test_path_is_formatted_with_dots() -> None:
    assert format_path(["codes", 3, "title"]) == "codes[3].title"
    assert format_path([]) == ""

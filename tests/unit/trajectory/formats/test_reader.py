from __future__ import annotations

import io
import json
import tracemalloc
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from agentguard.errors import FormatError, UnknownPlugin
from agentguard.trajectory.formats import base
from agentguard.trajectory.formats.base import UnreadableRecord, formats
from agentguard.trajectory.formats.reader import list_run_files, load_records, load_trajectory, read
from agentguard.trajectory.model import Record, Source, Step, Trajectory

CHAT = {"messages": [{"role": "user", "content": "hi"}, {"role": "assistant", "content": "ho"}]}
GOOD = json.dumps(CHAT)


def kinds(source: Any, **options: Any) -> list[str]:
    return [type(one).__name__ for one in read(source, **options)]


def lines(*texts: str) -> io.StringIO:
    return io.StringIO("\n".join(texts))


class TestShapes:
    @pytest.mark.parametrize(
        "text",
        [
            GOOD,
            json.dumps(CHAT, indent=2),
            f"[{GOOD}]",
            f"{GOOD}\n",
            f"\n\n  {GOOD}",
            json.dumps(CHAT["messages"]),
            json.dumps(CHAT["messages"], indent=1),
            "\n".join(json.dumps(message) for message in CHAT["messages"]),
        ],
    )
    def test_single_run_is_read(self, text: str) -> None:
        (record,) = load_records(io.StringIO(text))
        assert [step.content for step in record.trajectory.steps] == ["hi", "ho"]

    @pytest.mark.parametrize(
        "text",
        [
            f"{GOOD}\n{GOOD}",
            f"{GOOD}\r\n\r\n{GOOD}\r\n",
            f"[{GOOD},{GOOD}]",
            f"[\n{GOOD},\n{GOOD}\n]",
            json.dumps([CHAT, CHAT], indent=4),
            json.dumps([CHAT["messages"], CHAT["messages"]]),
            "\n".join([json.dumps(CHAT["messages"])] * 2),
        ],
    )
    def test_two_runs_are_read(self, text: str) -> None:
        records = load_records(io.StringIO(text))
        assert [record.trajectory.id for record in records] == ["stream#0", "stream#1"]
        assert [len(record.trajectory.steps) for record in records] == [2, 2]

    def test_object_with_values_on_lines_is_one_document(self) -> None:
        message = json.dumps(CHAT["messages"][0])
        (record,) = load_records(io.StringIO(f'{{"messages": [\n{message},\n{message}\n]}}'))
        assert len(record.trajectory.steps) == 2

    def test_line_longer_than_a_chunk_is_read(self) -> None:
        long = {"messages": [{"role": "user", "content": "x" * 600_000}]}
        for text in (
            f"{json.dumps(long)}\n{GOOD}\n",
            f"{GOOD}\n{json.dumps(long)}",
            f"[{json.dumps(long)},{GOOD}]",
        ):
            assert len(load_records(io.StringIO(text))) == 2

    def test_quotes_brackets_and_backslashes_in_text_do_not_confuse(self) -> None:
        content = 'end]}, "then" {[\\ and \\" \\\\'
        one = {"messages": [{"role": "user", "content": content}]}
        records = load_records(io.StringIO(json.dumps([one] * 3)))
        assert [record.trajectory.task for record in records] == [content] * 3


class TestIndentedDocuments:
    PRETTY = json.dumps(json.loads(GOOD), indent=2)

    def test_documents_between_lines_are_read(self) -> None:
        source = io.StringIO("\n".join([GOOD, self.PRETTY, GOOD, self.PRETTY, ""]))
        assert [type(one) for one in read(source)] == [Record] * 4

    @pytest.mark.parametrize("end", [10, -2])
    def test_cut_document_is_one_error(self, end: int) -> None:
        first, broken, last = read(io.StringIO("\n".join([GOOD, self.PRETTY[:end], GOOD])))
        assert isinstance(first, Record)
        assert isinstance(broken, UnreadableRecord)
        assert broken.error.record == 1
        assert isinstance(last, Record)

    def test_document_at_a_cut_end_is_one_error(self) -> None:
        assert kinds(lines(GOOD, GOOD, self.PRETTY[:-2])) == ["Record", "Record", "UnreadableRecord"]


class TestBroken:
    def test_broken_lines_are_reported(self) -> None:
        first, broken, second, wrong = read(lines(GOOD, "{oops", GOOD, '{"messages": 3}'))
        assert isinstance(first, Record)
        assert isinstance(second, Record)
        assert isinstance(broken, UnreadableRecord)
        assert broken.error.record == 1
        assert "not valid JSON" in broken.error.reason
        assert isinstance(wrong, UnreadableRecord)
        assert (wrong.error.record, wrong.error.field) == (3, "messages")

    def test_broken_first_line_is_reported(self) -> None:
        assert kinds(lines("{oops", GOOD, GOOD)) == ["UnreadableRecord", "Record", "Record"]
        assert kinds(lines("{oops", GOOD)) == ["UnreadableRecord", "Record"]

    def test_many_broken_lines_do_not_prevent_recognition(self) -> None:
        assert kinds(lines(GOOD, *["{oops"] * 30, GOOD)) == ["Record", *["UnreadableRecord"] * 30, "Record"]
        array = ",".join(["{oops}"] * 30)
        assert kinds(io.StringIO(f"[{array},{GOOD},{array}]")) == [
            *["UnreadableRecord"] * 30,
            "Record",
            *["UnreadableRecord"] * 30,
        ]

    def test_broken_elements_are_reported(self) -> None:
        text = f'[{GOOD}, {{"a": tru}}, {GOOD},, {GOOD},]'
        assert kinds(io.StringIO(text)) == [
            "Record",
            "UnreadableRecord",
            "Record",
            "UnreadableRecord",
            "Record",
            "UnreadableRecord",
        ]

    def test_truncated_array_is_reported(self) -> None:
        first, cut = read(io.StringIO(f"[{GOOD}, {GOOD[:20]}"))
        assert isinstance(first, Record)
        assert isinstance(cut, UnreadableRecord)
        assert (cut.error.record, cut.error.hint) == (1, "the file may be truncated")

    def test_text_after_an_array_is_reported(self) -> None:
        assert kinds(io.StringIO(f"[{GOOD}] and more")) == ["Record", "UnreadableRecord"]

    def test_invalid_document_is_reported(self) -> None:
        (broken,) = read(io.StringIO('{"messages": [}'))
        assert isinstance(broken, UnreadableRecord)
        assert "line 1, column 15" in str(broken.error)

    def test_input_with_only_errors_is_reported(self) -> None:
        assert kinds(lines("{a", "{b", "{c"), format="openai_chat") == ["UnreadableRecord"]
        assert kinds(io.StringIO("[{a},{b}]")) == ["UnreadableRecord", "UnreadableRecord"]

    def test_load_records_raises_the_first_error(self) -> None:
        with pytest.raises(FormatError, match="record 1"):
            load_records(lines(GOOD, "{oops"))

    def test_location_names_file_and_record(self, tmp_path: Path) -> None:
        path = tmp_path / "runs.jsonl"
        path.write_text(f"{GOOD}\n{{oops\n")
        _, broken = read(path)
        assert isinstance(broken, UnreadableRecord)
        assert str(broken.error).startswith(f"{path}, record 1: not valid JSON")


class TestInvalidInput:
    @pytest.mark.parametrize(
        ("data", "reason"),
        [
            (b"", "empty"),
            (b"\xef\xbb\xbf\n", "empty"),
            (b"[]", "empty list"),
            (b"\x1f\x8b\x08abc", "gzip"),
            (b"PK\x03\x04abc", "zip"),
            ("{}".encode("utf-16"), "UTF-16"),
            (b"\xff\x80", "UTF-8"),
            (b"a\x00b", "binary"),
            (b'{"some": "thing"}', "unknown format"),
            (b"[1, 2]", "unknown format"),
        ],
    )
    def test_unusable_data_is_rejected(self, data: bytes, reason: str) -> None:
        with pytest.raises(FormatError, match=reason):
            load_records(io.BytesIO(data))

    def test_missing_path_is_rejected(self, tmp_path: Path) -> None:
        with pytest.raises(FormatError, match="cannot be opened"):
            load_records(tmp_path / "nothing.json")
        with pytest.raises(FormatError, match="cannot be opened"):
            load_records("nul\0byte")

    def test_unregistered_format_is_rejected(self) -> None:
        with pytest.raises(UnknownPlugin, match="openai_chat"):
            load_records(CHAT, format="nonesuch")

    @pytest.mark.parametrize(
        ("value", "kind"),
        [
            ({"some": "thing"}, "an object with the fields some"),
            ([{"cells": [], "nbformat": 4}], "a Jupyter notebook"),
            ({"log": {"entries": []}}, "an HTTP archive"),
            ({"info": {}, "data": {"spans": []}}, "an MLflow trace"),
            ([5], "neither an object nor text"),
        ],
    )
    def test_unrecognised_input_error_names_its_kind_and_a_way_out(self, value: Any, kind: str) -> None:
        with pytest.raises(FormatError, match=kind) as error:
            load_records(value)
        assert error.value.hint

    def test_ambiguous_format_error_names_both(self, monkeypatch: pytest.MonkeyPatch) -> None:
        class Same:
            def __init__(self, name: str) -> None:
                self.name, self.summary = name, ""

            def score_match(self, value: Any) -> float:
                return 0.97 if isinstance(value, dict) and "tie" in value else 0.0

        registry = base.Registry("format", group="none", builtin={})
        registry.register("one", Same("one"))
        registry.register("two", Same("two"))
        monkeypatch.setattr("agentguard.trajectory.formats.reader.formats", lambda: registry)
        with pytest.raises(FormatError, match="several formats match: one, two"):
            load_records({"tie": 1})

    def test_input_with_several_runs_is_rejected_for_one(self) -> None:
        with pytest.raises(FormatError, match="expected one run, found 2"):
            load_trajectory([CHAT, CHAT])
        assert load_trajectory(CHAT).task == "hi"


class TestJson:
    def test_nan_and_infinity_become_text(self) -> None:
        (record,) = load_records(
            io.StringIO('{"messages": [{"role": "user", "content": "x"}], "n": [NaN, -Infinity]}')
        )
        assert record.trajectory.extra == {"n": ["NaN", "-Infinity"]}
        (record,) = load_records({**CHAT, "n": float("inf")})
        assert record.trajectory.extra == {"n": "Infinity"}

    def test_big_integers_keep_their_digits(self) -> None:
        digits = "123456789012345678901234567890"
        (record,) = load_records(
            io.StringIO(f'{{"messages": [{{"role": "user", "content": "x"}}], "n": {digits}}}')
        )
        assert record.trajectory.extra == {"n": digits}
        (record,) = load_records(
            io.StringIO('{"messages": [{"role": "user", "content": "x"}], "n": 18446744073709551615}')
        )
        assert record.trajectory.extra == {"n": 2**64 - 1}

    def test_integer_of_thousands_of_digits_is_rejected(self) -> None:
        assert kinds(io.StringIO('{"messages": [], "n": ' + "9" * 5000 + "}"), format="openai_chat") == [
            "UnreadableRecord"
        ]

    def test_lone_surrogates_are_replaced_and_pairs_joined(self) -> None:
        (record,) = load_records(
            io.StringIO('{"messages": [{"role": "user", "content": "a\\ud800b \\ud83d\\ude00"}]}')
        )
        assert record.trajectory.task == "a\ufffdb \U0001f600"
        (record,) = load_records({"messages": [{"role": "user", "content": "a\ud800"}]})
        assert record.trajectory.task == "a\ufffd"

    def test_last_of_two_equal_keys_counts(self) -> None:
        (record,) = load_records(
            io.StringIO('{"messages": [], "messages": [{"role": "user", "content": "second"}]}')
        )
        assert record.trajectory.task == "second"

    @pytest.mark.parametrize("text", ['{"a":' * 1200 + "1" + "}" * 1200, "[" * 100_000])
    def test_nesting_depth_is_bounded(self, text: str) -> None:
        (broken,) = read(io.StringIO(text), format="openai_chat")
        assert isinstance(broken, UnreadableRecord)

    def test_non_json_values_are_rejected(self) -> None:
        for value in ({1, 2}, b"x", object()):
            with pytest.raises(FormatError, match="not JSON data"):
                load_records({**CHAT, "n": value})
        looped: dict[str, Any] = {**CHAT}
        looped["self"] = looped
        with pytest.raises(FormatError, match="deep"):
            load_records(looped)


class TestFolders:
    def test_files_are_read_in_natural_order_with_ids_from_their_path(self, tmp_path: Path) -> None:
        for name in ("10.json", "2.json", "b/1.json", ".hidden/3.json", "readme.md", ".x.json"):
            (tmp_path / name).parent.mkdir(exist_ok=True)
            (tmp_path / name).write_text(GOOD)
        assert [record.trajectory.id for record in load_records(tmp_path)] == ["2", "10", "b/1"]
        assert [path.name for path in list_run_files(tmp_path)] == ["2.json", "10.json", "1.json"]

    def test_broken_file_does_not_hide_others(self, tmp_path: Path) -> None:
        (tmp_path / "a.json").write_text("")
        (tmp_path / "b.json").write_text(GOOD)
        (tmp_path / "c.json").write_text('{"a": 1}')
        first, record, last = read(tmp_path)
        assert isinstance(first, UnreadableRecord)
        assert first.error.file == str(tmp_path / "a.json")
        assert isinstance(record, Record)
        assert isinstance(last, UnreadableRecord)

    def test_empty_folder_is_rejected(self, tmp_path: Path) -> None:
        with pytest.raises(FormatError, match="no files of runs"):
            load_records(tmp_path)

    def test_equal_ids_in_different_files_are_told_apart(self, tmp_path: Path) -> None:
        for day in ("monday", "tuesday"):
            (tmp_path / day).mkdir()
            (tmp_path / day / "1.json").write_text(json.dumps({"id": "same", **CHAT}))
        assert [record.trajectory.id for record in load_records(tmp_path)] == ["same", "tuesday/1:same"]

    def test_folder_with_leading_underscore_is_read_and_licence_is_not(self, tmp_path: Path) -> None:
        (tmp_path / "_runs").mkdir()
        (tmp_path / "_runs" / "1.json").write_text(json.dumps(CHAT))
        (tmp_path / "LICENSE.txt").write_text("Anybody may use this.")
        assert len(load_records(tmp_path)) == 1


class TestPlugins:
    class Clumsy:
        """A third party's importer with a bug."""

        name, summary = "clumsy", "Raises what it should not"

        def score_match(self, value: Any) -> float:
            return 1.0 if isinstance(value, dict) and value.get("clumsy") else 0.0

        def parse(self, value: Any, *, name: str) -> Iterator[Record]:
            if value["clumsy"] == "bad":
                raise KeyError("oops")
            step = Step(index=0, source=Source.AGENT, agent="a")
            yield Record(trajectory=Trajectory(id=name, format=self.name, task="", steps=(step,)))

    def test_exception_of_importer_breaks_only_a_record(self, monkeypatch: pytest.MonkeyPatch) -> None:
        registry = base.Registry("format", group="none", builtin={})
        registry.register("clumsy", self.Clumsy())
        monkeypatch.setattr("agentguard.trajectory.formats.reader.formats", lambda: registry)
        good, bad, again = read([{"clumsy": "ok"}, {"clumsy": "bad"}, {"clumsy": "ok"}])
        assert isinstance(good, Record)
        assert isinstance(bad, UnreadableRecord)
        assert str(bad.error) == "record 1: the importer failed with KeyError"
        assert isinstance(again, Record)

    def test_unimportable_plugin_is_skipped(self) -> None:
        registry = formats()
        registry._entry_points["missing"] = "no_such_module:FORMAT"
        try:
            assert len(load_records(CHAT)) == 1
        finally:
            del registry._entry_points["missing"]


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["array", "pretty", "lines"])
def test_file_of_50_mb_is_streamed(tmp_path: Path, kind: str) -> None:
    path = tmp_path / "big.json"
    run = {
        "messages": [{"role": r, "content": 'some "quoted" [text] ' * 60} for r in ("user", "assistant") * 8]
    }
    text = json.dumps(run, indent=1 if kind == "pretty" else None)
    count = 50_000_000 // len(text)
    with path.open("w") as file:
        file.write("" if kind == "lines" else "[")
        for i in range(count):
            file.write(("" if i == 0 else "\n" if kind == "lines" else ",") + text)
        file.write("" if kind == "lines" else "]")
    tracemalloc.start()
    try:
        assert sum(isinstance(one, Record) for one in read(path)) == count
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 5_000_000

"""Import of files into the store: all formats, reports of broken files, unique ids."""

import json

import pytest
from agentguard_server.viewer.data.file_loader import MAX_SHOWN_ERRORS, FileLoader

from agentguard.config.prices import TokenPrice
from agentguard.guard import Guard
from agentguard.store import Store
from tests.viewer_server import SAMPLES


@pytest.fixture
def store(tmp_path):
    with Store.open(tmp_path / "store.db") as opened:
        yield opened


def read(store, *paths, **options) -> FileLoader:
    loader = FileLoader(store, paths, **options)
    loader.run()
    store.flush(20)
    return loader


def chat(*texts: str, **more: object) -> dict[str, object]:
    return {
        **more,
        "messages": [
            {"role": "user" if i % 2 == 0 else "assistant", "content": t} for i, t in enumerate(texts)
        ],
    }


def test_files_are_read_and_diagnosed(store):
    loader = read(store, SAMPLES / "01-banana-and-pepper.json", diagnose=Guard().diagnose)
    (row,) = store.list_run_summaries().rows
    assert row.verdict
    assert row.findings == len(store.list_findings(row.run_id))
    state = loader.progress
    assert (state.total, state.done, state.runs, state.broken, state.running) == (1, 1, 1, 0, False)


def test_prices_give_a_cost_to_steps_with_tokens(store, tmp_path):
    usage = {"prompt_tokens": 1_000, "completion_tokens": 100}
    for model in ("m-1", "other"):
        step = {"step_id": 1, "source": "agent", "message": "done", "model_name": model, "metrics": usage}
        run = {"schema_version": "ATIF-v1.4", "session_id": model, "agent": {"name": "a", "version": "1"}}
        (tmp_path / f"{model}.json").write_text(json.dumps({**run, "steps": [step]}))
    read(store, tmp_path, prices={"m*": TokenPrice(input=1.0, output=10.0)})
    costs = {row.run_id: row.cost_usd for row in store.list_run_summaries().rows}
    assert costs == {"m-1": pytest.approx(0.002), "other": None}


def test_unreadable_file_is_reported_and_others_are_shown(store, tmp_path):
    (tmp_path / "good.json").write_text(json.dumps(chat("do it", "done")))
    (tmp_path / "bad.json").write_text("{")
    told: list[str] = []
    loader = read(
        store, tmp_path / "bad.json", tmp_path / "gone.json", tmp_path / "good.json", on_error=told.append
    )
    assert loader.progress.runs == 1
    assert loader.progress.broken == 2
    assert [one for one in told if "bad.json" in one]
    assert told == loader.progress.errors
    assert len(store.list_run_summaries().rows) == 1


def test_runs_with_equal_names_get_unique_ids(store, tmp_path):
    for folder in ("a", "b"):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "run.json").write_text(json.dumps(chat(f"do {folder}", "done")))
    read(store, tmp_path / "a" / "run.json", tmp_path / "b" / "run.json")
    rows = store.list_run_summaries().rows
    assert len({row.run_id for row in rows}) == 2
    assert {row.task for row in rows} == {"do a", "do b"}


def test_invalid_ids_are_replaced(store):
    loader = FileLoader(store, ())
    assert loader._make_unique_id("ok") == "ok"
    assert loader._make_unique_id("ok") == "ok~2"
    for wrong in ("", "x" * 300, "a\nb", "\ud800", "a\u202eb"):
        made = loader._make_unique_id(wrong)
        assert made.startswith("run-")
        assert made.isascii()


def test_errors_are_counted_and_some_are_kept(store):
    loader = FileLoader(store, ())
    for i in range(MAX_SHOWN_ERRORS * 2):
        loader.progress.add_error(str(i))
    assert (loader.progress.broken, len(loader.progress.errors)) == (MAX_SHOWN_ERRORS * 2, MAX_SHOWN_ERRORS)


def test_internal_error_stops_loading_but_not_viewer(store):
    def broken(_):
        raise ZeroDivisionError

    loader = read(store, SAMPLES / "01-banana-and-pepper.json", diagnose=broken)
    assert loader.progress.running is False
    assert "ZeroDivisionError" in loader.progress.errors[0]


def test_loading_can_be_stopped(store):
    loader = FileLoader(store, [SAMPLES])
    loader.start()
    loader.stop(10)
    assert loader.progress.running is False

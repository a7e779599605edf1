"""The notebook runs, and its stored outputs are those of the code."""

from __future__ import annotations

import contextlib
import io
import json
import re
from pathlib import Path
from typing import Any

import pytest

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
# A new model changes probabilities and the bars that show them.
BAR = re.compile(r"[█-▏]+")
PROBABILITY = re.compile(r"\b[01]\.\d\d\b")


def read_code_cells() -> list[dict[str, Any]]:
    notebook = json.loads((EXAMPLES / "diagnose_runs.ipynb").read_text(encoding="utf-8"))
    return [cell for cell in notebook["cells"] if cell["cell_type"] == "code"]


def test_notebook_prints_its_stored_outputs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(EXAMPLES)
    names: dict[str, Any] = {}
    cells = read_code_cells()
    for cell in cells:
        with contextlib.redirect_stdout(io.StringIO()) as output:
            exec("".join(cell["source"]), names)
        stored = "".join(text for one in cell["outputs"] for text in one["text"])
        assert stored, "run jupyter execute --inplace examples/diagnose_runs.ipynb"
        assert list_words(output.getvalue()) == list_words(stored)
    assert len(cells) == 5


def list_words(text: str) -> list[str]:
    return PROBABILITY.sub("0.00", BAR.sub("", text)).split()

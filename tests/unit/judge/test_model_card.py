"""A model file is checked when the policy names it, and read on first use."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from agentguard.errors import ModelFileError
from agentguard.judge.embedded.model_card import MODEL_FILE, get_default_folder, read_verified_model
from agentguard.localize.diagnosis_builder import MAX_HYPOTHESES
from agentguard.localize.embedded import EmbeddedLocalizer
from agentguard.trajectory.model import Source, Step, Trajectory


def test_guard_is_created_without_numpy() -> None:
    program = "import sys; from agentguard.guard import Guard; Guard(); print('numpy' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout == "False\n"


def test_missing_or_changed_model_is_reported_at_construction(tmp_path: Path) -> None:
    with pytest.raises(ModelFileError, match="train one with"):
        EmbeddedLocalizer(model=tmp_path / "none")
    shutil.copytree(get_default_folder(), tmp_path / "changed")
    with (tmp_path / "changed" / MODEL_FILE).open("ab") as file:
        file.write(b"x")
    with pytest.raises(ModelFileError, match="does not match its card"):
        EmbeddedLocalizer(model=tmp_path / "changed")
    assert read_verified_model(get_default_folder())[:2] == b"PK"


def test_model_is_read_on_first_diagnosis() -> None:
    said = [Step(index=i, source=Source.AGENT, agent="a", content=f"Step {i}.") for i in range(2)]
    run = Trajectory(id="r", format="event_log", task="Do it.", steps=tuple(said))
    found = EmbeddedLocalizer().locate(run, ())
    assert found.method == "embedded"
    assert len(found.hypotheses) <= MAX_HYPOTHESES

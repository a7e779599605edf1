"""Whether a model file is what it says: read a second time through skops, and asked a question."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

import orjson

from agentguard.errors import ModelFileError
from agentguard.judge.base import RUN_FAILED, root_cause_question
from agentguard.judge.coding import decode, encode
from agentguard.judge.embedded import EmbeddedJudge
from agentguard.judge.store import FILE, STRUCTURE, default_folder, dump, load
from agentguard.trajectory.model import Source, Step, Trajectory


def checked(folder: Path | None = None) -> dict[str, Any]:
    """Read a model twice, by NumPy and through skops with no type trusted beyond arrays, and ask it.

    Raises:
        ModelFileError: it does not match its card, skops finds a type that is not trusted, the two readings
            differ, or it gives no answer.
    """
    import skops.io

    place = folder or default_folder()
    model = load(place)
    data = (place / FILE).read_bytes()
    strange = skops.io.get_untrusted_types(data=data)
    if strange:
        raise ModelFileError(f"{place / FILE} holds types that are not trusted: {', '.join(sorted(strange))}")
    held = skops.io.loads(data, trusted=[])
    structure = orjson.loads(held.pop(STRUCTURE).tobytes())
    if encode(decode(structure, held))[0] != encode(model)[0] or dump(model) != data:
        raise ModelFileError(f"{place / FILE} is not what training writes")
    run = _probe()
    answers = EmbeddedJudge(model).decide(run, [RUN_FAILED, root_cause_question(run)])
    if any(answer.error for answer in answers):
        raise ModelFileError(f"{place / FILE} does not answer")
    return {
        "file": str(place / FILE),
        "sha256": hashlib.sha256(data).hexdigest(),
        "bytes": len(data),
        "arrays": len(held),
        "untrusted_types": 0,
        "answers": True,
    }


def _probe() -> Trajectory:
    """A run of two turns, to see that a model answers."""
    said = ("Add the two numbers 12 and 30.", "The sum of 12 and 30 is 41.")
    steps = tuple(
        Step(index=i, source=source, agent=source.value, content=text)
        for i, (source, text) in enumerate(zip((Source.USER, Source.AGENT), said, strict=True))
    )
    return Trajectory(id="probe", format="probe", task=said[0], steps=steps)

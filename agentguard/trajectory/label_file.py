"""Label files: labels of runs in YAML, beside the files of the runs.

::

    runs:
      FILE: {failed: true, root_cause: {step: 6, agent: assistant, codes: [mast:step_repetition]}}

The names are relative to the folder of the label file, and each file has one run.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import yaml

from agentguard.errors import FormatError
from agentguard.trajectory.json_node import JsonNode
from agentguard.trajectory.model import Annotation
from agentguard.trajectory.safe_json import normalize_json
from agentguard.trajectory.serialization import decode_annotation

LABEL_SUFFIXES = (".yaml", ".yml")
_MAX_BYTES = 64 * 1024 * 1024
_HINT = "a label file has `runs`, a mapping of file names to `failed` and `root_cause`; docs/reading-runs.md"


def read_labels(path: Path) -> Mapping[Path, Annotation]:
    """Return the labels of a label file by the path of the run's file, in the order of the file.

    Raises:
        FormatError: the file cannot be read or is not a label file; names the run and the field.
    """
    try:
        if path.stat().st_size > _MAX_BYTES:
            raise FormatError(f"more than {_MAX_BYTES:,} bytes", hint=_HINT, file=str(path))
        document = yaml.safe_load(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise FormatError(f"cannot be opened: {error.strerror}", file=str(path)) from None
    except (yaml.YAMLError, ValueError, RecursionError):
        raise FormatError("is not valid YAML", file=str(path)) from None
    if not isinstance(document, dict) or not isinstance(document.get("runs"), dict):
        raise FormatError("is not a label file", hint=_HINT, file=str(path))
    try:
        runs = JsonNode.from_value(normalize_json(document)).node("runs")
        return {path.parent / name: _decode_labels(runs.node(name)) for name in runs.data}
    except FormatError as error:
        raise error.with_location(file=str(path)) from None


def _decode_labels(node: JsonNode) -> Annotation:
    known = ("failed", "root_cause", "failures", "step_labels", "modes", "answer", "group")
    return replace(decode_annotation(node), extra=node.extra_fields(*known))

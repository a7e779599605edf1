from __future__ import annotations

from typing import Any

import pytest

from agentguard.trajectory.formats._label_fields import infer_failed
from agentguard.trajectory.formats.reader import load_records


@pytest.mark.parametrize(
    ("labels", "failed"),
    [
        ({"task_success": "failure"}, True),
        ({"task_success": "Success"}, False),
        ({"task_success": "unclear"}, None),
        ({"resolved": 0}, True),
        ({"reward": 0.5}, None),
        ({"metadata": {"passed": True}}, False),
        ({"failed": False}, False),
    ],
)
def test_clear_label_decides_the_outcome(labels: dict[str, Any], failed: bool | None) -> None:
    assert infer_failed(labels) is failed


def test_judgements_beside_a_chat_go_to_the_annotation() -> None:
    labels = {"answers": "42", "Annotator Metadata": {"Steps": "1."}, "judges": [{"status": "ok"}]}
    chat = {"messages": [{"role": "user", "content": "How many?"}], "category": "sums", **labels}
    (record,) = load_records(chat)
    assert record.trajectory.extra == {"category": "sums"}
    assert record.annotation.extra == labels

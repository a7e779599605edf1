from __future__ import annotations

import pytest

from agentguard.errors import ConfigError
from agentguard.localize.baselines.constant import build_constant_localizer
from tests.unit.localize.runs import calls, chat, record, run, steered

TRAIN = [record(chat(), 1), record(chat(id="b"), 1), record(steered(), 3), record(steered(id="s2"), 5)]


def test_step_and_agent_are_learnt_separately() -> None:
    trained = [*TRAIN, record(steered(id="s3"), 2), record(steered(id="s4"), 1), record(chat(id="c"), 0)]
    first = build_constant_localizer().fit(trained).locate(steered(), ()).hypotheses[0]  # type: ignore[union-attr]
    assert first.step == 1
    assert first.agent == "Counting_Expert"


def test_other_labels_are_ranked_within_the_run() -> None:
    fitted = build_constant_localizer().fit(TRAIN)  # type: ignore[union-attr]
    assert [h.step for h in fitted.locate(chat(), ()).hypotheses] == [1, 3]
    assert [h.step for h in fitted.locate(steered(), ()).hypotheses] == [1, 3, 5]
    assert fitted.locate(run(), ()).hypotheses == ()


def test_first_and_last_need_no_training() -> None:
    first = build_constant_localizer(position="first").locate(chat(), ()).hypotheses  # type: ignore[union-attr]
    last = build_constant_localizer(position="last").locate(chat(), ()).hypotheses  # type: ignore[union-attr]
    assert [h.step for h in first] == [0, 1, 2, 3]
    assert [h.step for h in last] == [3, 2, 1, 0]
    assert last[0].agent == "Boats_Expert"


def test_probability_is_the_share_of_failures() -> None:
    mixed = [record(calls(None), 0), record(calls(None, id="p"), failed=False)]
    assert build_constant_localizer().fit(TRAIN).locate(chat(), ()).probability == 1.0  # type: ignore[union-attr]
    assert build_constant_localizer().fit(mixed).locate(chat(), ()).probability == 0.5  # type: ignore[union-attr]


@pytest.mark.parametrize("options", [{"position": "middle"}, {"k": 1}])
def test_invalid_options_are_rejected(options: dict[str, object]) -> None:
    with pytest.raises(ConfigError):
        build_constant_localizer(**options)  # type: ignore[arg-type]

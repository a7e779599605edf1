from __future__ import annotations

import pytest

from agentguard.errors import ConfigError
from agentguard.localize.baselines.position_prior import PositionPriorTrainer
from agentguard.trajectory.model import Annotation, Record, RootCause
from tests.unit.localize.runs import chat, record, run, steered

TRAIN = [record(chat(), 1), record(chat(id="b"), 1), record(chat(id="c"), 0)]


def test_environment_step_is_replaced_by_the_next_common_one() -> None:
    fitted = PositionPriorTrainer().fit(TRAIN)
    assert [h.step for h in fitted.locate(chat(), ()).hypotheses] == [1, 0, 3]
    # Step 1 of the executed chat is a step of the shell.
    assert [h.step for h in fitted.locate(chat(executes=True), ()).hypotheses] == [0, 2, 4]


def test_ordinals_count_only_agent_steps() -> None:
    fitted = PositionPriorTrainer(count="ordinal").fit(TRAIN)
    ranked = fitted.locate(chat(executes=True), ()).hypotheses
    assert [h.step for h in ranked] == [2, 0, 4]
    assert ranked[0].probability > 0.6


def test_labels_on_other_steps_are_ignored() -> None:
    strange = Record(trajectory=chat(), annotation=Annotation(root_cause=RootCause(step=99)))
    fitted = PositionPriorTrainer().fit([record(chat(), 2), strange, record(chat(), None), record(chat(), 1)])
    assert fitted.locate(chat(), ()).hypotheses[0].step == 1


def test_untrained_prior_prefers_earlier_steps() -> None:
    assert [h.step for h in PositionPriorTrainer().fit([]).locate(steered(), ()).hypotheses] == [
        1,
        2,
        3,
        4,
        5,
    ]
    assert PositionPriorTrainer().fit([]).locate(run(), ()).hypotheses == ()


@pytest.mark.parametrize("options", [{"count": "both"}, {"k": 3}])
def test_invalid_options_are_rejected(options: dict[str, object]) -> None:
    with pytest.raises(ConfigError):
        PositionPriorTrainer(**options)  # type: ignore[arg-type]

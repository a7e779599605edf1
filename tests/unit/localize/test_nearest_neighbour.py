from __future__ import annotations

import pytest

from agentguard.errors import ConfigError
from agentguard.localize.baselines.nearest_neighbour import NearestNeighbourTrainer
from agentguard.verdict import Verdict
from tests.unit.localize.runs import chat, record, steered

BOATS = [record(chat(id=f"c{i}"), 1) for i in range(3)]
HARBOURS = [record(steered(id=f"s{i}"), 5) for i in range(3)]


def test_labels_of_the_nearest_run_are_copied() -> None:
    fitted = NearestNeighbourTrainer(k=3).fit([*BOATS, *HARBOURS])
    boats = fitted.locate(chat(task="Count the red boats in town."), ()).hypotheses[0]
    harbours = fitted.locate(steered(task="Find a very quiet harbour."), ()).hypotheses[0]
    assert (boats.step, boats.agent) == (1, "Counting_Expert")
    assert (harbours.step, harbours.agent) == (5, "Reader")


def test_votes_rank_the_steps() -> None:
    ranked = NearestNeighbourTrainer(k=6).fit([*BOATS, *HARBOURS[:1]]).locate(steered(), ()).hypotheses
    assert [h.step for h in ranked] == [1, 5]
    assert ranked[0].agent == "Counting_Expert"


def test_missing_labels_make_the_run_undecided() -> None:
    assert NearestNeighbourTrainer().fit([]).locate(chat(), ()).verdict is Verdict.UNDECIDED


@pytest.mark.parametrize("options", [{"k": 0}, {"neighbours": 3}])
def test_invalid_options_are_rejected(options: dict[str, int]) -> None:
    with pytest.raises(ConfigError):
        NearestNeighbourTrainer(**options)

from __future__ import annotations

from agentguard.localize.index_prior import IndexPrior
from agentguard.trajectory.model import Annotation, Record, RootCause
from tests.unit.localize.runs import chat, record, run, steered


def test_counts_ordinals_among_the_agents_steps() -> None:
    # Step 3 of the chat is its third agent's step; of the steered run the third is step 3 as well, of the
    # executed chat it is step 4.
    fitted = IndexPrior().fit([record(chat(), 3), record(steered(), 3), record(steered(id="b"), 1)])
    ranked = fitted.locate(chat(executes=True), ()).hypotheses
    assert [h.step for h in ranked] == [4, 0, 2]
    assert ranked[0].probability > 0.6


def test_labels_on_no_agents_step_are_left_out() -> None:
    strange = Record(trajectory=chat(), annotation=Annotation(root_cause=RootCause(step=99)))
    fitted = IndexPrior().fit([record(chat(), 2), strange, record(chat(), None), record(chat(), 1)])
    assert fitted.locate(chat(), ()).hypotheses[0].step == 1


def test_untaught_prefers_the_earlier() -> None:
    assert [h.step for h in IndexPrior().fit([]).locate(steered(), ()).hypotheses] == [1, 2, 3, 4, 5]
    assert IndexPrior().fit([]).locate(run(), ()).hypotheses == ()

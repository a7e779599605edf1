"""Cues in the contents of a run."""

from __future__ import annotations

from hypothesis import given, strategies as st

from agentguard.detect.phrase_patterns import (
    FABRICATION_CUES,
    INTENT_CUES,
    REFUSAL_CUES,
    SUCCESS_CUES,
    SURRENDER_CUES,
)
from agentguard.detect.run_content import RunContent
from agentguard.trajectory.model import Source, Step, Trajectory

GROUPS = (
    SURRENDER_CUES,
    FABRICATION_CUES,
    INTENT_CUES,
    REFUSAL_CUES,
    SUCCESS_CUES,
    ("```",),
    ("a.b",),
    ("ß|",),
)
PIECES = st.sampled_from([cue for group in GROUPS for cue in group])
TEXTS = st.lists(st.one_of(PIECES, st.text(), st.sampled_from(["\ud800", "\x00", "İ", "axb"])), max_size=6)


@given(st.lists(TEXTS.map("".join), max_size=3), st.permutations(GROUPS))
def test_cues_are_found_as_by_a_search_for_each_cue(texts: list[str], groups: list[tuple[str, ...]]) -> None:
    steps = tuple(
        Step(index=index, source=Source.AGENT, agent="a", content=text) for index, text in enumerate(texts)
    )
    content = RunContent(Trajectory(id="r", format="test", task="", steps=steps))
    for group in groups:
        assert content.has_cue(group) == any(cue in content.lower_text for cue in group)

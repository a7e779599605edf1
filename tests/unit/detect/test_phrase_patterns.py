from __future__ import annotations

import pytest
from hypothesis import given, strategies as st

from agentguard.detect.phrase_patterns import _LIMIT_PATTERN, _SURRENDER_PATTERN, find_surrender


@pytest.mark.parametrize("pattern", [_SURRENDER_PATTERN, _LIMIT_PATTERN], ids=["surrender", "limit"])
@given(data=st.data())
def test_surrender_text_of_each_pattern_is_found(pattern: object, data: st.DataObject) -> None:
    text = data.draw(st.from_regex(pattern, alphabet=st.characters(codec="ascii")))  # type: ignore[arg-type]
    if len(text) <= 600:
        assert find_surrender(text) is not None


@pytest.mark.parametrize("text", ["", "the train leaves at nine.", "we hit it off, up to the summit"])
def test_surrender_text_without_cue_is_not_found(text: str) -> None:
    assert find_surrender(text) is None

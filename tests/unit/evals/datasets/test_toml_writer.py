"""Round trip of values through TOML."""

from __future__ import annotations

import tomllib

import pytest
from hypothesis import given, strategies as st

from agentguard.errors import ConfigError
from agentguard.evals.datasets.toml_writer import dumps

texts = st.text(st.characters(codec="utf-8"), max_size=12)
plain = st.booleans() | st.integers(-(2**63), 2**63 - 1) | st.floats(allow_nan=False) | texts
values = st.recursive(
    plain, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(texts, inner, max_size=3), max_leaves=8
)


@given(st.dictionaries(texts, values, max_size=4))
def test_toml_round_trips(data):
    assert tomllib.loads(dumps(data, comment="a comment\nof two lines")) == data


def test_none_is_omitted_and_tables_come_last():
    text = dumps({"part": [{"name": "a", "records": None}], "build": {"by": "x"}, "name": "n"})
    assert text == 'name = "n"\n\n[[part]]\nname = "a"\n\n[build]\nby = "x"\n'


@pytest.mark.parametrize("value", [object(), b"x", {1, 2}, "\ud800"])
def test_values_without_toml_type_are_rejected(value):
    with pytest.raises(ConfigError, match="TOML"):
        dumps({"a": value})

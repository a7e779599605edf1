from importlib.metadata import EntryPoint

import pytest

from agentguard import plugins
from agentguard.errors import ConfigError, UnknownPlugin
from agentguard.plugins import Registry, import_function


@pytest.fixture
def installed(monkeypatch):
    """Simulate installed packages that register entry points."""
    points: list[EntryPoint] = []
    monkeypatch.setattr(plugins, "entry_points", lambda group: [p for p in points if p.group == group])
    return points


def make() -> Registry[object]:
    return Registry("thing", group="agentguard.things", builtin={"dumps": "json:dumps"})


def test_builtin_is_imported_on_first_use(installed):
    import json

    assert make().get("dumps") is json.dumps


def test_third_party_plugin_is_registered(installed):
    import math

    installed.append(EntryPoint(name="root", value="math:sqrt", group="agentguard.things"))
    things = make()
    assert things.names() == ("dumps", "root")
    assert things.get("root") is math.sqrt


def test_third_party_cannot_replace_builtin(installed):
    import json

    installed.append(EntryPoint(name="dumps", value="math:sqrt", group="agentguard.things"))
    things = make()
    things.names()
    assert things.get("dumps") is json.dumps


def test_unknown_name_error_lists_the_names(installed):
    with pytest.raises(UnknownPlugin, match="no thing named 'x'; there are: dumps"):
        make().get("x")


def test_unknown_name_error_suggests_the_most_similar_name(installed):
    with pytest.raises(UnknownPlugin, match=r"named 'dump' \(did you mean dumps\?\); there are: dumps"):
        make().get("dump")


def test_code_registration_rejects_taken_names(installed):
    things = make()
    things.register("mine", 1)
    assert things.get("mine") == 1
    assert "mine" in things
    with pytest.raises(ConfigError, match="already registered"):
        things.register("dumps", 2)


def test_alias_returns_the_plugin_and_is_not_listed(installed):
    import json

    things = Registry(
        "thing", group="agentguard.things", builtin={"dumps": "json:dumps"}, aliases={"write": "dumps"}
    )
    assert things.get("write") is json.dumps
    assert things.names() == ("dumps",)
    with pytest.raises(ConfigError, match="already registered"):
        things.register("write", object())


@pytest.mark.parametrize(
    "reference", ["./agent.py:world", "no.such.module:world", "json:absent", "json:__name__"]
)
def test_unusable_function_reference_is_rejected(reference: str) -> None:
    with pytest.raises(ConfigError, match=r"Give MODULE:FUNCTION"):
        import_function(reference)

"""The configuration: what is wrong is said by file and field; what the command line says holds."""

from pathlib import Path

import pytest
import yaml
from agentguard_server.proxy.auth.api_keys import Keyring
from agentguard_server.proxy.config.loader import ConfigLoader, merge_sections
from agentguard_server.proxy.config.schema import KeyOptions, ProxySettings
from typer.testing import CliRunner

from agentguard.cli.app import build_app
from agentguard.errors import ConfigError

REPLICAS = {"replicas": [{"name": "a", "url": "http://127.0.0.1:8000/v1"}]}
HASH = "sha256:" + "0" * 64
EXAMPLE = Path(__file__).parents[4] / "examples" / "serve.yaml"


def run(*arguments: str) -> tuple[int, str]:
    result = CliRunner().invoke(build_app(only_command="serve"), ["serve", *map(str, arguments)])
    return result.exit_code, result.output


def test_little_is_enough():
    settings = ProxySettings.parse({"backends": REPLICAS})
    assert (settings.listen.host, settings.listen.port) == ("127.0.0.1", 8080)
    assert settings.keys is None
    assert settings.load_policy() is None


@pytest.mark.parametrize(
    ("sections", "field"),
    [
        ({}, "backends"),
        ({"backends": {"replicas": []}}, "replicas"),
        ({"backends": REPLICAS, "listn": {}}, "listn"),
        ({"backends": REPLICAS, "listen": {"port": 70_000}}, "listen.port"),
        ({"backends": REPLICAS, "limits": {"header_timeout_s": float("nan")}}, "limits.header_timeout_s"),
        ({"backends": REPLICAS, "keys": []}, "keys"),
        ({"backends": REPLICAS, "keys": [{"name": "k", "hash": "ag-the-key-itself"}]}, "keys.0.hash"),
        (
            {"backends": REPLICAS, "keys": [{"name": "k", "hash": HASH, "scopes": ["root"]}]},
            "keys.0.scopes.0",
        ),
        ({"backends": REPLICAS, "keys": [{"name": "k", "hash": HASH}] * 2}, "keys"),
        ({"backends": REPLICAS, "listen": {"host": "0.0.0.0"}}, "--no-keys"),
        ({"backends": REPLICAS, "guard": {"detector": {}}}, "guard"),
        ({"backends": {**REPLICAS, "load_balancing": "no_such_policy"}}, "backends.policy"),
        ([], "mapping"),
    ],
)
def test_what_is_wrong_is_named_by_file_and_field_and_never_shown(tmp_path, sections, field):
    file = tmp_path / "serve.yaml"
    file.write_text(yaml.safe_dump(sections))
    with pytest.raises(ConfigError) as raised:
        ConfigLoader(file=file).load()
    assert str(file) in str(raised.value)
    assert field in str(raised.value)
    assert "ag-the-key-itself" not in str(raised.value)


def test_off_loopback_without_keys_must_be_said():
    document = {"backends": REPLICAS, "listen": {"host": "0.0.0.0"}}
    assert (
        ProxySettings.parse({**document, "listen": {"host": "0.0.0.0", "allow_unauthenticated": True}}).keys
        is None
    )
    assert ProxySettings.parse({**document, "keys": [{"name": "k", "hash": HASH}]}).keys is not None


def test_the_command_line_holds_over_the_file(tmp_path):
    file = tmp_path / "serve.yaml"
    (tmp_path / "guard.yaml").write_text("detectors: {exact_loop: {repeat: 5}}")
    file.write_text(
        yaml.safe_dump({"backends": REPLICAS, "listen": {"port": 1, "workers": 2}, "guard": "guard.yaml"})
    )
    settings = ConfigLoader(file=file, overrides={"listen": {"port": 0}}).load()
    assert (settings.listen.port, settings.listen.workers) == (0, 2)
    assert settings.load_policy().detectors == {"exact_loop": {"repeat": 5}}


def test_sections_are_merged_field_by_field():
    assert merge_sections({"a": {"x": 1, "y": 2}, "b": 1}, {"a": {"y": 3}, "c": [1]}) == {
        "a": {"x": 1, "y": 3},
        "b": 1,
        "c": [1],
    }


def test_a_key_is_not_shown_by_what_is_printed_of_it():
    assert HASH not in repr(KeyOptions(name="k", hash=HASH))


class TestCommand:
    def test_a_start_without_anything_to_ask_says_what_is_missing(self):
        code, said = run()
        assert code == 2
        assert "--config" in said
        assert "--backend" in said

    def test_a_file_that_is_wrong_is_one_line(self, tmp_path):
        file = tmp_path / "serve.yaml"
        file.write_text("backends: {replicas: [{name: a}]}")
        code, said = run("--config", file, "--check")
        assert code == 2
        assert "replicas.0.url" in said
        assert "Traceback" not in said

    def test_an_address_that_others_reach_needs_keys(self):
        code, said = run("--backend", "http://127.0.0.1:1/v1", "--host", "0.0.0.0", "--check")
        assert code == 2
        assert "--no-keys" in said
        assert run("--backend", "http://127.0.0.1:1/v1", "--host", "0.0.0.0", "--no-keys", "--check")[0] == 0

    def test_a_key_that_is_not_there_is_found_by_a_check(self, tmp_path):
        file = tmp_path / "serve.yaml"
        replica = {**REPLICAS["replicas"][0], "api_key_env": "NO_SUCH_VARIABLE_HERE"}
        file.write_text(yaml.safe_dump({"backends": {"replicas": [replica]}}))
        code, said = run("--config", file, "--check")
        assert code == 2
        assert "NO_SUCH_VARIABLE_HERE" in said

    def test_it_explains_the_order_the_routes_and_the_guard(self, tmp_path):
        policy = tmp_path / "guard.yaml"
        policy.write_text("detectors: {goal_drift: false}")
        code, said = run("--backend", "http://127.0.0.1:1/v1", "--guard", policy, "--explain")
        assert code == 0
        order = [said.index(name) for name in ("timeout", "retry", "breaker", "progress")]
        assert order == sorted(order)
        assert "without goal_drift" in said
        assert "/v1/chat/completions" in said

    def test_a_new_key_is_one_that_its_lines_let_in(self):
        code, said = run("--new-key", "ci")
        assert code == 0
        key = said.splitlines()[0]
        (options,) = yaml.safe_load(said.partition("keys:")[1] + said.partition("keys:")[2])["keys"]
        assert Keyring([KeyOptions(**options)]).find(key.encode()).name == "ci"
        assert run("--new-key", "a b")[0] == 2


def test_the_example_is_valid(monkeypatch):
    monkeypatch.setenv("EXAMPLE_PROVIDER_KEY", "none")
    assert run("--config", EXAMPLE, "--check")[0] == 0

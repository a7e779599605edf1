"""Configuration: errors name file and field; the command line has priority."""

from pathlib import Path

import pytest
import yaml
from agentguard_server.proxy.auth.authorization import Keyring
from agentguard_server.proxy.config.loader import ConfigLoader, merge_sections
from agentguard_server.proxy.config.schema import KeyOptions, ProxySettings
from typer.testing import CliRunner

from agentguard.cli.app import build_app
from agentguard.errors import ConfigError

REPLICAS = {"replicas": [{"name": "a", "url": "http://127.0.0.1:8000/v1"}]}
HASH = "sha256:" + "0" * 64
EXAMPLE = Path(__file__).parents[4] / "examples" / "serve.yaml"


def run(*arguments: str) -> tuple[int, str]:
    result = CliRunner().invoke(build_app(), ["serve", *map(str, arguments)])
    return result.exit_code, result.output


def test_minimal_config_is_valid():
    settings = ProxySettings.parse({"backends": REPLICAS})
    assert (settings.listen.host, settings.listen.port) == ("127.0.0.1", 8080)
    assert settings.keys is None
    assert settings.guard is None


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
        ({"backends": {**REPLICAS, "load_balancing": "no_such_policy"}}, "backends.load_balancing"),
        ([], "mapping"),
    ],
)
def test_error_names_file_and_field_without_value(tmp_path, sections, field):
    file = tmp_path / "serve.yaml"
    file.write_text(yaml.safe_dump(sections))
    with pytest.raises(ConfigError) as raised:
        ConfigLoader(file=file).load()
    assert str(file) in str(raised.value)
    assert field in str(raised.value)
    assert "ag-the-key-itself" not in str(raised.value)


def test_public_address_without_keys_is_rejected():
    document = {"backends": REPLICAS, "listen": {"host": "0.0.0.0"}}
    assert (
        ProxySettings.parse({**document, "listen": {"host": "0.0.0.0", "allow_unauthenticated": True}}).keys
        is None
    )
    assert ProxySettings.parse({**document, "keys": [{"name": "k", "hash": HASH}]}).keys is not None


def test_command_line_overrides_file(tmp_path):
    file = tmp_path / "serve.yaml"
    (tmp_path / "guard.yaml").write_text("detectors: {exact_loop: {repeat: 5}}")
    file.write_text(
        yaml.safe_dump({"backends": REPLICAS, "listen": {"port": 1, "workers": 2}, "guard": "guard.yaml"})
    )
    settings = ConfigLoader(file=file, overrides={"listen": {"port": 0}}).load()
    assert (settings.listen.port, settings.listen.workers) == (0, 2)
    assert settings.guard.load_policy().detectors == {"exact_loop": {"repeat": 5}}


def test_sections_are_merged_by_field():
    assert merge_sections({"a": {"x": 1, "y": 2}, "b": 1}, {"a": {"y": 3}, "c": [1]}) == {
        "a": {"x": 1, "y": 3},
        "b": 1,
        "c": [1],
    }


def test_printed_config_hides_keys():
    assert HASH not in repr(KeyOptions(name="k", hash=HASH))


class TestCommand:
    def test_start_without_backend_names_missing_option(self):
        code, said = run()
        assert code == 2
        assert "--config" in said
        assert "--backend" in said

    def test_invalid_file_is_reported_in_one_line(self, tmp_path):
        file = tmp_path / "serve.yaml"
        file.write_text("backends: {replicas: [{name: a}]}")
        code, said = run("--config", file, "--check")
        assert code == 2
        assert "replicas.0.url" in said
        assert "Traceback" not in said

    def test_public_address_requires_keys(self):
        code, said = run("--backend", "http://127.0.0.1:1/v1", "--host", "0.0.0.0", "--check")
        assert code == 2
        assert "--no-keys" in said
        assert run("--backend", "http://127.0.0.1:1/v1", "--host", "0.0.0.0", "--no-keys", "--check")[0] == 0

    def test_check_reports_missing_key_variable(self, tmp_path):
        file = tmp_path / "serve.yaml"
        replica = {**REPLICAS["replicas"][0], "api_key_env": "NO_SUCH_VARIABLE_HERE"}
        file.write_text(yaml.safe_dump({"backends": {"replicas": [replica]}}))
        code, said = run("--config", file, "--check")
        assert code == 2
        assert "NO_SUCH_VARIABLE_HERE" in said

    def test_explain_shows_order_routes_and_guard(self, tmp_path):
        policy = tmp_path / "guard.yaml"
        policy.write_text("detectors: {goal_drift: false}")
        code, said = run("--backend", "http://127.0.0.1:1/v1", "--guard", policy, "--explain")
        assert code == 0
        order = [said.index(name) for name in ("timeout", "retry", "circuit_breaker", "stream_timeout")]
        assert order == sorted(order)
        assert "without goal_drift" in said
        assert "/v1/chat/completions" in said

    def test_generated_key_is_accepted_by_generated_config(self):
        code, said = run("--new-key", "ci")
        assert code == 0
        key = said.splitlines()[0]
        (options,) = yaml.safe_load(said.partition("keys:")[1] + said.partition("keys:")[2])["keys"]
        assert Keyring([KeyOptions(**options)]).find(key.encode()).name == "ci"
        assert run("--new-key", "a b")[0] == 2


def test_example_config_is_valid(monkeypatch):
    monkeypatch.setenv("EXAMPLE_PROVIDER_KEY", "none")
    assert run("--config", EXAMPLE, "--check")[0] == 0


def test_errors_of_settings_have_no_words_of_the_validator(tmp_path: Path) -> None:
    file = tmp_path / "serve.yaml"
    file.write_text("listen: {prot: 1}\nbackends: {replicas: [{name: a, url: 'http://127.0.0.1:9/v1'}]}\n")
    result = CliRunner().invoke(build_app(), ["serve", "--check", "--config", str(file)])
    assert "listen.prot: unknown setting (did you mean 'port'? known: host, port" in result.output
    open_to_all = ["serve", "--check", "--backend", "http://127.0.0.1:9/v1", "--host", "0.0.0.0"]
    result = CliRunner().invoke(build_app(), open_to_all)
    assert "listening on 0.0.0.0 needs API keys" in result.output
    assert "Value error" not in result.output
    assert "warning" not in result.output


def test_backend_without_a_path_causes_a_warning() -> None:
    result = CliRunner().invoke(build_app(), ["serve", "--check", "--backend", "http://127.0.0.1:9"])
    assert result.exit_code == 0
    assert "warning: --backend http://127.0.0.1:9 has no path; most endpoints need /v1" in result.stderr

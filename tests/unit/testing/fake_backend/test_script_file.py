"""Scripts as documents, and the command that serves them."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from agentguard.cli.app import build_app
from agentguard.errors import ConfigError
from agentguard.testing import fake_backend
from agentguard.testing.fake_backend import Ok, Reset, Stall, StatusFault, Truncate
from agentguard.testing.fake_backend.faults import InjectedFault
from agentguard.testing.fake_backend.script_file import FAULT_TYPES, build_backend, parse_fault
from tests.unit.testing.fake_backend.test_faults import ask

ROOT = Path(__file__).resolve().parents[4]


def test_every_fault_has_a_name_and_is_documented():
    page = (ROOT / "docs" / "faults.md").read_text(encoding="utf-8")
    public = [getattr(fake_backend, name) for name in fake_backend.__all__]
    assert set(FAULT_TYPES.values()) == {
        one
        for one in public
        if isinstance(one, type) and issubclass(one, InjectedFault) and one is not InjectedFault
    }
    for kind in FAULT_TYPES.values():
        assert f"| `{kind.__name__}(" in page


def test_faults_are_parsed_by_name_with_options():
    assert parse_fault("reset", "x") == Reset()
    assert parse_fault({"stall": {"tokens": 1, "duration_s": float("inf")}}, "x") == Stall(tokens=1)
    assert parse_fault(
        {"status": {"status": 429, "retry_after": "1", "headers": [["a", "b"]]}}, "x"
    ) == StatusFault(status=429, retry_after="1", headers=(("a", "b"),))
    assert parse_fault({"ok": None}, "x") == Ok()


@pytest.mark.parametrize(
    ("document", "message"),
    [
        ([], "must be a mapping"),
        ({"scripts": []}, "unknown keys: scripts; there are"),
        ({"version": 2}, "version must be 1"),
        ({"words": 0}, "words must be"),
        ({"known": {"a": 1}}, "known must map"),
        ({"script": "boom"}, r"script: unknown fault; there are: beat"),
        ({"script": [{"reset": {"token": 1}}]}, r"script\[0\]: reset has the options delay_s, tokens"),
        ({"script": {"stall": {"tokens": "x"}}}, r"script.stall.tokens: "),
        ({"script": {"truncate": {"framing": "odd"}}}, r"script.truncate.framing: "),
        ({"script": {"status": {"status": 99}}}, r"from 200 to 599, not 99"),
        ({"script": {"ok": {"delay_s": -1}}}, r"delay_s must be 0 or more"),
        ({"script": []}, "at least one fault"),
        ({"script": ["ok", "refuse"]}, "Refuse applies to all connections"),
        ({"script": "ok", "schedule": []}, "exclude each other"),
        ({"schedule": "ok"}, "must be a list"),
        ({"schedule": [{"ok": {}, "weight": "x"}]}, r"schedule\[0\].weight"),
        ({"schedule": ["ok"], "seed": "x"}, "seed must be"),
        ({"marks": []}, "marks must map"),
    ],
)
def test_error_names_the_location(document, message):
    with pytest.raises(ConfigError, match=message):
        build_backend(document)


def test_marks_and_default_script_are_parsed():
    document = {"words": 3, "marks": {"a": ["reset", "ok"]}, "script": {"status": {"status": 404}}}
    with build_backend(document) as backend:
        assert ask(backend, text="[[a]]")[1] == "reset"
        assert ask(backend, text="[[a]]")[0].startswith(b"HTTP/1.1 200")
        assert ask(backend, text="[[b]]")[0].startswith(b"HTTP/1.1 404")
    with build_backend(None) as backend:
        assert ask(backend)[0].startswith(b"HTTP/1.1 200")


def test_seed_of_command_line_overrides_the_document():
    weights = [{"ok": {}, "weight": 1}, {"truncate": {"framing": "close"}, "weight": 1}]
    drawn = []
    for seed in (None, 3, None):
        with build_backend({"seed": 1, "schedule": weights}, seed=seed) as backend:
            for n in range(12):
                ask(backend, text=str(n), stream=True)
            drawn.append([one.fault for one in backend.requests])
    assert drawn[0] == drawn[2] != drawn[1]
    assert set(drawn[0]) == {Ok(), Truncate(framing="close")}


def test_faults_are_listed():
    result = CliRunner().invoke(build_app(), ["chaos", "faults", "--json"])
    told = {one["fault"]: one for one in map(json.loads, result.output.splitlines())}
    assert told.keys() == FAULT_TYPES.keys()
    assert told["reset"]["options"] == {"delay_s": "0.0", "tokens": None}
    assert "heartbeats" in CliRunner().invoke(build_app(), ["chaos", "faults"]).output


def test_command_serves_the_script(tmp_path):
    (tmp_path / "script.yaml").write_text("script: [{status: {status: 418}}, ok]\n")
    command = [sys.executable, "-c", "from agentguard.cli import main; main()", "chaos", "serve"]
    with subprocess.Popen(
        [*command, str(tmp_path / "script.yaml"), "--json"], stdout=subprocess.PIPE, text=True, cwd=ROOT
    ) as process:
        try:
            url = json.loads(process.stdout.readline())["url"]
            port = int(url.removesuffix("/v1").rsplit(":", 1)[1])

            class Told:
                pass

            Told.port = port
            assert ask(Told)[0].startswith(b"HTTP/1.1 418")
            line = json.loads(process.stdout.readline())
            assert (line["api"], line["fault"], line["client_left"]) == ("chat", "StatusFault", False)
            taken = subprocess.run(
                [*command, "--port", str(port)], capture_output=True, text=True, cwd=ROOT, check=False
            )
            assert (taken.returncode, taken.stderr.count("\n")) == (2, 1)
            assert f"port {port} cannot be used" in taken.stderr
        finally:
            os.kill(process.pid, signal.SIGTERM)
        assert process.wait(10) == 0

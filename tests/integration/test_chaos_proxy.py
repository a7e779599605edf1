"""A campaign on a program without retries behind the real proxy, which repeats failed requests."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from agentguard.chaos import Campaign, CampaignRunner, ExperimentResult
from agentguard.supervision.process import find_free_port
from tests.proxy_server import serving

pytestmark = pytest.mark.slow

PROGRAM = """
import json, os, urllib.request
body = json.dumps({"model": "demo", "messages": [{"role": "user", "content": "Say hello."}]}).encode()
url = os.environ["MODEL_URL"] + "/chat/completions"
request = urllib.request.Request(url, body, {"content-type": "application/json"})
print(json.load(urllib.request.urlopen(request, timeout=20))["choices"][0]["message"]["content"])
"""
FAULTS = ["http_500", "connection_reset", "bad_body"]


def run_program(url: str, port: int) -> dict[str, ExperimentResult]:
    target = {
        "command": [sys.executable, "-c", PROGRAM],
        "port": port,
        "environment": {"MODEL_URL": url},
        "effects": [],
    }
    campaign = Campaign.model_validate(
        {"version": 1, "target": target, "faults": {"model": FAULTS}, "steady_state": {"max_extra_calls": 3}}
    )
    return {one.fault: one for one in CampaignRunner(campaign).run().results}


def test_proxy_hides_faults_of_the_endpoint_from_a_program_without_retries(tmp_path: Path) -> None:
    port = find_free_port("127.0.0.1")
    alone = run_program("{url}/v1", port)
    replicas = [{"name": "model", "url": f"http://127.0.0.1:{port}/v1"}]
    with serving(tmp_path, {"backends": {"replicas": replicas, "health": "off"}}) as proxy:
        behind = run_program(f"http://127.0.0.1:{proxy.port}/v1", port)
    assert {fault: one.outcome.value for fault, one in alone.items()} == dict.fromkeys(FAULTS, "failed")
    assert {fault: one.outcome.value for fault, one in behind.items()} == dict.fromkeys(FAULTS, "survived")

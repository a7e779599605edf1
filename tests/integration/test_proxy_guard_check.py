"""The guard check with the proxy as a separate process."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import httpx
import pytest

from agentguard.errors import RunStopped
from agentguard.guard import Guard
from agentguard.testing.contracts.integrations import AgentDriver, ContractRun
from agentguard.testing.guard_check import build_scenarios, run_guard_check
from tests.contract.candidate_drivers import build_chat_server, run_chat_agent
from tests.faults.proxy_process import serving as serving_proxy
from tests.support.guard_check import INSISTENT_NAMES, list_harmful_names
from tests.unit.integrations.openai_server import serving

pytestmark = [pytest.mark.slow, pytest.mark.process]

DECLARED: dict[str, Any] = {"book": {"effect": "destructive"}, "find": {"effect": "read"}}
POLICIES = {
    "declared": DECLARED,
    "repeatable": {**DECLARED, "book": {"effect": "destructive", "repeatable": True}},
    "undeclared": {},
}


class Backend:
    """Model server that plays the current run."""

    def __init__(self) -> None:
        self.answer: Callable[[Any], Any] = lambda body: {}


@pytest.fixture(scope="module")
def proxy_driver(tmp_path_factory: pytest.TempPathFactory) -> Iterator[AgentDriver]:
    """AgentDriver whose requests pass a proxy: one for each declaration of the tools."""
    backend = Backend()
    with ExitStack() as stack:
        server = stack.enter_context(serving(lambda body: backend.answer(body)))
        urls = {
            name: _start_proxy(stack, tmp_path_factory.mktemp(name), server.url, tools)
            for name, tools in POLICIES.items()
        }
        client = stack.enter_context(httpx.Client(timeout=30))

        def run(guard: Guard, played: ContractRun) -> None:
            backend.answer = build_chat_server(played)
            is_active = guard.detectors != {}
            is_repeatable = any(effect.repeatable for effect in guard.tools.values())
            name = "repeatable" if is_repeatable else "declared" if guard.tools else "undeclared"
            base = urls[name] if is_active else server.url
            run_chat_agent(played, lambda body: client.post(f"{base}/chat/completions", json=body))
            if played.answer.startswith("[guard] The run was stopped"):
                raise RunStopped(played.answer)

        yield run


def _start_proxy(stack: ExitStack, folder: Path, backend_url: str, tools: dict[str, Any]) -> str:
    config = {
        "backends": {"replicas": [{"name": "a", "url": backend_url}], "health": "off"},
        "guard": {"policy": {"localizer": {"name": "first_finding"}, "tools": tools}, "mode": "always"},
    }
    proxy = stack.enter_context(serving_proxy(folder, config))
    return f"http://127.0.0.1:{proxy.port}/v1"


def test_proxy_breaks_no_scripted_run(proxy_driver: AgentDriver) -> None:
    report = run_guard_check(proxy_driver, build_scenarios()[::17])
    assert report.to_dict()["broken"] == []
    assert report.list_framework_errors() == []
    assert report.compute_call_growth() <= 0.05
    assert list_harmful_names(report) <= INSISTENT_NAMES
    assert report.to_dict()["outcomes"]["rescued"] > 0

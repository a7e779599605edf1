"""Guard check: scripted runs with and without the guard, over any integration."""

from __future__ import annotations

from typing import TYPE_CHECKING

from agentguard._lazy import lazy_exports

if TYPE_CHECKING:
    from agentguard.testing.guard_check.check import (
        GuardCheckReport as GuardCheckReport,
        check_driver as check_driver,
        run_guard_check as run_guard_check,
    )
    from agentguard.testing.guard_check.scenarios import build_scenarios as build_scenarios
    from agentguard.testing.guard_check.scripted_run import ScriptedScenario as ScriptedScenario

_EXPORTS = {
    "GuardCheckReport": "agentguard.testing.guard_check.check",
    "ScriptedScenario": "agentguard.testing.guard_check.scripted_run",
    "build_scenarios": "agentguard.testing.guard_check.scenarios",
    "check_driver": "agentguard.testing.guard_check.check",
    "run_guard_check": "agentguard.testing.guard_check.check",
}

__getattr__, __dir__ = lazy_exports(__name__, _EXPORTS)

"""Replayable bundles: a recorded run with its model answers and tool results in one zip file."""

from __future__ import annotations

from typing import TYPE_CHECKING

from agentguard._lazy import lazy_exports

if TYPE_CHECKING:
    from agentguard.bundles.archive import (
        read_bundle as read_bundle,
        verify_bundle as verify_bundle,
        write_bundle as write_bundle,
    )
    from agentguard.bundles.bindings import CallBinding as CallBinding, RunBinding as RunBinding
    from agentguard.bundles.bundle import Bundle as Bundle, RecordedCall as RecordedCall
    from agentguard.bundles.bundle_folder import BundleFolder as BundleFolder
    from agentguard.bundles.call_recorder import record_run as record_run
    from agentguard.bundles.captured_run import build_run_bundle as build_run_bundle
    from agentguard.bundles.minimization import minimize_bundle as minimize_bundle
    from agentguard.bundles.replay import ReplayResult as ReplayResult, replay_bundle as replay_bundle
    from agentguard.bundles.replay_scope import ReplayMode as ReplayMode
    from agentguard.bundles.run_difference import (
        Divergence as Divergence,
        RunDifference as RunDifference,
        ValueDifference as ValueDifference,
        find_divergence as find_divergence,
        find_run_difference as find_run_difference,
    )

_EXPORTS = {
    "Bundle": "agentguard.bundles.bundle",
    "BundleFolder": "agentguard.bundles.bundle_folder",
    "CallBinding": "agentguard.bundles.bindings",
    "Divergence": "agentguard.bundles.run_difference",
    "RecordedCall": "agentguard.bundles.bundle",
    "ReplayMode": "agentguard.bundles.replay_scope",
    "ReplayResult": "agentguard.bundles.replay",
    "RunBinding": "agentguard.bundles.bindings",
    "RunDifference": "agentguard.bundles.run_difference",
    "ValueDifference": "agentguard.bundles.run_difference",
    "build_run_bundle": "agentguard.bundles.captured_run",
    "find_divergence": "agentguard.bundles.run_difference",
    "find_run_difference": "agentguard.bundles.run_difference",
    "minimize_bundle": "agentguard.bundles.minimization",
    "read_bundle": "agentguard.bundles.archive",
    "record_run": "agentguard.bundles.call_recorder",
    "replay_bundle": "agentguard.bundles.replay",
    "verify_bundle": "agentguard.bundles.archive",
    "write_bundle": "agentguard.bundles.archive",
}

__getattr__, __dir__ = lazy_exports(__name__, _EXPORTS)

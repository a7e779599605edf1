"""Regression test of a failed run: a file for pytest that replays a bundle."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Final

from agentguard.bundles.bundle import Bundle
from agentguard.errors import ConfigError
from agentguard.verdict import Verdict

_TEMPLATE: Final = '''"""Regression test of the recorded run {run}.

The model's answers come from the bundle in recorded order, the tools' results by their arguments.
The test needs no network and no keys. It fails as long as the agent fails as it did in the recording.
"""

from __future__ import annotations

from pathlib import Path

from agentguard import diagnose
from agentguard.bundles import read_bundle, replay_bundle
from {module} import {function}

BUNDLE = Path(__file__).parent / {bundle}
RECORDED_CAUSE = {cause}


def test_{name}_replay_does_not_fail():
    result = replay_bundle(read_bundle(BUNDLE), {function}, mode="scripted")
    diagnosis = diagnose(result.trajectory)
    steps = [hypothesis.step for hypothesis in diagnosis.hypotheses[:1]]
    assert diagnosis.verdict != "failed", f"likely cause: step {{steps}}; recorded: {{RECORDED_CAUSE}}"
'''


def build_regression_test(bundle: Bundle, *, agent: str, bundle_path: str) -> str:
    """Return the source of a test that fails as the run failed, and passes when the agent is fixed.

    Args:
        bundle: bundle of a run with the verdict ``failed``.
        agent: ``MODULE:FUNCTION`` of the agent.
        bundle_path: path of the bundle relative to the folder of the test.

    Raises:
        ConfigError: the run did not fail, or ``agent`` is not ``MODULE:FUNCTION``.
    """
    verdict = bundle.expectations.get("verdict")
    if verdict != Verdict.FAILED.value:
        raise ConfigError(f"to-test: the verdict of the run is {verdict}, a test needs a failed run")
    module, _, function = agent.partition(":")
    if not function.isidentifier() or not all(part.isidentifier() for part in module.split(".")):
        raise ConfigError(f"--agent {agent}: is not MODULE:FUNCTION")
    return _TEMPLATE.format(
        run=re.sub(r"[^\w.-]+", "_", bundle.trajectory.id),
        name=re.sub(r"\W+", "_", Path(bundle_path).stem, flags=re.ASCII).lower(),
        module=module,
        function=function,
        bundle=repr(bundle_path),
        cause=repr(_describe_cause(bundle)),
    )


def _describe_cause(bundle: Bundle) -> str:
    hypotheses = bundle.diagnosis.get("hypotheses") or [{}]
    return f"step {hypotheses[0].get('step', 'unknown')}"

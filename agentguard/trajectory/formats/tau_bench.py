"""tau-bench results (arXiv 2406.12045): tool-calling runs with a simulated user, and a reward of 0 or 1.

``traj`` are chat messages with the policy in the system message. The complete ``info`` is in the
annotation: its task has the gold actions and the script of the simulated user, and the agent never saw
either.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from agentguard.trajectory.formats._chat_messages import parse_chat
from agentguard.trajectory.json_node import JsonNode
from agentguard.trajectory.model import Annotation, Record, Trajectory

# Rewards are products of floats; any reward below the maximum is a failure.
_PASS_THRESHOLD = 1 - 1e-6


class TauBench:
    """Importer of tau-bench's result files."""

    name = "tau_bench"
    summary = "tau-bench results: tool-calling runs with a reward"

    def score_match(self, value: Any) -> float:
        """Return a positive score for a ``traj`` list with a reward or a task id beside it."""
        if not isinstance(value, dict) or not isinstance(value.get("traj"), list):
            return 0.0
        return 0.95 if "task_id" in value or "reward" in value else 0.5

    def parse(self, value: Any, *, name: str) -> Iterator[Record]:
        """Yield the run of a result."""
        node = JsonNode.from_value(value)
        chat = parse_chat(node.items("traj"), path="traj")
        task, trial = node.scalar_or("task_id"), node.scalar_or("trial")
        parts = [f"task-{task}"] if task else [name]
        parts += [f"trial-{trial}"] if trial else []
        yield Record(
            trajectory=Trajectory(
                id="-".join(parts),
                format=self.name,
                task=chat.task,
                steps=chat.steps,
                system_prompts=chat.system_prompts,
                extra={key: node.raw(key) for key in ("task_id", "trial") if key in node},
            ),
            annotation=_build_annotation(node, task),
        )


def _build_annotation(node: JsonNode, task: str) -> Annotation:
    reward = node.number_or("reward")
    return Annotation(
        failed=None if reward is None else reward < _PASS_THRESHOLD,
        group=task or None,
        extra=node.extra_fields("traj", "task_id", "trial"),
    )


FORMAT = TauBench()

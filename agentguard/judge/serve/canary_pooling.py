"""The canary of a classifier, a scorer or an embedding model: texts whose answers are known.

What the classes of somebody's classifier mean is not known here. Known is what any sound model keeps to: a
text gets the same answer twice in one batch (``classify``), what answers a question scores above what does
not (``score``; a scorer that was trained for something else may miss that), and two sentences that say the
same lie nearer to each other than to a third (``embed``). Whether a server is sound is told by how far its
numbers are from those that it gave when it was new, as for the chat canary.
"""

from __future__ import annotations

from typing import Final

from agentguard.judge.classifier import Task
from agentguard.judge.endpoint import Endpoint
from agentguard.judge.loop import now
from agentguard.judge.pooling import request
from agentguard.judge.pooling_replies import Row, class_rows, score_rows, vector_rows
from agentguard.judge.serve.canary import Canary, cosine
from agentguard.judge.wire import Failed

FARTHEST: Final = 0.1
"""As `agentguard.judge.serve.canary.FARTHEST`; nearer, since no mask and no cache moves these numbers: a real
server's agreed with another implementation's to 1e-4 in float32, and bfloat16 keeps two to three digits."""

_TWICE: Final = 0.05
_SAME: Final = (
    ("A cat is asleep on the sofa.", "On the sofa a cat is sleeping.", "The bank raised its interest rate."),
    ("The train to Lund leaves at ten.", "At ten the train to Lund departs.", "Onions are fried in butter."),
    ("She repaired the broken bicycle.", "The broken bike was mended by her.", "Snow fell in the mountains."),
)
_ANSWERED: Final = (
    ("What do cats eat?", "Cats eat meat and fish.", "The tower was built of grey stone."),
    ("When does the train to Lund leave?", "The train to Lund leaves at ten.", "Onions are fried in butter."),
    ("Who repaired the bicycle?", "The bicycle was repaired by Ines.", "It will snow in the mountains."),
)


async def ask_pooling(endpoint: Endpoint, task: Task, deadline_s: float) -> Canary:
    """Ask all questions, one after the other, each within the deadline."""
    shares: list[float] = []
    vectors: list[Row] = []
    right, seconds = 0, 0.0
    for pairs in _batches(task):
        started = now()
        rows = await _rows(endpoint, task, pairs, deadline_s)
        seconds += now() - started
        if isinstance(rows, Failed):
            return Canary(fault=str(rows.fault), seconds=seconds, farthest=FARTHEST)
        if task == "embed":
            vectors += rows
        else:
            shares += [share for row in rows for share in row]
        right += _right(task, rows)
    return Canary(
        shares=tuple(shares), vectors=tuple(vectors), right=right, seconds=seconds, farthest=FARTHEST
    )


def _batches(task: Task) -> tuple[tuple[tuple[str, str], ...], ...]:
    """The pairs of query and text of each question."""
    if task == "score":
        return tuple(((asked, answer), (asked, other)) for asked, answer, other in _ANSWERED)
    if task == "embed":
        return tuple(tuple(("", text) for text in texts) for texts in _SAME)
    return tuple((("", text), ("", other), ("", text)) for text, _, other in _SAME)


async def _rows(
    endpoint: Endpoint, task: Task, pairs: tuple[tuple[str, str], ...], deadline_s: float
) -> tuple[Row, ...] | Failed:
    started = now()
    facts = await endpoint.facts(deadline_s)
    if isinstance(facts, Failed):
        return facts
    path, body = request(task, facts.model, pairs)
    said = await endpoint.post(path, body, deadline_s=deadline_s - (now() - started))
    if isinstance(said, Failed):
        return said
    if task == "score":
        return score_rows(said, len(pairs))
    read = vector_rows if task == "embed" else class_rows
    return read(said, len(pairs), None)


def _right(task: Task, rows: tuple[Row, ...]) -> bool:
    if task == "score":
        return rows[0][0] > rows[1][0]
    if len({len(row) for row in rows}) > 1:
        return False
    if task == "embed":
        return cosine(rows[0], rows[1]) > cosine(rows[0], rows[2])
    return max(abs(one - other) for one, other in zip(rows[0], rows[2], strict=True)) <= _TWICE

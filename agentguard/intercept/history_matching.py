"""A run gone on with by a client that has rewritten its history: dropped its beginning, or summed it up.

No prefix of such a history is known. What is known is its end: the answer that was given last, with its
calls, right before their results. By that the conversation is found, if it is the only one that waits for it.
Its line is laid anew along the client's history; turns that were taken back are known by the ids of their
calls and stay out of it.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Sequence

from agentguard.intercept.api_adapter import ApiAdapter
from agentguard.intercept.conversation import BranchStep, Conversation, ConversationBranch, Item, extended
from agentguard.trajectory.model import Source, Step

_RANDOM = re.compile(r"(?=[A-Za-z]*[0-9])(?=[0-9]*[A-Za-z])[A-Za-z0-9]{8,}")


def answer_key(dialect: ApiAdapter, items: Sequence[Item], seed: str) -> bytes:
    """What a conversation is found by whose client was given these items as its last answer."""
    begin = hashlib.sha256(b"answer\0" + seed.encode(errors="surrogatepass")).digest()
    return extended(begin, [item for item in items if not dialect.result(item)], dialect.key)


def last_turn(dialect: ApiAdapter, history: Sequence[Item]) -> tuple[int, int] | None:
    """The place of the last turn of a history, if calls were made in it and something came before it."""
    if not history or not dialect.result(history[-1]):
        return None
    turns = dialect.turns(history, 0)
    return turns[-1] if len(turns) > 1 else None


def told_apart(dialect: ApiAdapter, turn: Sequence[Item]) -> bool:
    """Whether ids of a turn's calls are such as no other run has: some servers just count them."""
    ids = [call.id for call in dialect.step(turn, "").tool_calls]
    return any(_RANDOM.search(id or "") for id in ids)


def laid_anew(of: Conversation, dialect: ApiAdapter, history: Sequence[Item], agent: str) -> None:
    """Make a conversation's line agree with a history that ends with its last answer and results.

    Steps of the session are those at the line's end. How far the two agree before that is not known: a
    rollback goes back to the step that stands as far from the end.
    """
    left = _taken_back(of)
    line, told = ConversationBranch(), {tuple(ids): held.told for ids, held in _by_calls(of)}
    for start, end in dialect.turns(history, 0)[:-1]:
        step = dialect.step(history[start:end], agent)
        ids = tuple(call.id for call in step.tool_calls)
        if ids and left.issuperset(ids):
            continue
        given = step.source in (Source.USER, Source.SYSTEM)
        line.add(BranchStep(items=list(range(start, end)), given=given))
        line.steps[-1].told = told.get(ids, []) if ids else []
    line.told = of.line.told
    of.line, of.base = line, len(line) - len(of.session)
    of.known = dialect.turns(history, 0)[-1][0]


def _taken_back(of: Conversation) -> set[str]:
    run = of.session.run
    live = {call.id for step in run.steps for call in step.tool_calls}
    left = {call.id for branch in run.branches for step in branch.steps for call in step.tool_calls}
    return left - live


def _by_calls(of: Conversation) -> list[tuple[list[str], BranchStep]]:
    """The steps of the line in which calls were made, with their ids."""
    steps: Sequence[Step] = of.session.run.steps
    held = of.line.steps[max(0, of.base) :]
    pairs = zip(steps[max(0, -of.base) :], held, strict=False)
    return [([call.id for call in step.tool_calls], one) for step, one in pairs if step.tool_calls]

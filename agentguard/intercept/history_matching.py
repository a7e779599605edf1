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
from agentguard.intercept.conversation import BranchStep, Conversation, ConversationBranch, Item, extend_key
from agentguard.trajectory.model import Source, Step

_RANDOM_ID = re.compile(r"(?=[A-Za-z]*[0-9])(?=[0-9]*[A-Za-z])[A-Za-z0-9]{8,}")


def build_answer_key(adapter: ApiAdapter, items: Sequence[Item], seed: str) -> bytes:
    """What a conversation is found by whose client was given these items as its last answer."""
    begin = hashlib.sha256(b"answer\0" + seed.encode(errors="surrogatepass")).digest()
    return extend_key(begin, [item for item in items if not adapter.is_result(item)], adapter.build_item_key)


def find_last_turn(adapter: ApiAdapter, history: Sequence[Item]) -> tuple[int, int] | None:
    """The place of the last turn of a history, if calls were made in it and something came before it."""
    if not history or not adapter.is_result(history[-1]):
        return None
    turns = adapter.split_turns(history, 0)
    return turns[-1] if len(turns) > 1 else None


def has_random_call_ids(adapter: ApiAdapter, turn: Sequence[Item]) -> bool:
    """Whether ids of a turn's calls are such as no other run has: some servers just count them."""
    ids = [call.id for call in adapter.build_step(turn, "").tool_calls]
    return any(_RANDOM_ID.search(id or "") for id in ids)


def rebuild_branch(
    conversation: Conversation, adapter: ApiAdapter, history: Sequence[Item], agent: str
) -> None:
    """Make a conversation's line agree with a history that ends with its last answer and results.

    Steps of the session are those at the line's end. How far the two agree before that is not known: a
    rollback goes back to the step that stands as far from the end.
    """
    left = _collect_abandoned_call_ids(conversation)
    line, told = (
        ConversationBranch(),
        {tuple(ids): held.guard_items for ids, held in _list_steps_with_calls(conversation)},
    )
    for start, end in adapter.split_turns(history, 0)[:-1]:
        step = adapter.build_step(history[start:end], agent)
        ids = tuple(call.id for call in step.tool_calls)
        if ids and left.issuperset(ids):
            continue
        given = step.source in (Source.USER, Source.SYSTEM)
        line.add_step(BranchStep(items=list(range(start, end)), is_prompt=given))
        line.steps[-1].guard_items = told.get(ids, []) if ids else []
    line.pending_guard_items = conversation.branch.pending_guard_items
    conversation.branch, conversation.step_offset = line, len(line) - len(conversation.session)
    conversation.processed_item_count = adapter.split_turns(history, 0)[-1][0]


def _collect_abandoned_call_ids(conversation: Conversation) -> set[str]:
    run = conversation.session.run
    live = {call.id for step in run.steps for call in step.tool_calls}
    left = {call.id for branch in run.branches for step in branch.steps for call in step.tool_calls}
    return left - live


def _list_steps_with_calls(conversation: Conversation) -> list[tuple[list[str], BranchStep]]:
    """The steps of the line in which calls were made, with their ids."""
    steps: Sequence[Step] = conversation.session.run.steps
    held = conversation.branch.steps[max(0, conversation.step_offset) :]
    pairs = zip(steps[max(0, -conversation.step_offset) :], held, strict=False)
    return [([call.id for call in step.tool_calls], one) for step, one in pairs if step.tool_calls]

"""Matching of a conversation by its last turn, for clients that truncate or summarise their history.

No prefix of such a history is known, but its end is: the last answer with its calls, directly before their
results. The lookup succeeds if exactly one conversation waits for this answer. The branch is then rebuilt
from the client's history. Rolled back turns are recognised by their call IDs and left out.
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
    """Return the key of a conversation whose client received these items as its last answer."""
    begin = hashlib.sha256(b"answer\0" + seed.encode(errors="surrogatepass")).digest()
    return extend_key(begin, [item for item in items if not adapter.is_result(item)], adapter.build_item_key)


def find_last_turn(adapter: ApiAdapter, history: Sequence[Item]) -> tuple[int, int] | None:
    """Return the range of the last turn, if it contains tool results and is not the first turn."""
    if not history or not adapter.is_result(history[-1]):
        return None
    turns = adapter.split_turns(history, 0)
    return turns[-1] if len(turns) > 1 else None


def has_random_call_ids(adapter: ApiAdapter, turn: Sequence[Item]) -> bool:
    """Return whether call IDs of a turn are unique across runs; some servers only count them."""
    ids = [call.id for call in adapter.build_step(turn, "").tool_calls]
    return any(_RANDOM_ID.search(id or "") for id in ids)


def rebuild_branch(
    conversation: Conversation, adapter: ApiAdapter, history: Sequence[Item], agent: str
) -> None:
    """Rebuild the branch of a conversation from a history that ends with its last answer and results.

    The session's steps are matched from the end of the branch. How much of the earlier history agrees is
    unknown, so a rollback counts its target step from the end.
    """
    abandoned_call_ids = _collect_abandoned_call_ids(conversation)
    line, guard_items_by_calls = (
        ConversationBranch(),
        {tuple(ids): branch_step.guard_items for ids, branch_step in _list_steps_with_calls(conversation)},
    )
    for start, end in adapter.split_turns(history, 0)[:-1]:
        step = adapter.build_step(history[start:end], agent)
        ids = tuple(call.id for call in step.tool_calls)
        if ids and abandoned_call_ids.issuperset(ids):
            continue
        is_prompt = step.source in (Source.USER, Source.SYSTEM)
        line.add_step(BranchStep(items=list(range(start, end)), is_prompt=is_prompt))
        line.steps[-1].guard_items = guard_items_by_calls.get(ids, []) if ids else []
    line.pending_guard_items = conversation.branch.pending_guard_items
    conversation.branch, conversation.step_offset = line, len(line) - len(conversation.session)
    conversation.processed_item_count = adapter.split_turns(history, 0)[-1][0]


def _collect_abandoned_call_ids(conversation: Conversation) -> set[str]:
    run = conversation.session.run
    live_ids = {call.id for step in run.steps for call in step.tool_calls}
    abandoned_ids = {call.id for branch in run.branches for step in branch.steps for call in step.tool_calls}
    return abandoned_ids - live_ids


def _list_steps_with_calls(conversation: Conversation) -> list[tuple[list[str], BranchStep]]:
    """Return the steps of the branch that have calls, each with its call IDs."""
    steps: Sequence[Step] = conversation.session.run.steps
    branch_steps = conversation.branch.steps[max(0, conversation.step_offset) :]
    pairs = zip(steps[max(0, -conversation.step_offset) :], branch_steps, strict=False)
    return [
        ([call.id for call in step.tool_calls], branch_step) for step, branch_step in pairs if step.tool_calls
    ]

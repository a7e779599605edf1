"""Synchronisation of a conversation's branch with the client's history and with recovery plans."""

from __future__ import annotations

import hashlib
import logging
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

from agentguard._bounded_map import BoundedMap
from agentguard.intercept.api_adapter import ApiAdapter
from agentguard.intercept.conversation import (
    BranchStep,
    Conversation,
    ConversationBranch,
    ConversationCache,
    Item,
    extend_key,
    resolve_items,
)
from agentguard.intercept.history_edits import HistoryEdits, build_turn_key
from agentguard.recover.actions import DisableTools, Repair, Restart, Rewind, SendMessage
from agentguard.recover.plan import RecoveryPlan
from agentguard.runtime.session import Session
from agentguard.trajectory.model import Source, Step

_LOGGER = logging.getLogger("agentguard.openai")


class InterceptorServices(Protocol):
    """Services of the interceptor that its requests use."""

    agent: str
    conversations: ConversationCache
    save_edits: Callable[[Conversation, Mapping[str, Any]], None] | None

    def start_session(
        self, adapter: ApiAdapter, body: Mapping[str, Any], steps: Sequence[Step], run_id: str
    ) -> Session:
        """Start the session of a run."""
        ...

    def begin_next_run(self, conversation: Conversation) -> str:
        """Count another run of a conversation and return the ID of the run."""
        ...


class HistorySync:
    """Base class of `GuardedRequest` that synchronises the branch and the session with the client's history.

    Args:
        services: services of the interceptor.
        adapter: adapter of the API.
        conversation: the conversation that the request continues.
        history: the client's history before the answer.
    """

    def __init__(
        self,
        services: InterceptorServices,
        adapter: ApiAdapter,
        conversation: Conversation,
        history: list[Item],
    ) -> None:
        self._services, self.adapter, self._conversation, self._history = (
            services,
            adapter,
            conversation,
            history,
        )
        self._edits: HistoryEdits | None = None

    @property
    def session(self) -> Session:
        """Return the session of the run."""
        return self._conversation.session

    def _apply_edits(self, edits: HistoryEdits) -> None:
        """Apply edits from another process after the turns have been committed."""
        conversation, self._edits = self._conversation, None
        conversation.version += 1
        self.session.ledger.rewind(len(self.session))
        conversation.abandoned_turns |= edits.abandoned_turns
        conversation.disabled_tools |= edits.disabled_tools
        conversation.session.account.restore(edits.budget_usage, {})
        for item in edits.pending_guard_items:
            conversation.branch.add_guard_item(item)

    def _find_task_offset(self, turns: Sequence[tuple[int, int]], *, is_new_run: bool) -> int:
        """Return the number of steps before the latest task; they are context and are not part of the run."""
        prompt_flags = [self.adapter.is_prompt(self._history[start:end]) for start, end in turns]
        return len(self._conversation.branch) + count_turns_before_task(prompt_flags, is_new_run=is_new_run)

    def _recommit_steps(self) -> None:
        """Commit the steps of the branch that the session lacks."""
        for branch_step in self._conversation.branch.steps[
            max(0, self._conversation.step_offset + len(self.session)) :
        ]:
            self._commit_step(
                self.adapter.build_step(resolve_items(branch_step.items, self._history), self._services.agent)
            )

    def _commit_turn(self, start: int, end: int) -> None:
        conversation, items = self._conversation, self._history[start:end]
        places: list[int | Item] = list(range(start, end))
        results = [place for place in range(start, end) if self.adapter.is_result(self._history[place])]
        is_answer = start == conversation.processed_item_count
        if conversation.replacement is not None and is_answer:
            places = [*conversation.replacement, *results]
        if self._edits is not None:
            name = build_turn_key(self.adapter, items)
            if name in self._edits.abandoned_turns:
                if len(conversation.branch) >= conversation.step_offset:
                    self._record_calls(self.adapter.build_step(items, self._services.agent))
                conversation.step_offset -= len(conversation.branch) < conversation.step_offset
                return
            self.session.ledger.rewind(len(self.session))  # abandoned turns before it are not on the branch
            for item in self._edits.guard_items_by_turn.get(name, ()):
                conversation.branch.add_guard_item(item)
        if len(conversation.branch) >= conversation.step_offset:
            self._commit_step(self._build_turn_step(items, is_answer=is_answer))
        branch_step = BranchStep(items=places, is_prompt=self.adapter.is_prompt(items))
        if is_answer and conversation.stored_response_id is not None:
            branch_step.stored_response_id, branch_step.stored_item_count = (
                conversation.stored_response_id,
                len(places) - len(results),
            )
        conversation.branch.add_step(branch_step)

    def _build_turn_step(self, items: Sequence[Item], *, is_answer: bool) -> Step:
        """Convert a turn to a step; reuse the judged step if the client resends the answer unchanged.

        If the client changed the form of the answer, keep its token usage and model.
        """
        answer_step, answer_length = self._conversation.answer_step, len(self._conversation.answer)
        if (
            is_answer
            and answer_step is not None
            and _are_equal(items[:answer_length], self._conversation.answer)
        ):
            results = items[answer_length:]
            if all(map(self.adapter.is_result, results)):
                return self.adapter.add_results(answer_step, results)
        step = self.adapter.build_step(items, self._services.agent)
        if is_answer and answer_step is not None and step.tool_calls:
            return step.with_usage(answer_step.usage, answer_step.model)
        return step

    def _commit_step(self, step: Step) -> None:
        """Record the calls of a step, and commit it."""
        self._record_calls(step)
        self.session.commit(step)

    def _record_calls(self, step: Step) -> None:
        """Record the calls of a step in the ledger, also those of an abandoned turn, which were executed."""
        results = {observation.call_id: observation.content for observation in step.observations}
        for call in step.tool_calls:
            claim = self._conversation.claims.pop(call.id, None)
            if claim is None:
                claim = self.session.begin_tool(call.name, call.arguments or {})
            if call.id in results:
                self.session.end_tool(claim, results[call.id])

    def _apply_plan(self, plan: RecoveryPlan) -> None:
        """Apply a plan that the session has executed to the branch."""
        branch = self._conversation.branch
        for action in plan.actions:
            if isinstance(action, Rewind):
                self._truncate(max(0, self._conversation.step_offset + action.to_step))
            elif isinstance(action, Restart):
                self._truncate(self._find_first_answer())
                branch.add_guard_item(self.adapter.build_guard_item(action.note))
            elif isinstance(action, SendMessage):
                branch.add_guard_item(self.adapter.build_guard_item(action.text))
            elif isinstance(action, Repair):
                self._apply_repair(action)
            elif isinstance(action, DisableTools):
                self._conversation.disabled_tools |= set(action.tools)
        if self.session.stop_reason is None:
            self._recommit_steps()

    def _truncate(self, from_step: int) -> None:
        """Roll back the agent's steps from ``from_step`` on."""
        for branch_step in self._conversation.branch.steps[from_step:]:
            if not branch_step.is_prompt:
                self._conversation.abandoned_turns.add(
                    build_turn_key(self.adapter, resolve_items(branch_step.items, self._history))
                )
        self._conversation.branch.truncate(from_step)

    def _apply_repair(self, repair: Repair) -> None:
        """Replace the text of a tool result in the branch."""
        branch, step = self._conversation.branch, self._conversation.step_offset + repair.step
        if step < 0:  # the client has removed the step from its history
            return
        items = resolve_items(branch.steps[step].items, self._history)
        results = [place for place, item in enumerate(items) if self.adapter.is_result(item)]
        result_place = results[repair.index]
        branch.replace_item(
            step, result_place, self.adapter.replace_result_text(items[result_place], repair.text)
        )

    def _find_first_answer(self) -> int:
        """Return the index of the first step after the latest task."""
        return (
            max(
                (i for i, branch_step in enumerate(self._conversation.branch.steps) if branch_step.is_prompt),
                default=-1,
            )
            + 1
        )


def count_turns_before_task(prompt_flags: Sequence[bool], *, is_new_run: bool) -> int:
    """Return the number of turns before the latest task.

    Args:
        prompt_flags: for each turn, whether it is a user or system prompt.
        is_new_run: whether the turns follow a finished run. If not, and only prompts precede the task, these
            prompts are part of the run.
    """
    task_index = max((place for place, is_prompt in enumerate(prompt_flags) if is_prompt), default=None)
    if task_index is None:
        return len(prompt_flags) if is_new_run else 0
    while task_index and prompt_flags[task_index - 1]:
        task_index -= 1
    return task_index if is_new_run or not all(prompt_flags[:task_index]) else 0


def _are_equal(left: Sequence[Item], right: Sequence[Item]) -> bool:
    """Return whether the items are equal apart from null fields, which clients add and omit."""
    return len(left) == len(right) and all(
        left_item is right_item
        or left_item == right_item
        or _drop_nulls(left_item) == _drop_nulls(right_item)
        for left_item, right_item in zip(left, right, strict=True)
    )


def _drop_nulls(item: Item) -> Item:
    return {name: value for name, value in item.items() if value is not None}


_RANDOM_ID = re.compile(r"(?=[A-Za-z]*[0-9])(?=[0-9]*[A-Za-z])[A-Za-z0-9]{8,}")


def build_answer_key(adapter: ApiAdapter, items: Sequence[Item], seed: str) -> bytes:
    """Return the key of a conversation whose client received these items as its last answer."""
    prefix_key = hashlib.sha256(b"answer\0" + seed.encode(errors="surrogatepass")).digest()
    return extend_key(
        prefix_key, [item for item in items if not adapter.is_result(item)], adapter.build_item_key
    )


def find_last_turn(adapter: ApiAdapter, history: Sequence[Item]) -> tuple[int, int] | None:
    """Return the range of the last turn, if it contains tool results and is not the first turn."""
    if not history or not adapter.is_result(history[-1]):
        return None
    turns = adapter.split_turns(history, 0)
    return turns[-1] if len(turns) > 1 else None


def has_random_call_ids(adapter: ApiAdapter, turn: Sequence[Item]) -> bool:
    """Return whether the call IDs of a turn are unique across runs; some servers number the calls."""
    ids = [call.id for call in adapter.build_step(turn, "").tool_calls]
    return any(_RANDOM_ID.search(id or "") for id in ids)


def rebuild_branch(
    conversation: Conversation, adapter: ApiAdapter, history: Sequence[Item], agent: str
) -> None:
    """Rebuild the branch of a conversation from a history that ends with its last answer and results.

    The session's steps are matched from the end of the branch, because the earlier history may differ. A
    rollback therefore counts its target step from the end.
    """
    abandoned_call_ids = _collect_abandoned_call_ids(conversation)
    branch, guard_items_by_calls = (
        ConversationBranch(),
        {tuple(ids): branch_step.guard_items for ids, branch_step in _list_steps_with_calls(conversation)},
    )
    for start, end in adapter.split_turns(history, 0)[:-1]:
        step = adapter.build_step(history[start:end], agent)
        ids = tuple(call.id for call in step.tool_calls)
        if ids and abandoned_call_ids.issuperset(ids):
            continue
        is_prompt = step.source in (Source.USER, Source.SYSTEM)
        branch.add_step(BranchStep(items=list(range(start, end)), is_prompt=is_prompt))
        branch.steps[-1].guard_items = guard_items_by_calls.get(ids, []) if ids else []
    branch.pending_guard_items = conversation.branch.pending_guard_items
    conversation.branch, conversation.step_offset = branch, len(branch) - len(conversation.session)
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


def select_context_steps(adapter: ApiAdapter, items: Sequence[Item], agent: str) -> list[Step]:
    """Return the prompts that a run restarts from: its first step, if a prompt, and the last user prompt."""
    turns = [items[start:end] for start, end in adapter.split_turns(items, 0)]
    prompts = (adapter.build_step(turn, agent) for turn in reversed(turns) if adapter.is_prompt(turn))
    last_user_prompt = next((step for step in prompts if step.source is Source.USER), None)
    first_steps = [adapter.build_step(turn, agent) for turn in turns[:1] if adapter.is_prompt(turn)]
    return first_steps if last_user_prompt is None else [*first_steps, last_user_prompt]


class HistoryRewriteWarning:
    """Warning about a client that rewrites its history, so that each of its requests begins a new run.

    Args:
        max_tasks: maximum number of tasks in memory.
    """

    def __init__(self, max_tasks: int) -> None:
        self._is_logged = False
        self._task_keys = BoundedMap[bytes, None](max_tasks)

    def check(self, adapter: ApiAdapter, items: Sequence[Item], keys: Sequence[bytes]) -> None:
        """Log the warning once, if a request continues a known task but no known conversation.

        Args:
            adapter: adapter of the API.
            items: history of a request that begins a conversation.
            keys: key of each prefix of the history.
        """
        if self._is_logged:
            return
        task_end = 0
        for start, end in adapter.split_turns(items, 0):
            if not adapter.is_prompt(items[start:end]):
                break
            task_end = end
        key = keys[task_end]
        if task_end < len(items) and key in self._task_keys:
            self._is_logged = True
            _LOGGER.warning(
                "a client rewrites its history, so each of its requests begins a new run, and detectors "
                "cannot find a loop over several requests. Guard the agent with the integration of its "
                "framework, or set the header agentguard-run, which bounds the recoveries of the run"
            )
        self._task_keys[key] = None

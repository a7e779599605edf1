"""The history of a request on the line of its conversation, and what plans do to it; a part of `Exchange`."""

from __future__ import annotations

from collections.abc import Sequence

from agentguard.intercept.api_adapter import ApiAdapter
from agentguard.intercept.conversation import BranchStep, Conversation, Item, resolve_items
from agentguard.intercept.history_edits import HistoryEdits, build_turn_key
from agentguard.intercept.types import InterceptorServices
from agentguard.recover.strategy import DisableTools, RecoveryPlan, Repair, Restart, Rewind, SendMessage
from agentguard.runtime.session import Session
from agentguard.trajectory.model import Step


class HistorySync:
    """Keeps the line and the session in step with the client's history.

    Args:
        engine: made it.
        dialect: of the request.
        conversation: that the request goes on with.
        history: all that was said before, as the client has it.
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
        """Of the run."""
        return self._conversation.session

    def _apply_edits(self, edits: HistoryEdits) -> None:
        """Go on as it was gone on elsewhere; the turns have been taken in."""
        of, self._edits = self._conversation, None
        of.version += 1
        self.session.ledger.rewind(len(self.session))
        of.abandoned_turns |= edits.abandoned_turns
        of.disabled_tools |= edits.disabled_tools
        of.session.account.restore(edits.budget_usage, {})
        for item in edits.pending_guard_items:
            of.branch.add_guard_item(item)

    def _find_task_offset(self, turns: Sequence[tuple[int, int]], *, is_new_run: bool) -> int:
        """Steps before the latest task: they are the model's context, and no part of the run."""
        given = [self.adapter.is_prompt(self._history[start:end]) for start, end in turns]
        return len(self._conversation.branch) + count_turns_before_task(given, is_new_run=is_new_run)

    def _recommit_steps(self) -> None:
        """Commit the steps of the line that the session does not have."""
        for held in self._conversation.branch.steps[
            max(0, self._conversation.step_offset + len(self.session)) :
        ]:
            self._commit_step(
                self.adapter.build_step(resolve_items(held.items, self._history), self._services.agent)
            )

    def _commit_turn(self, start: int, end: int) -> None:
        of, items = self._conversation, self._history[start:end]
        places: list[int | Item] = list(range(start, end))
        results = [one for one in range(start, end) if self.adapter.is_result(self._history[one])]
        answer = start == of.processed_item_count
        if of.replacement is not None and answer:
            places = [*of.replacement, *results]
        if self._edits is not None:
            name = build_turn_key(self.adapter, items)
            if name in self._edits.abandoned_turns:
                if len(of.branch) >= of.step_offset:
                    self._record_calls(self.adapter.build_step(items, self._services.agent))
                of.step_offset -= len(of.branch) < of.step_offset
                return
            self.session.ledger.rewind(len(self.session))  # what was left before it is not on the line
            for item in self._edits.guard_items_by_turn.get(name, ()):
                of.branch.add_guard_item(item)
        if len(of.branch) >= of.step_offset:
            self._commit_step(self._build_turn_step(items, is_answer=answer))
        held = BranchStep(items=places, is_prompt=self.adapter.is_prompt(items))
        if answer and of.stored_response_id is not None:
            held.stored_response_id, held.stored_item_count = (
                of.stored_response_id,
                len(places) - len(results),
            )
        of.branch.add_step(held)

    def _build_turn_step(self, items: Sequence[Item], *, is_answer: bool) -> Step:
        """A turn as a step: the one that was judged, where the client resends the answer as it got it."""
        judged, given = self._conversation.answer_step, len(self._conversation.answer)
        if is_answer and judged is not None and _are_equal(items[:given], self._conversation.answer):
            results = items[given:]
            if all(map(self.adapter.is_result, results)):
                return self.adapter.add_results(judged, results)
        return self.adapter.build_step(items, self._services.agent)

    def _commit_step(self, step: Step) -> None:
        """Commit a step, its calls whose results are there as done."""
        self._record_calls(step)
        self.session.commit(step)

    def _record_calls(self, step: Step) -> None:
        """Enter a step's calls in the ledger; of a turn that was taken back, too, as they were made."""
        seen = {one.call_id: one.content for one in step.observations}
        for call in step.tool_calls:
            claim = self._conversation.claims.pop(call.id, None)
            if claim is None:
                claim = self.session.begin_tool(call.name, call.arguments or {})
            if call.id in seen:
                self.session.end_tool(claim, seen[call.id])

    def _apply_plan(self, plan: RecoveryPlan) -> None:
        """Make the line agree with a plan that the session has carried out."""
        line = self._conversation.branch
        for action in plan.actions:
            if isinstance(action, Rewind):
                self._truncate(max(0, self._conversation.step_offset + action.to_step))
            elif isinstance(action, Restart):
                self._truncate(self._find_first_answer())
                line.add_guard_item(self.adapter.build_guard_item(action.note))
            elif isinstance(action, SendMessage):
                line.add_guard_item(self.adapter.build_guard_item(action.text))
            elif isinstance(action, Repair):
                self._apply_repair(action)
            elif isinstance(action, DisableTools):
                self._conversation.disabled_tools |= set(action.tools)
        if self.session.stop_reason is None:
            self._recommit_steps()

    def _truncate(self, from_step: int) -> None:
        """Take back the agent's steps from ``keep`` on."""
        for held in self._conversation.branch.steps[from_step:]:
            if not held.is_prompt:
                self._conversation.abandoned_turns.add(
                    build_turn_key(self.adapter, resolve_items(held.items, self._history))
                )
        self._conversation.branch.truncate(from_step)

    def _apply_repair(self, repair: Repair) -> None:
        """Send the model another text in place of what a call returned."""
        line, step = self._conversation.branch, self._conversation.step_offset + repair.step
        if step < 0:  # the client has dropped it
            return
        items = resolve_items(line.steps[step].items, self._history)
        results = [place for place, item in enumerate(items) if self.adapter.is_result(item)]
        at = results[int(repair.field.partition("[")[2].rstrip("]"))]
        line.replace_item(step, at, self.adapter.replace_result_text(items[at], repair.text))

    def _find_first_answer(self) -> int:
        """The step after the latest task."""
        return (
            max((i for i, held in enumerate(self._conversation.branch.steps) if held.is_prompt), default=-1)
            + 1
        )


def count_turns_before_task(prompt_flags: Sequence[bool], *, is_new_run: bool) -> int:
    """How many turns stand before the latest task.

    Args:
        given: of each turn, whether a user or a system prompt gave it.
        renewed: they follow a run that has ended; else they are all that is known, and where nothing but
            prompts comes before the task, these belong to the run.
    """
    asked = max((place for place, is_given in enumerate(prompt_flags) if is_given), default=None)
    if asked is None:
        return len(prompt_flags) if is_new_run else 0
    while asked and prompt_flags[asked - 1]:
        asked -= 1
    return asked if is_new_run or not all(prompt_flags[:asked]) else 0


def _are_equal(left: Sequence[Item], right: Sequence[Item]) -> bool:
    """Whether items are equal but for fields that are null, which clients add and leave out."""
    return len(left) == len(right) and all(
        one is other or one == other or _drop_nulls(one) == _drop_nulls(other)
        for one, other in zip(left, right, strict=True)
    )


def _drop_nulls(item: Item) -> Item:
    return {name: value for name, value in item.items() if value is not None}

"""pydantic-ai: the guard as a capability of an agent.

::

    agent = Agent(model, tools=[...], capabilities=[guard.pydantic_ai()])

The guard judges a turn before the node that calls its tools. There it can remove the response from the
history and repeat the request. A rollback happens after that node: the guard restores the history before a
turn, and the next node repeats that turn's request with the correction as its last prompt. The history never
contains a call without its result.

The guard uses hooks before and after a node, because under ``run_stream`` tools run before a hook around
their node. The caller of ``run_stream`` receives the last response while the model generates it. Therefore
the guard cannot reject the end of such a run; it runs the acceptance test and records the verdict.
"""

from __future__ import annotations

import copy
from collections.abc import Awaitable, Callable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any

from agentguard import _sync_async
from agentguard.errors import MissingExtra
from agentguard.recover.actions import SampleVariant
from agentguard.recover.effect_ledger import ExecutionDecision
from agentguard.runtime.session import MAX_REJECTIONS, ResolvedTurn, Session, aend_session
from agentguard.runtime.tool_execution import UNKNOWN_OUTCOME_MESSAGE, AskCallback, run_with_read_retry
from agentguard.runtime.tool_timeout import ToolTimeout, alimit_call

try:
    from pydantic_ai import CallToolsNode, ModelRequestNode, RunContext
    from pydantic_ai.capabilities import AbstractCapability, CapabilityOrdering
    from pydantic_ai.exceptions import (
        ApprovalRequired,
        CallDeferred,
        ModelRetry,
        SkipToolExecution,
        ToolFailed,
        ToolRetryError,
    )
    from pydantic_ai.messages import ModelResponse, ToolCallPart
    from pydantic_ai.tools import ToolDefinition
    from pydantic_graph import End
except ImportError as error:
    raise MissingExtra("pydantic-ai", "pydantic-ai") from error

from agentguard.integrations.pydantic_ai.messages import apply_repaired_turn, request_candidate
from agentguard.integrations.pydantic_ai.run import PydanticGuardedRun, format_tool_result

if TYPE_CHECKING:
    from agentguard.guard import Guard

_NOT_EXECUTED_ERRORS = (ApprovalRequired, CallDeferred, ModelRetry, SkipToolExecution, ToolRetryError)
"""Exceptions of calls that were not executed and may be repeated."""


class GuardCapability(AbstractCapability[Any]):
    """Capability that guards every run of an agent.

    Args:
        guard: the guard whose rules apply; set by `Guard.pydantic_ai`.
        name: name of the agent in the trajectory; by default the agent's own name.
        ask: called with a question when a person must decide; the agent gets the answer. The function may be
            a coroutine function.
        on_run: called with the session of each run when the run begins, for example to inspect it later.
        models: models by name, for candidates of a turn; pydantic-ai infers others from their names.

    A run that the guard stops raises `RunStopped` with the reason, because an agent with typed output has no
    other value to return.
    """

    def __init__(
        self,
        guard: Guard,
        *,
        name: str | None = None,
        ask: AskCallback | None = None,
        on_run: Callable[[Session], None] | None = None,
        models: Mapping[str, Any] | None = None,
    ) -> None:
        self._models, self._request_context = dict(models or {}), None
        self._guard, self._name, self._ask, self._on_run = guard, name, ask, on_run
        self._run = self._create_run(name)
        self._rejection_count = 0

    def get_ordering(self) -> CapabilityOrdering:
        """Return the outermost position, so that all other capabilities see the guard's changes."""
        return CapabilityOrdering(position="outermost")

    async def for_run(self, ctx: RunContext[Any]) -> GuardCapability:
        """Return a separate capability for each run."""
        capability = copy.copy(self)
        capability._run = self._create_run(self._name or (ctx.agent.name if ctx.agent is not None else None))
        capability._rejection_count = 0
        return capability

    async def prepare_tools(
        self, ctx: RunContext[Any], tool_defs: list[ToolDefinition]
    ) -> list[ToolDefinition]:
        """Remove the disabled tools."""
        del ctx
        return self._run.register_tools(tool_defs)

    async def prepare_output_tools(
        self, ctx: RunContext[Any], tool_defs: list[ToolDefinition]
    ) -> list[ToolDefinition]:
        """Register the tools that produce the agent's output, so that their calls are known."""
        del ctx
        return self._run.register_tools(tool_defs)

    async def before_node_run(self, ctx: RunContext[Any], *, node: Any) -> Any:
        """Judge a turn before its tools run; retry with a correction if the guard rejects it."""
        if not isinstance(node, CallToolsNode):
            return node
        run, session = self._run, self._run.get_or_start_session(ctx.run_id, ctx.messages)
        if session.has_ended:
            return node
        is_first = not len(session)
        run.commit_before_response(session, ctx.messages)
        if is_first:  # the session starts with the first response, and no boundary precedes it
            session.start_turn(run.created_at)
        if self._rejection_count >= MAX_REJECTIONS:
            return node
        choice = await run.resolve_turn(session, node.model_response, partial(self._request_candidate, ctx))
        plan = choice.plan
        if plan is None:
            return _replace_node(choice, ctx, node)
        self._rejection_count += 1
        texts = await run.build_guard_texts(session, plan)
        return ModelRequestNode(run.build_retry_request(ctx.messages, texts))

    async def after_node_run(self, ctx: RunContext[Any], *, node: Any, result: Any) -> Any:
        """Commit a turn after its tools ran, and apply a due recovery."""
        session = self._run.session
        if session is None or session.has_ended or not isinstance(node, CallToolsNode):
            return result
        self._rejection_count = 0
        if isinstance(result, End):
            return await self._handle_end(ctx, session, result)
        if not isinstance(result, ModelRequestNode):
            return result
        parts = list(result.request.parts)
        self._run.commit_new_messages(session, [*ctx.messages, result.request])
        self._run.save_position(session, ctx.messages, parts)
        plan = session.check_boundary()
        if plan is None:
            self._run.raise_if_stopped(session)
            return result
        return ModelRequestNode(await self._run.apply_plan(session, plan, ctx.messages, parts))

    async def wrap_tool_execute(
        self,
        ctx: RunContext[Any],
        *,
        call: ToolCallPart,
        tool_def: ToolDefinition,
        args: dict[str, Any],
        handler: Callable[[dict[str, Any]], Awaitable[Any]],
    ) -> Any:
        """Execute a tool through the effect ledger, so that each effect happens once."""
        del tool_def
        session = self._run.get_or_start_session(ctx.run_id, ctx.messages)
        claim = session.begin_tool(call.tool_name, call.args_as_dict())
        if claim.decision is ExecutionDecision.REUSE:
            return claim.effect.result
        if claim.decision is ExecutionDecision.OUTCOME_UNKNOWN:
            return UNKNOWN_OUTCOME_MESSAGE

        def format_result(result: Any) -> tuple[str, bool | None]:
            return format_tool_result(call.tool_name, result), None

        try:
            reads = run_with_read_retry(
                session, claim, args, format_result, control_exceptions=_NOT_EXECUTED_ERRORS
            )
            result = await _sync_async.run_async(reads, alimit_call(session, call.tool_name, handler))
        except ToolTimeout as error:
            raise ToolFailed(str(error)) from None
        except _NOT_EXECUTED_ERRORS:
            session.end_tool(claim, "", is_refused=True)
            raise
        session.end_tool(claim, format_tool_result(call.tool_name, result))
        return result

    async def after_model_request(
        self, ctx: RunContext[Any], *, request_context: Any, response: ModelResponse
    ) -> ModelResponse:
        """Store the request of the turn as a template for further candidates."""
        del ctx
        self._request_context = request_context
        return response

    async def _request_candidate(self, ctx: RunContext[Any], variant: SampleVariant) -> ModelResponse:
        return await request_candidate(ctx, self._request_context, variant, self._models)

    async def after_run(self, ctx: RunContext[Any], *, result: Any) -> Any:
        """End the session of a run whose last response was streamed to the caller."""
        messages = result.all_messages()  # the context has the messages of the start of the run
        session = self._run.get_or_start_session(ctx.run_id, messages)
        if not session.has_ended:
            self._run.commit_new_messages(session, messages)
            session.end(is_refusable=False)
        return result

    async def _handle_end(self, ctx: RunContext[Any], session: Session, result: Any) -> Any:
        """Accept the end of the run, or continue the run with a model request."""
        self._run.commit_new_messages(session, ctx.messages)
        plan = await aend_session(session)
        if plan is None:
            return result
        return ModelRequestNode(await self._run.apply_plan(session, plan, ctx.messages, ()))

    def _create_run(self, name: str | None) -> PydanticGuardedRun:
        return PydanticGuardedRun(self._guard, name or "assistant", ask=self._ask, on_run=self._on_run)


def _replace_node(choice: ResolvedTurn, ctx: RunContext[Any], node: Any) -> Any:
    """Return the node of the selected response; replace the response in the history."""
    if choice.response is node.model_response and not choice.is_repaired:
        return node
    response = apply_repaired_turn(choice.response, choice.turn) if choice.is_repaired else choice.response
    ctx.messages[-1] = response
    return CallToolsNode(response)

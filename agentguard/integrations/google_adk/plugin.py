"""Google ADK: the guard as a plugin of the runner.

::

    runner = InMemoryRunner(agent=agent, app_name="app", plugins=[guard.google_adk()])

The plugin sees the request before a model call and the response after it. ADK resends the history of the
session with each request. Therefore:

- The plugin assigns a request to a run by its history (`agentguard.intercept`).
- A rollback omits turns from every later request. The events of the session stay.
- The plugin judges a response before ADK calls its tools. If it rejects the response, it repeats the request.

The plugin must be the first one: if it replaces a response, ADK skips later plugins and the agent's own
callbacks.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from agentguard import _sync_async
from agentguard.errors import MissingExtra, RecoveryError
from agentguard.runtime.session import Session

try:
    from google.adk.agents.callback_context import CallbackContext
    from google.adk.models.base_llm import BaseLlm
    from google.adk.models.llm_request import LlmRequest
    from google.adk.models.llm_response import LlmResponse
    from google.adk.plugins.base_plugin import BasePlugin
except ImportError as error:
    raise MissingExtra("Google ADK", "google-adk") from error

from agentguard.integrations.google_adk.contents import (
    ContentHistory,
    build_response,
    build_response_payload,
    build_tool_definitions,
    read_system_prompt,
    remove_tools,
)
from agentguard.intercept.chat_exchange import ChatExchange
from agentguard.intercept.interceptor import Interceptor

if TYPE_CHECKING:
    from agentguard.guard import Guard


class GuardPlugin(BasePlugin):  # type: ignore[misc, unused-ignore]
    """Plugin that guards the model calls of all agents of a runner; created by `Guard.google_adk`.

    Args:
        guard: the guard whose rules apply.
        name: name of the agents in the trajectory.
        on_run: called with the session of each run when the run begins.
        models: models by name, for candidates of a turn.
        max_conversations: maximum number of conversations in memory.
    """

    def __init__(
        self,
        guard: Guard,
        *,
        name: str = "assistant",
        on_run: Callable[[Session], None] | None = None,
        models: Mapping[str, BaseLlm] | None = None,
        max_conversations: int = 1024,
    ) -> None:
        super().__init__(name="agentguard")
        self._interceptor = Interceptor(guard, agent=name, on_run=on_run, max_conversations=max_conversations)
        self._models = dict(models or {})
        self._calls: dict[tuple[str, str], _ModelCall] = {}

    async def before_model_callback(
        self, *, callback_context: CallbackContext, llm_request: LlmRequest
    ) -> LlmResponse | None:
        """Apply a due recovery to the request; return the guard's response if the guard has ended the run."""
        key = _build_key(callback_context)
        if (last := self._calls.pop(key, None)) is not None:
            last.exchange.cancel()
        call = _ModelCall(self._interceptor, llm_request, self._models)
        if call.exchange.final_text is not None:
            return call.build_final_response()
        call.edit_request()
        self._calls[key] = call
        return None

    async def after_model_callback(
        self, *, callback_context: CallbackContext, llm_response: LlmResponse
    ) -> LlmResponse | None:
        """Return the accepted response; repeat the request while the guard rejects the response."""
        if llm_response.partial:
            return None
        call = self._calls.pop(_build_key(callback_context), None)
        if call is None:
            return None
        return await call.resolve(llm_response, callback_context.get_invocation_context())

    async def on_model_error_callback(
        self, *, callback_context: CallbackContext, llm_request: LlmRequest, error: Exception
    ) -> LlmResponse | None:
        """Release the conversation of a request that failed; a retry continues it."""
        del llm_request, error
        call = self._calls.pop(_build_key(callback_context), None)
        if call is not None:
            call.exchange.cancel()
        return None


class _ModelCall:
    """Model call of an agent.

    Args:
        interceptor: the interceptor.
        request: the request, which `edit_request` changes.
        models: models by name.
    """

    def __init__(self, interceptor: Interceptor, request: LlmRequest, models: Mapping[str, BaseLlm]) -> None:
        self._llm_request, self._models = request, models
        self._history = ContentHistory(request.contents)
        self._config = request.config
        self._body: dict[str, Any] = {
            "model": request.model or "",
            "system": read_system_prompt(request.config),
            "messages": self._history.messages,
            "tools": build_tool_definitions(request.config),
        }
        self.exchange = ChatExchange(interceptor, self._body)
        self._responses: list[LlmResponse] = []
        self._payloads: list[dict[str, Any]] = []

    def edit_request(self) -> None:
        """Replace the contents and tools of the request if the guard has changed them."""
        body = self.exchange.body
        if body is not self._body:
            self._apply_body(self._llm_request, body)

    def build_final_response(self) -> LlmResponse:
        """Build the guard's response that ends the run."""
        message = {"role": "assistant", "content": self.exchange.final_text}
        return build_response({"choices": [{"message": message}]})

    async def resolve(self, response: LlmResponse, context: Any) -> LlmResponse | None:
        """Return the response to use instead of ``response``; None if it is accepted.

        Args:
            response: the model's complete response.
            context: ADK's ``InvocationContext`` of the call.
        """
        payload = self._record(response)
        if payload is None:
            self.exchange.cancel()
            return None

        async def request(body: dict[str, Any]) -> dict[str, Any]:
            context.increment_llm_call_count()
            model = self._models.get(body.get("model", ""), context.agent.canonical_model)
            payload = self._record(await self._request(model, body))
            if payload is None:
                raise RecoveryError("the response to a repeated request is not complete")
            return payload

        selected = await _sync_async.run_async(self.exchange.judge(payload), request)
        for candidate, candidate_response in zip(self._payloads, self._responses, strict=True):
            if candidate is selected:
                return None if candidate_response is response else candidate_response
        return build_response(selected)

    async def _request(self, model: BaseLlm, body: Mapping[str, Any]) -> LlmResponse:
        request = self._llm_request.model_copy(update={"config": self._config})
        self._apply_body(request, body)
        if (temperature := body.get("temperature")) is not None:
            request.config = request.config.model_copy(update={"temperature": temperature})
        request.model = model.model
        response: LlmResponse | None = None
        async for one in model.generate_content_async(request, stream=False):
            response = one
        if response is None:
            raise RecoveryError("the model returned no response to a repeated request")
        return response

    def _apply_body(self, request: LlmRequest, body: Mapping[str, Any]) -> None:
        request.contents = self._history.build_contents(body["messages"])
        enabled = {tool["function"]["name"] for tool in body.get("tools", ())}
        disabled = {tool["function"]["name"] for tool in self._body["tools"]} - enabled
        if disabled:
            request.config = remove_tools(self._config, disabled)

    def _record(self, response: LlmResponse) -> dict[str, Any] | None:
        payload = build_response_payload(self._history, response)
        if payload is not None:
            self._responses.append(response)
            self._payloads.append(payload)
        return payload


def _build_key(context: CallbackContext) -> tuple[str, str]:
    """Return the key of the open model call; parallel agents of an invocation have different names."""
    return context.invocation_id, context.agent_name

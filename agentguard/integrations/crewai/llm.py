"""CrewAI: the guard as a custom LLM around the LLM of an agent.

::

    agent = Agent(..., llm=guard.crewai(LLM("openai/gpt-5")), tools=[...])

An agent resends its messages with each call of its LLM, and runs the tools that the LLM requests. Therefore:

- The guard assigns a call to a run by its messages (`agentguard.intercept`).
- A rollback omits turns from every later call. The messages of the agent stay.
- The guard judges a response before the agent runs its tools.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from agentguard import _sync_async
from agentguard.errors import ConfigError, MissingExtra, RecoveryError
from agentguard.runtime.session import Session

try:
    from crewai.llms.base_llm import BaseLLM, call_stop_override
    from crewai.utilities.agent_utils import extract_tool_call_info
    from pydantic import PrivateAttr
except ImportError as error:
    raise MissingExtra("CrewAI", "crewai") from error

from agentguard.intercept.chat_exchange import ChatExchange, build_function_call, build_payload, read_message
from agentguard.intercept.interceptor import Interceptor

if TYPE_CHECKING:
    from agentguard.guard import Guard


def build_guarded_llm(
    guard: Guard,
    llm: BaseLLM,
    *,
    name: str = "assistant",
    on_run: Callable[[Session], None] | None = None,
    models: Mapping[str, BaseLLM] | None = None,
    max_conversations: int = 1024,
) -> GuardedLLM:
    """Return an LLM for ``Agent(llm=...)`` whose responses the guard judges.

    Args:
        guard: the guard whose rules apply; set by `Guard.crewai`.
        llm: the LLM that gets the requests. It must support function calls.
        name: name of the agent in the trajectory.
        on_run: called with the session of each run when the run begins.
        models: further LLMs by name, for candidates of a turn.
        max_conversations: maximum number of conversations in memory.

    Raises:
        ConfigError: the LLM does not support function calls.
    """
    if not getattr(llm, "supports_function_calling", lambda: False)():
        raise ConfigError(
            f"crewai: {llm.model} does not support function calls: use an LLM that does, or a custom loop"
        )
    interceptor = Interceptor(guard, agent=name, on_run=on_run, max_conversations=max_conversations)
    return GuardedLLM.wrap(interceptor, llm, dict(models or {}))


class GuardedLLM(BaseLLM):  # type: ignore[misc, unused-ignore]
    """LLM that returns accepted responses to agents; the inner LLM gets all other calls unchanged."""

    llm_type: str = "agentguard"
    _inner: Any = PrivateAttr()
    _interceptor: Any = PrivateAttr()
    _models: dict[str, Any] = PrivateAttr(default_factory=dict)

    @classmethod
    def wrap(cls, interceptor: Interceptor, inner: BaseLLM, models: Mapping[str, BaseLLM]) -> GuardedLLM:
        """Return a guarded LLM with the settings of the inner one."""
        guarded = cls(
            model=inner.model,
            provider=inner.provider,
            temperature=inner.temperature,
            stop=list(inner.stop),
            stream=inner.stream,
        )
        guarded._inner, guarded._interceptor, guarded._models = inner, interceptor, dict(models)
        return guarded

    def call(
        self,
        messages: Any,
        tools: Any = None,
        callbacks: Any = None,
        available_functions: Any = None,
        from_task: Any = None,
        from_agent: Any = None,
        response_model: Any = None,
    ) -> Any:
        """Return the accepted response: a text, or a list of calls that the agent runs."""
        options = {"callbacks": callbacks, "from_task": from_task, "from_agent": from_agent}
        if from_agent is None or available_functions or response_model is not None:
            more = {"available_functions": available_functions, "response_model": response_model}
            return self._inner.call(messages, tools=tools, **options, **more)
        agent_call = _AgentCall(self, messages, tools, options)
        return _sync_async.run_sync(agent_call.resolve(), agent_call.request)

    async def acall(
        self,
        messages: Any,
        tools: Any = None,
        callbacks: Any = None,
        available_functions: Any = None,
        from_task: Any = None,
        from_agent: Any = None,
        response_model: Any = None,
    ) -> Any:
        """Return the accepted response like `call`."""
        options = {"callbacks": callbacks, "from_task": from_task, "from_agent": from_agent}
        if from_agent is None or available_functions or response_model is not None:
            more = {"available_functions": available_functions, "response_model": response_model}
            return await self._inner.acall(messages, tools=tools, **options, **more)
        agent_call = _AgentCall(self, messages, tools, options)
        return await _sync_async.run_async(agent_call.resolve(), agent_call.arequest)

    @property
    def interceptor(self) -> Interceptor:
        """Return the interceptor with the runs."""
        interceptor: Interceptor = self._interceptor
        return interceptor

    def get_llm(self, body: Mapping[str, Any]) -> Any:
        """Return the LLM for a request: the inner one, or another one for a candidate."""
        model_name = body.get("model", self.model)
        if model_name != self.model and model_name not in self._models:
            raise RecoveryError(
                f"crewai: the policy uses the model {model_name}: add it to models={{name: llm}}"
            )
        llm = self._models.get(model_name, self._inner)
        temperature = body.get("temperature")
        return llm if temperature is None else llm.model_copy(update={"temperature": temperature})

    def supports_function_calling(self) -> bool:
        """Return True; `build_guarded_llm` has checked the inner LLM."""
        return True

    def supports_stop_words(self) -> bool:
        """Return whether the inner LLM supports stop words."""
        return bool(self._inner.supports_stop_words())

    def supports_multimodal(self) -> bool:
        """Return whether the inner LLM supports files."""
        return bool(self._inner.supports_multimodal())

    def get_context_window_size(self) -> int:
        """Return the context window of the inner LLM."""
        return int(self._inner.get_context_window_size())

    def get_token_usage_summary(self) -> Any:
        """Return the token usage of the inner LLM, including that of rejected responses."""
        return self._inner.get_token_usage_summary()


class _AgentCall:
    """Call of the LLM by an agent.

    Args:
        guarded: the guarded LLM.
        messages: messages of the agent; system prompts before the first other message are not part of the
            history.
        tools: definitions of the tools.
        options: further arguments of the call.
    """

    def __init__(self, guarded: GuardedLLM, messages: Any, tools: Any, options: Mapping[str, Any]) -> None:
        message_list = (
            [{"role": "user", "content": messages}] if isinstance(messages, str) else list(messages)
        )
        roles = [message.get("role") for message in message_list]
        start = next((place for place, role in enumerate(roles) if role != "system"), len(roles))
        self._guarded, self._system, self._options = guarded, message_list[:start], dict(options)
        self._responses: list[tuple[dict[str, Any], Any]] = []
        system = "\n\n".join(str(message.get("content") or "") for message in self._system)
        self._exchange = ChatExchange(
            guarded.interceptor,
            {
                "model": guarded.model,
                "system": system,
                "messages": message_list[start:],
                "tools": tools or [],
            },
        )

    def resolve(self) -> _sync_async.SharedBody[Any]:
        """Return the accepted response; yield requests for `request`, receive their payloads."""
        exchange = self._exchange
        if exchange.final_text is not None:
            return exchange.final_text
        try:
            payload = yield exchange.body
        except BaseException:
            exchange.cancel()
            raise
        selected = yield from exchange.judge(payload)
        for candidate, response in self._responses:
            if candidate is selected:
                return response
        message = read_message(selected)
        return message.get("tool_calls") or message["content"]

    def request(self, body: Mapping[str, Any]) -> dict[str, Any]:
        """Send a request to its LLM; return the payload of the response."""
        llm, messages, tools = self._read_request(body)
        with call_stop_override(llm, self._guarded.stop_sequences):
            return self._record(llm.call(messages, tools=tools, **self._options))

    async def arequest(self, body: Mapping[str, Any]) -> dict[str, Any]:
        """Send a request like `request`."""
        llm, messages, tools = self._read_request(body)
        with call_stop_override(llm, self._guarded.stop_sequences):
            return self._record(await llm.acall(messages, tools=tools, **self._options))

    def _read_request(self, body: Mapping[str, Any]) -> tuple[Any, list[Any], Any]:
        messages = [*self._system, *body["messages"]]
        return self._guarded.get_llm(body), messages, body.get("tools") or None

    def _record(self, response: Any) -> dict[str, Any]:
        payload = build_payload(_build_message(response))
        self._responses.append((payload, response))
        return payload


def _build_message(response: Any) -> dict[str, Any]:
    """Build the message of a response, as CrewAI adds it to the messages of the agent."""
    if not isinstance(response, list):
        return {"role": "assistant", "content": str(response)}
    call_infos = filter(None, map(extract_tool_call_info, response))
    calls = [build_function_call(id, name, arguments) for id, name, arguments in call_infos]
    return {"role": "assistant", "content": None, "tool_calls": calls}

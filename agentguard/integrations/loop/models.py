"""How a loop's model functions are called: with what they take of messages, tools and temperature."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

from agentguard.errors import ConfigError
from agentguard.intercept.chat_steps import Message, assistant_message, turn_of
from agentguard.recover.strategy import SampleVariant
from agentguard.trajectory.model import Step

Call = Callable[..., Any]


class Models:
    """The models of a loop besides its own, by name.

    Args:
        named: the functions.
        wanted: names that the policy asks for.

    Raises:
        ConfigError: one of those is not there.
    """

    def __init__(self, named: Mapping[str, Call] | None, wanted: frozenset[str]) -> None:
        self._named = dict(named or {})
        if missing := wanted - set(self._named):
            names = ", ".join(sorted(missing))
            raise ConfigError(f"run: the policy asks the model {names}: give models={{name: function}}")

    def request(
        self,
        call: Call,
        messages: Sequence[Message],
        tools: Sequence[Any],
        variant: SampleVariant | None = None,
    ) -> Callable[[], Any]:
        """What asks for a turn, or for a candidate of it.

        Args:
            call: the agent's own model.
            messages: what it is given.
            tools: those on offer, given if the function takes two arguments.
            variant: how a candidate is asked for; its temperature is given if the function takes one.
        """
        how = variant or SampleVariant()
        chosen = self._named[how.model] if how.model else call
        taken = _parameters(chosen)
        given: list[Any] = [
            [*messages, *([{"role": "user", "content": how.instruction}] if how.instruction else ())]
        ]
        if len([name for name in taken if name != "temperature"]) > 1:
            given.append(tools)
        warm = how.temperature is not None and "temperature" in taken
        return partial(chosen, *given, **({"temperature": how.temperature} if warm else {}))


def read(answer: Any) -> Step:
    """What a model function returned, as a turn whose tools have not run."""
    return turn_of(assistant_message(answer))


def _parameters(call: Call) -> list[str]:
    """Names of a function's parameters; one where they cannot be known."""
    try:
        return list(inspect.signature(call).parameters)
    except (TypeError, ValueError):
        return ["messages"]

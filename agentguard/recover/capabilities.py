"""Capabilities of an integration."""

from __future__ import annotations

from dataclasses import dataclass, fields


@dataclass(frozen=True, slots=True, kw_only=True)
class Capabilities:
    """Abilities of an integration to control a running agent.

    Attributes:
        send_message: add a message for the agent at a turn boundary.
        reject: discard the model's answer before it is committed, and request another.
        truncate: remove turns from the agent's messages.
        fork: restore the state saved before a step, with all its channels.
        compensate: run the undo functions of tools.
        disable_tools: remove tools from the agent.
        restart: restart the run with another initial input.
        repair: replace a field of a step with a corrected text and continue.
        sample: request several candidates of one turn from the same model or from others.
        escalate: ask a person and wait.
        stop: end the run.
    """

    send_message: bool = True
    reject: bool = False
    truncate: bool = False
    fork: bool = False
    compensate: bool = False
    disable_tools: bool = False
    restart: bool = False
    repair: bool = False
    sample: bool = False
    escalate: bool = False
    stop: bool = True

    def names(self) -> tuple[str, ...]:
        """Return the names of the capabilities that are True."""
        return tuple(one.name for one in fields(self) if getattr(self, one.name))


MODEL_LOOP_CAPABILITIES = Capabilities(
    reject=True, truncate=True, compensate=True, disable_tools=True, restart=True, repair=True, sample=True
)
"""Capabilities of an integration that controls the messages, the tools and the model calls of its agent."""

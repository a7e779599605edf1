"""The APIs that can be guarded, by their names in `agentguard.backends.protocols`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from agentguard.integrations.exchange.chat import Chat
from agentguard.integrations.exchange.chat_stream import ChatHold
from agentguard.integrations.exchange.dialect import Dialect
from agentguard.integrations.exchange.exchange import Exchange
from agentguard.integrations.exchange.hold import Hold
from agentguard.integrations.exchange.messages import Messages
from agentguard.integrations.exchange.messages_stream import MessagesHold
from agentguard.integrations.exchange.responses import Responses
from agentguard.integrations.exchange.responses_stream import ResponsesHold
from agentguard.integrations.exchange.wire import Wire


@dataclass(frozen=True, slots=True, kw_only=True)
class Guardable:
    """One API.

    Attributes:
        path: what the path of its requests ends with.
        dialect: how it says what a run is made of.
        hold: the class of what holds its streams back.
    """

    path: str
    dialect: Dialect
    hold: type[Hold]


APIS: Mapping[str, Guardable] = {
    "chat": Guardable(path="/chat/completions", dialect=Chat(), hold=ChatHold),
    "responses": Guardable(path="/responses", dialect=Responses(), hold=ResponsesHold),
    "messages": Guardable(path="/messages", dialect=Messages(), hold=MessagesHold),
}


def hold_of(exchange: Exchange, wire: Wire, *, everything: bool = False) -> Hold:
    """What holds back the streams of an exchange; see `Hold`."""
    everything = everything or exchange.session.rules.safety is not None  # what was seen is handed on
    made = next(api.hold for api in APIS.values() if api.dialect is exchange.dialect)
    return made(exchange, wire, everything=everything)

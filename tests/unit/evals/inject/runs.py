"""Source runs for injection: a run of a shop's agent, and generators of similar runs."""

from __future__ import annotations

import json
from typing import Any

from hypothesis import strategies as st

from agentguard.trajectory.formats.base import formats
from agentguard.trajectory.model import Annotation, Record

POLICY = (
    "You serve the customers of a shop. You must confirm every change with the customer before you make it."
)
TOOLS = ("get_order", "list_orders", "update_order", "cancel_order", "send_note")


def call(name: str, id: str, **arguments: Any) -> dict[str, Any]:
    """Return an assistant message with one call."""
    function = {"name": name, "arguments": json.dumps(arguments)}
    return {
        "role": "assistant",
        "content": None,
        "tool_calls": [{"id": id, "type": "function", "function": function}],
    }


def result(id: str, name: str, value: Any) -> dict[str, Any]:
    """Return a tool message."""
    text = value if isinstance(value, str) else json.dumps(value)
    return {"role": "tool", "tool_call_id": id, "name": name, "content": text}


def said(role: str, text: str) -> dict[str, Any]:
    """Return a message without a call."""
    return {"role": role, "content": text}


def tools() -> list[dict[str, Any]]:
    """Return the available tools."""
    text = {"type": "object", "properties": {"order_id": {"type": "string"}}}
    return [{"type": "function", "function": {"name": name, "parameters": text}} for name in TOOLS]


def record(
    messages: list[dict[str, Any]], *, failed: bool | None = False, group: str | None = "q 1"
) -> Record:
    """Return a passed run of chat messages."""
    data = {"id": "run-7", "messages": messages, "tools": tools()}
    (read,) = formats().get("openai_chat").parse(data, name="run-7")
    return Record(
        trajectory=read.trajectory,
        annotation=Annotation(failed=failed, group=group, answer="A118", extra={"reward": 1.0}),
    )


def shop() -> Record:
    """Return a run in which a customer changes the ship date of an order; it has every kind of turn."""
    order = {
        "order_id": "K77RQ2",
        "customer": "C5512",
        "amount": 245.75,
        "ships": "2031-03-14",
        "status": "open",
    }
    other = {
        "order_id": "K81TM9",
        "customer": "C5512",
        "amount": 310.25,
        "ships": "2031-03-20",
        "status": "open",
    }
    return record(
        [
            said("system", POLICY),
            said("user", "Hello, I am customer C5512. One of my orders must come a day later."),
            call("list_orders", "call_ab12cd34", customer="C5512"),
            result("call_ab12cd34", "list_orders", {"orders": [order, other]}),
            said(
                "assistant",
                "You have K77RQ2 over 245.75, shipping on 2031-03-14, and K81TM9. Which one is it?",
            ),
            said("user", "The first one. Ship it on 2031-03-15, please."),
            call("get_order", "call_ef56gh78", order_id="K77RQ2"),
            result("call_ef56gh78", "get_order", order),
            said("assistant", "Order K77RQ2 would ship on 2031-03-15. Shall I proceed?"),
            said("user", "Yes, go ahead."),
            call("update_order", "call_ij90kl12", order_id="K77RQ2", ships="2031-03-15"),
            result(
                "call_ij90kl12",
                "update_order",
                {"status": "changed", "order_id": "K77RQ2", "ships": "2031-03-15"},
            ),
            said("assistant", "Order K77RQ2 over 245.75 now ships on 2031-03-15."),
            said("user", "Thank you, that is all."),
        ]
    )


_CODES = st.sampled_from(["K77RQ2", "K81TM9", "C5512", "C5513", "red lamp", "blue lamp"])
_AMOUNTS = st.sampled_from(["245.50", "1,310", "88", "2031-03-14", "2031-03-15", "someone@shop.example"])
_TEXTS = st.builds(
    "{0} {1} and {2}, {3}".format,
    st.sampled_from(["About", "I see", "Shall I proceed with", "Everything is done for", "Yes,", "```\nrun"]),
    _CODES,
    _AMOUNTS,
    st.sampled_from(["please confirm?", "thanks.", "as you said.", "which is the one we had before."]),
)
_ARGUMENTS = st.dictionaries(
    st.sampled_from(["order_id", "item", "ships", "total"]),
    _CODES | _AMOUNTS | st.integers(1, 400) | st.lists(_CODES, max_size=2),
    max_size=3,
)
_RESULTS = st.sampled_from(["Error: item not found", "You see a red lamp.", "{}"]) | _TEXTS


@st.composite
def runs(draw: st.DrawFn) -> Record:
    """Generate runs of every shape: text, one or two calls per turn, JSON or text results, errors."""
    messages = [said("system", POLICY)] if draw(st.booleans()) else []
    messages.append(said("user", draw(_TEXTS)))
    for number in range(draw(st.integers(1, 7))):
        if draw(st.booleans()):
            messages.append(said(draw(st.sampled_from(["assistant", "assistant", "user"])), draw(_TEXTS)))
            continue
        calls, answers = [], []
        for i in range(draw(st.integers(1, 2))):
            name, arguments = draw(st.sampled_from(TOOLS)), draw(_ARGUMENTS)
            one = call(name, f"call_{number}_{i}", **arguments)
            calls += one["tool_calls"]
            echo = st.just({"order_id": "K90ZZ1", **arguments})
            if draw(st.integers(0, 9)):
                answers.append(result(f"call_{number}_{i}", name, draw(echo | _RESULTS)))
        text = draw(st.none() | _TEXTS)
        messages += [{"role": "assistant", "content": text, "tool_calls": calls}, *answers]
    return record(messages, group=draw(st.none() | st.just("q 1")))

"""Turns that `guard.py` plays: an agent of a warehouse reads or changes an order.

An earlier result named the order. The kinds of turns differ in the size of the tool results.
"""

from __future__ import annotations

import json
import random
from dataclasses import dataclass, replace

from agentguard.trajectory.model import Observation, Source, Step, ToolCall, ToolSpec, Trajectory

SIZES = {"small": 120, "2KB": 2_000, "20KB": 20_000, "unseen": 120, "text": 0}
"""Kinds of turns: characters that the tool returns. In ``unseen`` turns every call has a number that is
absent
from all earlier steps, so that the rules search all of them; ``text`` is an answer and the user's reply.
"""

_ORDER = {
    "type": "object",
    "properties": {
        "order_id": {"type": "string"},
        "count": {"type": "integer", "minimum": 0, "maximum": 5_000},
        "note": {"type": "string"},
    },
    "required": ["order_id"],
}
TOOLS = (
    ToolSpec(name="get_order", description="Look an order up.", parameters=_ORDER),
    ToolSpec(name="change_order", description="Change an order.", parameters=_ORDER),
    ToolSpec(name="find_parts", description="Find parts by kind and city.", parameters={"type": "object"}),
)
_PARTS = ("bolt", "valve", "hinge", "gasket", "washer")
_CITIES = ("Lyon", "Graz", "Turin", "Ghent", "Malmo", "Porto")
_SAID = (
    "Next is order {order}, of which the customer wants to know whether it can still be changed.",
    "I look at order {order} before I go on with the others.",
    "Order {order} has {count} pieces; I check what is in stock for it.",
)
_ANSWER = (
    "Here is what I found for order {order}:\n- **{part}** from {city}, {count} pieces\n- **valve** from "
    "Lyon, 12 pieces\nBoth parts are in stock. The parcel leaves the warehouse in {city} first and takes "
    "about two days from there, the rest follows. Changing the place of delivery is possible until then. "
    "Shall I go on?"
)
_REPLY = "Yes, please go ahead with order {order}, and tell me about {following}, too."


@dataclass(frozen=True, slots=True, kw_only=True)
class Turn:
    """One turn as an integration sees it: the proposal, the turn with its tool results, the user's reply."""

    proposed: Step
    whole: Step
    reply: Step | None = None


def turns(kind: str, count: int, *, seed: int) -> list[Turn]:
    """Return turns of one kind; equal seeds give equal turns."""
    rng = random.Random(seed)
    made, order = [], "W1000001"
    for _ in range(count):
        following = f"W{rng.randrange(10**6, 10**7)}"
        made.append(
            _build_message_turn(rng, order, following)
            if kind == "text"
            else _called(rng, kind, order, following)
        )
        order = following
    return made


def _called(rng: random.Random, kind: str, order: str, following: str) -> Turn:
    tool, pieces = rng.choice(("get_order", "change_order")), rng.randrange(1, 90)
    arguments = {"order_id": order, "count": pieces, "note": "as agreed"}
    if kind == "unseen":
        arguments["count"] = rng.randrange(100, 5_000)
    call = ToolCall(id=f"c{order}", name=tool, arguments=arguments)
    content = rng.choice(_SAID).format(order=order, count=pieces)
    turn = Step(index=0, source=Source.AGENT, agent="clerk", content=content, tool_calls=(call,))
    seen = Observation(content=_result(rng, SIZES[kind], following), call_id=call.id, tool=tool)
    return Turn(proposed=turn, whole=replace(turn, observations=(seen,)))


def _build_message_turn(rng: random.Random, order: str, following: str) -> Turn:
    about = {"part": rng.choice(_PARTS), "city": rng.choice(_CITIES), "count": rng.randrange(1, 90)}
    content = _ANSWER.format(order=order, **about)
    turn = Step(index=0, source=Source.AGENT, agent="clerk", content=content)
    reply = _REPLY.format(order=order, following=following)
    return Turn(
        proposed=turn, whole=turn, reply=Step(index=0, source=Source.USER, agent="user", content=reply)
    )


def _result(rng: random.Random, size: int, following: str) -> str:
    parts: list[str] = []
    while sum(map(len, parts)) < size - 60:
        part = {
            "part": f"{rng.choice(_PARTS)}-{rng.randrange(1_000, 9_999)}",
            "city": rng.choice(_CITIES),
            "price": round(rng.uniform(1, 400), 2),
            "note": rng.choice(("packed by hand", "leaves with the first parcel", "needs a second look", "")),
        }
        parts.append(json.dumps(part))
    return f'{{"state": "open", "next": "{following}", "parts": [{", ".join(parts)}]}}'


def meta() -> Trajectory:
    """Return the metadata of the run."""
    return Trajectory(
        id="r",
        format="event_log",
        task="Help the customers of the warehouse with their orders and parts, beginning with W1000001.",
        steps=(),
        tools=TOOLS,
        system_prompts={"": "You help customers of a warehouse. Confirm every change with them. " * 20},
    )

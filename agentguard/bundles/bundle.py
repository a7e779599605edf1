"""Content of a bundle, and its conversion to members of the archive."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

import orjson
from pydantic import TypeAdapter, ValidationError

from agentguard.errors import BundleError, FormatError
from agentguard.localize.base import Diagnosis
from agentguard.localize.serialization import encode_diagnosis
from agentguard.trajectory.event_log.recorder import RunAssembler, build_events
from agentguard.trajectory.model import Record, Trajectory
from agentguard.verdict import upgrade_verdict


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordedCall:
    """Call of a model or a tool with its outcome.

    Attributes:
        name: ``model``, or the name of the tool.
        request: messages and tools of a model call; arguments of a tool call; None if it is unknown.
        result: the model's answer, or the tool's result as text; None if the call raised an exception.
        error_type: name of the exception's class; empty if the call returned.
        error: text of the exception.
        effect: effect class of the tool; empty for a model.
    """

    name: str
    request: dict[str, Any] | None
    result: Any = None
    error_type: str = ""
    error: str = ""
    effect: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordedEffect:
    """Effect of a tool call in the ledger of a run.

    Attributes:
        tool, arguments: the call.
        step: index of the step with the call.
        effect: effect class of the tool.
        state: state of the effect, see `agentguard.recover.effect_store.EffectState`.
    """

    tool: str
    arguments: dict[str, Any]
    step: int
    effect: str
    state: str


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordedSnapshot:
    """Saved state of the environment of the tools.

    Attributes:
        model_calls, tool_calls: number of calls before the state.
        state: the state as JSON data.
    """

    model_calls: int
    tool_calls: int
    state: Any


@dataclass(frozen=True, slots=True, kw_only=True)
class Bundle:
    """Recorded run that a replay can repeat.

    Attributes:
        trajectory: the run.
        model_calls, tool_calls: calls in the order in which they began.
        effects: ledger of the guard at the end; empty if the recording had no session of the run.
        snapshots: saved states of the environment, in order; empty if the agent does not bind it.
        diagnosis: diagnosis of the run as JSON data, without its timing.
        expectations: expected properties of a replay: ``verdict`` of the diagnosis, and ``error``, the class
            of the exception with which the agent ends the run, if it raises one.
        redaction_patterns: additional patterns of secrets by kind, for the writer and for a replay.
    """

    trajectory: Trajectory
    model_calls: tuple[RecordedCall, ...] = ()
    tool_calls: tuple[RecordedCall, ...] = ()
    effects: tuple[RecordedEffect, ...] = ()
    snapshots: tuple[RecordedSnapshot, ...] = ()
    diagnosis: Mapping[str, Any] = field(default_factory=dict)
    expectations: Mapping[str, str] = field(default_factory=dict)
    redaction_patterns: Mapping[str, str] = field(default_factory=dict)

    @property
    def has_requests(self) -> bool:
        """False if the bundle has answers of the model whose requests are unknown."""
        return all(call.request is not None for call in self.model_calls)


_CALLS = TypeAdapter(tuple[RecordedCall, ...])
_EFFECTS = TypeAdapter(tuple[RecordedEffect, ...])
_SNAPSHOTS = TypeAdapter(tuple[RecordedSnapshot, ...])
_OBJECT = TypeAdapter(dict[str, Any])
_TEXTS = TypeAdapter(dict[str, str])
_EVENTS = TypeAdapter(list[dict[str, Any]])
MEMBER_TYPES: Mapping[str, TypeAdapter[Any]] = {
    "diagnosis.json": _OBJECT,
    "effects.json": _EFFECTS,
    "events.json": _EVENTS,
    "expectations.json": _TEXTS,
    "model_calls.json": _CALLS,
    "snapshots.json": _SNAPSHOTS,
    "tool_calls.json": _CALLS,
}

OPTIONAL_MEMBERS = frozenset({"effects.json", "snapshots.json"})
"""Members that a bundle without their content does not have."""


def build_event_log(trajectory: Trajectory) -> bytes:
    """Return the event log of a run as a JSON array with sorted keys."""
    return encode_json(list(build_events(Record(trajectory=trajectory))))


def encode_json(value: Any) -> bytes:
    """Return JSON with sorted keys; equal values have equal bytes."""
    return orjson.dumps(value, option=orjson.OPT_SORT_KEYS)


def encode_bundle_diagnosis(diagnosis: Diagnosis) -> dict[str, Any]:
    """Return a diagnosis as JSON data without its timing, which differs on each machine."""
    data = encode_diagnosis(diagnosis)
    data.pop("timing", None)
    return data


def encode_members(bundle: Bundle) -> dict[str, Any]:
    """Return the members of a bundle as JSON data, by name."""
    optional = {
        "effects.json": encode_effects(bundle.effects),
        "snapshots.json": [asdict(snapshot) for snapshot in bundle.snapshots],
    }
    return {
        **{name: values for name, values in optional.items() if values},
        "diagnosis.json": dict(bundle.diagnosis),
        "events.json": orjson.loads(build_event_log(bundle.trajectory)),
        "expectations.json": dict(bundle.expectations),
        "model_calls.json": [asdict(call) for call in bundle.model_calls],
        "tool_calls.json": [asdict(call) for call in bundle.tool_calls],
    }


def encode_effects(effects: Iterable[RecordedEffect]) -> list[dict[str, Any]]:
    """Return effects as JSON data."""
    return [asdict(effect) for effect in effects]


def decode_members(members: Mapping[str, bytes], file: str) -> Bundle:
    """Build a bundle from its members. Raises BundleError that names file and member."""
    values = {name: _decode_member(name, members[name], file) for name in MEMBER_TYPES if name in members}
    return Bundle(
        trajectory=_decode_events(values["events.json"], file),
        model_calls=values["model_calls.json"],
        tool_calls=values["tool_calls.json"],
        effects=values.get("effects.json", ()),
        snapshots=values.get("snapshots.json", ()),
        diagnosis=_upgrade_verdict(values["diagnosis.json"]),
        expectations=_upgrade_verdict(values["expectations.json"]),
    )


def _upgrade_verdict(values: dict[str, Any]) -> dict[str, Any]:
    verdict = values.get("verdict")
    return values | {"verdict": upgrade_verdict(verdict)} if isinstance(verdict, str) else values


def _decode_member(name: str, data: bytes, file: str) -> Any:
    try:
        return MEMBER_TYPES[name].validate_json(data)
    except ValidationError as error:
        first = error.errors(include_input=False, include_url=False)[0]
        place = ".".join(map(str, first["loc"])) or None
        raise BundleError(f"member {name}: {first['msg']}", file=file, field=place) from None


def _decode_events(events: list[dict[str, Any]], file: str) -> Trajectory:
    assembler, records = RunAssembler(), []
    for position, event in enumerate(events):
        try:
            record = assembler.apply(event)
        except FormatError as error:
            raise BundleError(
                f"member events.json: {error.reason}", file=file, record=position, field=error.field
            ) from None
        if record is not None:
            records.append(record)
    if len(records) != 1 or assembler.state is not None:
        raise BundleError("member events.json: expected one finished run", file=file)
    return records[0].trajectory

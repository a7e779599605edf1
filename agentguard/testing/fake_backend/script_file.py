"""Script files of the fake backend: parsed YAML or JSON, the input of ``agentguard chaos serve``.

::

    version: 1
    seed: 7
    words: 20
    known: {"capital of France": Paris}
    marks:                                    # requests with [[flaky]] anywhere in their body
      flaky: [reset, {status: {status: 503, retry_after: "1"}}, ok]
    script: [{stall: {tokens: 3}}, ok]        # the others, in turn; or instead of it:
    schedule: [{ok: {}, weight: 9}, {truncate: {framing: close}, weight: 1}]
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any, Final

from pydantic import TypeAdapter, ValidationError

from agentguard.errors import ConfigError
from agentguard.testing.fake_backend import faults as fault_types
from agentguard.testing.fake_backend.faults import InjectedFault
from agentguard.testing.fake_backend.script import (
    FaultSchedule,
    MarkScript,
    RecordedRequest,
    Script,
    build_script,
)
from agentguard.testing.fake_backend.server import FakeBackend

FAULT_TYPES: Final[dict[str, type[InjectedFault]]] = {
    "ok": fault_types.Ok,
    "refuse": fault_types.Refuse,
    "reset": fault_types.Reset,
    "truncate": fault_types.Truncate,
    "hang": fault_types.Hang,
    "stall": fault_types.Stall,
    "beat": fault_types.HeartbeatOnly,
    "trickle": fault_types.Trickle,
    "status": fault_types.StatusFault,
    "junk": fault_types.InvalidResponse,
    "corrupt": fault_types.Corrupt,
    "huge": fault_types.Huge,
    "error_event": fault_types.ErrorEvent,
    "raw": fault_types.Raw,
}
"""Fault types by their name in a document."""

_DOCUMENT_KEYS: Final = frozenset({"version", "seed", "words", "known", "marks", "script", "schedule"})


@dataclass(frozen=True, slots=True)
class FallbackScript:
    """Script that uses the mark script for requests with a known mark, and another script for the others."""

    marked: MarkScript
    fallback: Script

    def __call__(self, request: RecordedRequest) -> InjectedFault:
        """Return the fault for a request."""
        return self.marked(request) if request.key in self.marked.table else self.fallback(request)


def build_backend(document: object, *, port: int = 0, seed: int | None = None) -> FakeBackend:
    """Return the backend that a document describes.

    Args:
        document: parsed YAML or JSON; None describes a backend without faults.
        port: port to listen on; 0 lets the system choose.
        seed: overrides the seed of the document.

    Raises:
        ConfigError: the message names the invalid part.
    """
    if document is None:
        document = {}
    if not isinstance(document, Mapping):
        raise ConfigError("the script must be a mapping")
    unknown = sorted(str(key) for key in document if key not in _DOCUMENT_KEYS)
    if unknown:
        raise ConfigError(
            f"unknown keys: {', '.join(unknown)}; there are: {', '.join(sorted(_DOCUMENT_KEYS))}"
        )
    if document.get("version", 1) != 1:
        raise ConfigError("version must be 1")
    word_count, known_answers = document.get("words", 8), document.get("known")
    if type(word_count) is not int or not 1 <= word_count <= 1_000_000:
        raise ConfigError("words must be an integer from 1 to 1000000")
    if known_answers is not None and not (
        isinstance(known_answers, Mapping) and all(isinstance(v, str) for v in known_answers.values())
    ):
        raise ConfigError("known must map questions to answers, as strings")
    return FakeBackend(
        _parse_script(document, seed), word_count=word_count, known_answers=known_answers, port=port
    )


def parse_fault(value: object, location: str) -> InjectedFault:
    """Return the fault for a name, or for a mapping of one name to its options.

    Raises:
        ConfigError: the name or an option is invalid; the message begins with ``location``.
    """
    name, options = value, None
    if isinstance(value, Mapping) and len(value) == 1:
        ((name, options),) = value.items()
    kind = FAULT_TYPES.get(name) if isinstance(name, str) else None
    if kind is None:
        raise ConfigError(f"{location}: unknown fault; there are: {', '.join(sorted(FAULT_TYPES))}")
    options = {} if options is None else options
    names = [field.name for field in fields(kind)]
    if not isinstance(options, Mapping) or not set(options) <= set(names):
        raise ConfigError(f"{location}: {name} has the options {', '.join(names)}")
    try:
        fault: InjectedFault = TypeAdapter(kind).validate_python(options)
    except ValidationError as error:
        first = error.errors(include_input=False, include_url=False)[0]
        path = ".".join(map(str, (location, name, *first["loc"])))
        raise ConfigError(f"{path}: {first['msg']}") from None
    except ConfigError as error:
        raise ConfigError(f"{location}: {error}") from None
    return fault


def _parse_script(document: Mapping[Any, Any], seed: int | None) -> Script | InjectedFault:
    if "script" in document and "schedule" in document:
        raise ConfigError("script and schedule exclude each other")
    rest: Script | InjectedFault = fault_types.Ok()
    if "script" in document:
        faults = _parse_faults(document["script"], "script")
        rest = faults[0] if len(faults) == 1 else build_script(faults)
    elif "schedule" in document:
        rest = _parse_schedule(document["schedule"], document.get("seed", 0) if seed is None else seed)
    marks = document.get("marks")
    if marks is None:
        return rest
    if not isinstance(marks, Mapping) or not marks:
        raise ConfigError("marks must map names to faults")
    table = {str(name): _parse_faults(faults, f"marks.{name}") for name, faults in marks.items()}
    return FallbackScript(MarkScript(table), build_script(rest))


def _parse_faults(value: object, location: str) -> list[InjectedFault]:
    if not isinstance(value, list):
        return [parse_fault(value, location)]
    return [parse_fault(one, f"{location}[{n}]") for n, one in enumerate(value)]


def _parse_schedule(value: object, seed: object) -> FaultSchedule:
    if type(seed) is not int:
        raise ConfigError("seed must be an integer")
    if not isinstance(value, list):
        raise ConfigError("schedule must be a list of faults, each with its weight")
    weights: dict[InjectedFault, float] = {}
    for n, entry in enumerate(value):
        location = f"schedule[{n}]"
        weight = entry.get("weight", 1) if isinstance(entry, Mapping) else 1
        if isinstance(weight, bool) or not isinstance(weight, int | float):
            raise ConfigError(f"{location}.weight must be a number")
        fault = {k: v for k, v in entry.items() if k != "weight"} if isinstance(entry, Mapping) else entry
        weights[parse_fault(fault, location)] = float(weight)
    return FaultSchedule(weights, seed=seed)

"""A script as a document, for those who write no Python: what ``agentguard chaos`` reads.

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
from agentguard.testing.fake_backend.script import Marked, RecordedRequest, Schedule, Script, script_of
from agentguard.testing.fake_backend.server import FaultBackend

KINDS: Final[dict[str, type[InjectedFault]]] = {
    "error_event" if kind is fault_types.ErrorEvent else name.lower(): kind
    for name, kind in vars(fault_types).items()
    if isinstance(kind, type) and issubclass(kind, InjectedFault) and kind is not InjectedFault
}
"""Faults by the name that they have in a document."""

_KNOWN: Final = frozenset({"version", "seed", "words", "known", "marks", "script", "schedule"})


@dataclass(frozen=True, slots=True)
class Either:
    """The script of a mark for requests that have one in the table; another script for the others."""

    marked: Marked
    rest: Script

    def __call__(self, seen: RecordedRequest) -> InjectedFault:
        """The fault of a request."""
        return self.marked(seen) if seen.key in self.marked.table else self.rest(seen)


def backend_of(document: object, *, port: int = 0, seed: int | None = None) -> FaultBackend:
    """A backend as a document describes it.

    Args:
        document: parsed YAML or JSON; None describes a backend without faults.
        port: to listen on; 0 lets the system choose.
        seed: in place of the document's.

    Raises:
        ConfigError: names the part that is wrong.
    """
    if document is None:
        document = {}
    if not isinstance(document, Mapping):
        raise ConfigError("the script must be a mapping")
    unknown = sorted(str(key) for key in document if key not in _KNOWN)
    if unknown:
        raise ConfigError(f"unknown: {', '.join(unknown)}; there are: {', '.join(sorted(_KNOWN))}")
    if document.get("version", 1) != 1:
        raise ConfigError("version must be 1")
    words, known = document.get("words", 8), document.get("known")
    if type(words) is not int or not 1 <= words <= 1_000_000:
        raise ConfigError("words must be a whole number from 1 on")
    if known is not None and not (
        isinstance(known, Mapping) and all(isinstance(v, str) for v in known.values())
    ):
        raise ConfigError("known must map what is asked to what is answered")
    return FaultBackend(_script(document, seed), words=words, known=known, port=port)


def fault_of(given: object, where: str) -> InjectedFault:
    """A fault from its name, or from one name with its options. Raises ConfigError."""
    name, options = given, None
    if isinstance(given, Mapping) and len(given) == 1:
        ((name, options),) = given.items()
    kind = KINDS.get(name) if isinstance(name, str) else None
    if kind is None:
        raise ConfigError(f"{where}: no fault of that name; there are: {', '.join(sorted(KINDS))}")
    options = {} if options is None else options
    names = [one.name for one in fields(kind)]
    if not isinstance(options, Mapping) or not set(options) <= set(names):
        raise ConfigError(f"{where}: {name} has the options {', '.join(names)}")
    try:
        made: InjectedFault = TypeAdapter(kind).validate_python(options)
    except ValidationError as error:
        first = error.errors(include_input=False, include_url=False)[0]
        path = ".".join(map(str, (where, name, *first["loc"])))
        raise ConfigError(f"{path}: {first['msg']}") from None
    except ConfigError as error:
        raise ConfigError(f"{where}: {error}") from None
    return made


def _script(document: Mapping[Any, Any], seed: int | None) -> Script | InjectedFault:
    if "script" in document and "schedule" in document:
        raise ConfigError("give script or schedule, not both")
    rest: Script | InjectedFault = fault_types.Ok()
    if "script" in document:
        faults = _faults(document["script"], "script")
        rest = faults[0] if len(faults) == 1 else script_of(faults)
    elif "schedule" in document:
        rest = _schedule(document["schedule"], document.get("seed", 0) if seed is None else seed)
    marks = document.get("marks")
    if marks is None:
        return rest
    if not isinstance(marks, Mapping) or not marks:
        raise ConfigError("marks must map names to faults")
    table = {str(name): _faults(faults, f"marks.{name}") for name, faults in marks.items()}
    return Either(Marked(table), script_of(rest))


def _faults(given: object, where: str) -> list[InjectedFault]:
    if not isinstance(given, list):
        return [fault_of(given, where)]
    return [fault_of(one, f"{where}[{n}]") for n, one in enumerate(given)]


def _schedule(given: object, seed: object) -> Schedule:
    if type(seed) is not int:
        raise ConfigError("seed must be a whole number")
    if not isinstance(given, list):
        raise ConfigError("schedule must be a list of faults, each with its weight")
    weights: dict[InjectedFault, float] = {}
    for n, one in enumerate(given):
        where = f"schedule[{n}]"
        weight = one.get("weight", 1) if isinstance(one, Mapping) else 1
        if isinstance(weight, bool) or not isinstance(weight, int | float):
            raise ConfigError(f"{where}.weight must be a number")
        rest = {k: v for k, v in one.items() if k != "weight"} if isinstance(one, Mapping) else one
        weights[fault_of(rest, where)] = float(weight)
    return Schedule(weights, seed=seed)

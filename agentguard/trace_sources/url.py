"""Parser of addresses of traces: ``phoenix://PROJECT?since=2d&limit=50``."""

from __future__ import annotations

import re
import time
from datetime import UTC, datetime
from pathlib import Path
from urllib.parse import parse_qsl, unquote

from agentguard.errors import ConfigError
from agentguard.plugins import format_unknown_name
from agentguard.trace_sources.base import TraceQuery

SOURCES = ("langfuse", "langsmith", "phoenix")
# A path object merges the slashes, and the command line may pass the address as a path.
_URL = re.compile(
    rf"(?P<source>{'|'.join(SOURCES)}):/{{0,2}}(?P<project>[^?]*)(?:\?(?P<query>.*))?", re.DOTALL
)
_SCHEME = re.compile(r"([a-z][a-z0-9+.-]+):/")
_DURATION = re.compile(r"(\d{1,6})([smhdw])")
_UNIT_SECONDS = {"s": 1, "m": 60, "h": 3600, "d": 86_400, "w": 604_800}
_PARAMETERS = ("since", "until", "limit", "resume")


def is_trace_url(text: str) -> bool:
    """Return whether ``text`` has the form of an address of traces; the product may be unknown."""
    return _URL.fullmatch(text) is not None or _SCHEME.match(text) is not None


def format_trace_url(text: str) -> str:
    """Return an address of traces with the two slashes that a path object merges; other text unchanged."""
    match = _URL.fullmatch(text)
    if match is None or not match["project"]:
        return text
    query = "" if match["query"] is None else f"?{match['query']}"
    return f"{match['source']}://{match['project']}{query}"


def parse_trace_url(text: str, *, now: float | None = None) -> TraceQuery:
    """Return the query of an address ``SOURCE://PROJECT?since=…&until=…&limit=…&resume=FILE``.

    Args:
        text: the address; the project and all parameters are optional.
        now: current time in epoch seconds, from which durations count.

    Raises:
        ConfigError: a parameter is unknown or invalid.
    """
    match = _URL.fullmatch(text)
    if match is None:
        scheme = _SCHEME.match(text)
        if scheme is not None:
            known = format_unknown_name(scheme[1], SOURCES)
            raise ConfigError(
                f"no source of traces named {known} (object storage is read with --batch-output)"
            )
        raise ConfigError(f"{text!r} is not an address of traces; write {SOURCES[0]}:?since=2d")
    parameters = dict(parse_qsl(match["query"] or "", keep_blank_values=True))
    if unknown := sorted(set(parameters) - set(_PARAMETERS)):
        raise ConfigError(f"{text}: unknown parameter {unknown[0]!r}; there are: {', '.join(_PARAMETERS)}")
    current = time.time() if now is None else now
    since, until = (_parse_time(parameters.get(name), name, current) for name in ("since", "until"))
    if since is not None and until is not None and since >= until:
        raise ConfigError(f"{text}: since is not before until")
    resume = parameters.get("resume")
    return TraceQuery(
        source=match["source"],
        project=unquote(match["project"]).strip("/") or None,
        since=since,
        until=until,
        limit=_parse_limit(parameters.get("limit")),
        resume=Path(resume) if resume else None,
    )


def _parse_time(text: str | None, name: str, now: float) -> float | None:
    """Return epoch seconds of a duration before now, such as ``2d``, or of a time in ISO 8601."""
    if text is None:
        return None
    if duration := _DURATION.fullmatch(text):
        return now - int(duration[1]) * _UNIT_SECONDS[duration[2]]
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        raise ConfigError(f"{name}={text} is neither a duration (2d, 36h) nor a time (2026-03-04)") from None
    return (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp()


def _parse_limit(text: str | None) -> int | None:
    if text is None:
        return None
    if not text.isascii() or not text.isdigit() or not 0 < int(text[:10]) <= 1_000_000_000:
        raise ConfigError(f"limit={text} is not a positive number")
    return int(text)

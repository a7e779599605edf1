"""Hashes of runs and questions, for cache keys of judge answers."""

from __future__ import annotations

import hashlib
from dataclasses import fields, is_dataclass
from typing import Any

from agentguard.judge.base import Question
from agentguard.trajectory.model import Trajectory


def hash_content(run: Trajectory) -> str:
    """Return the SHA-256 in hexadecimal of a run's content, without its id and format."""
    hasher = hashlib.sha256()
    for one in fields(run):
        if one.name not in ("id", "format"):
            _update_hash(hasher, one.name)
            _update_hash(hasher, getattr(run, one.name))
    return hasher.hexdigest()


def hash_question(question: Question) -> str:
    """Return the SHA-256 in hexadecimal of a question: its type, id, text, context and ordered options."""
    hasher = hashlib.sha256()
    _update_hash(hasher, type(question).__name__)
    for one in fields(question):
        _update_hash(hasher, getattr(question, one.name))
    return hasher.hexdigest()


def _update_hash(hasher: Any, value: Any) -> None:
    """Update the hash with a value, prefixed by type and length, so that no two values collide.

    The hash depends on the order of a mapping's keys, since a judge reads them in their order. The function
    is iterative, so that deep nesting cannot exhaust the stack.
    """
    pending = [value]
    while pending:
        one = pending.pop()
        if isinstance(one, str):
            _update_hash_text(hasher, "s", one)
        elif isinstance(one, (tuple, list)):
            hasher.update(b"l%d;" % len(one))
            pending.extend(reversed(one))
        elif is_dataclass(one) and not isinstance(one, type):
            hasher.update(b"d%d;" % len(fields(one)))
            pending.extend(getattr(one, field.name) for field in reversed(fields(one)))
        elif hasattr(one, "items"):
            pairs = [part for pair in one.items() for part in pair]
            hasher.update(b"m%d;" % len(pairs))
            pending.extend(reversed(pairs))
        else:
            _update_hash_text(hasher, type(one).__name__, repr(one))


def _update_hash_text(hasher: Any, kind: str, text: str) -> None:
    raw = text.encode("utf-8", "surrogatepass")
    hasher.update(f"{kind}{len(raw)};".encode())
    hasher.update(raw)

"""Redaction of secrets in a run.

The proxy redacts each event before it stores it, bundles redact each request, and `--redact` redacts exported
runs. A guard in code stores a run as the agent sees it, because it resumes the agent from the store.

A secret becomes a placeholder such as ``[redacted:api_key:1a2b]``. All occurrences of a secret have the same
placeholder, so a reader still sees that two values are equal. Its last part is 16 bits of a keyed hash:
enough to distinguish the secrets of a run, too few to recover one. The rest of the run stays unchanged.

Redaction covers values of well-known shapes (keys, tokens, private keys, passwords in URLs, e-mail addresses,
card numbers) and every value under a name such as ``password``. A secret that is found in one place is
replaced in the complete run.
"""

from __future__ import annotations

import hashlib
import re
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, is_dataclass, replace
from enum import Enum
from typing import Any, TypeVar

import re2

from agentguard._bounded_map import BoundedMap
from agentguard.errors import ConfigError, FormatError
from agentguard.trajectory._secret_patterns import (
    KIND_ALIASES,
    PROPAGATED_KINDS,
    SECRET_PATTERN,
    SENSITIVE_NAMES,
    collect_texts,
    is_luhn_valid,
    normalize_name,
)
from agentguard.trajectory.model import Record, ToolCall
from agentguard.trajectory.safe_json import MAX_LOG_DEPTH, dumps, loads, normalize_json

_T = TypeVar("_T")
# Replacing a word of a few letters under a sensitive name ("none", "yes") would damage every text.
_MIN_PROPAGATED_CHARS = 6
_MAX_NAME_CHARS, _MAX_CACHED_NAMES = 64, 4096
_MAX_CACHED_TEXT_CHARS, _MAX_CACHED_TEXTS = 8192, 256
_HARMLESS_VALUES = frozenset(
    {"", "none", "null", "true", "false", "string", "required", "optional", "unknown"}
)


@dataclass(frozen=True, slots=True, kw_only=True)
class RedactionResult:
    """Redacted run, and the number of replacements by kind."""

    record: Record
    counts: Mapping[str, int] = field(default_factory=dict)


class Redactor:
    """Redactor that replaces secrets by stable placeholders.

    Args:
        patterns: additional RE2 patterns by kind; the first group is replaced, or the match if it has no
            group.
        key: key of the placeholders' hash; with another key the same secret gets another placeholder.

    Raises:
        ConfigError: a pattern is not valid, or a kind is not a plain word.
    """

    def __init__(self, *, patterns: Mapping[str, str] | None = None, key: bytes = b"") -> None:
        self._key = key[:64]
        self._custom_patterns = [
            (kind, _compile_pattern(kind, pattern)) for kind, pattern in (patterns or {}).items()
        ]
        self._builtin_pattern = _compile_pattern("builtin", SECRET_PATTERN)
        self._harmless_names: set[str] = set()
        # Consecutive runs repeat their prompts, so the latest texts without a secret are not searched again.
        self._harmless_texts = BoundedMap[str, None](_MAX_CACHED_TEXTS)

    def redact(self, record: Record) -> RedactionResult:
        """Return ``record`` without its secrets. Raises FormatError if it contains data that is not JSON."""
        first_pass = _RedactionPass(self, {})
        cleaned = first_pass.redact(record)
        if not first_pass.discovered_secrets:
            return RedactionResult(record=cleaned, counts=dict(first_pass.counts))
        # Second pass with all known secrets, so that the counts are right.
        second_pass = _RedactionPass(self, first_pass.discovered_secrets)
        return RedactionResult(record=second_pass.redact(record), counts=dict(second_pass.counts))

    def redact_data(self, data: dict[str, Any]) -> dict[str, Any]:
        """Return JSON data without its secrets; the same object if it has no secret.

        Raises:
            FormatError: the data is not JSON data.
        """
        if self.is_harmless(data):
            return data
        first_pass = _RedactionPass(self, {})
        cleaned = first_pass.redact(data)
        return (
            _RedactionPass(self, first_pass.discovered_secrets).redact(data)
            if first_pass.discovered_secrets
            else cleaned
        )

    def is_harmless(self, data: dict[str, Any]) -> bool:
        """Return True if one search over all texts proves that there is no secret.

        If a pattern matches in a text, then that or another pattern also matches in the joined texts. So no
        match in the joined texts proves that there is no secret. False proves nothing.
        """
        texts = None if self._custom_patterns else collect_texts(data)
        if texts is None:
            return False
        joined_text = "\n".join(texts)
        try:
            return self._builtin_pattern.search(joined_text) is None
        except UnicodeEncodeError:  # a lone surrogate
            return False

    def redact_text(self, text: str) -> str:
        """Return ``text`` without its secrets."""
        return _RedactionPass(self, {}).redact_text(text)

    def build_placeholder(self, kind: str, secret: str) -> str:
        """Return the placeholder of a secret, such as ``[redacted:api_key:1a2b]``."""
        digest = hashlib.blake2b(secret.encode(), digest_size=2, key=self._key).hexdigest()
        return f"[redacted:{kind}:{digest}]"


class _RedactionPass:
    """Walk over a run; ``known_secrets`` maps secrets of earlier passes to their placeholders."""

    def __init__(self, redactor: Redactor, known_secrets: Mapping[str, str]) -> None:
        self._redactor = redactor
        self._placeholders = known_secrets
        # Placeholders first, so that nothing inside them is replaced; longer secrets before their parts.
        literals = [re.escape(secret) for secret in sorted(known_secrets, key=len, reverse=True)]
        self._known_secrets = (
            re.compile("|".join((r"\[redacted:[^\]]*\]", *literals))) if known_secrets else None
        )
        self.discovered_secrets: dict[str, str] = {}
        self.counts: Counter[str] = Counter()

    def redact(self, value: _T) -> _T:
        """Return the same value without secrets."""
        try:
            result: _T = self._redact_value(value)
        except RecursionError:
            raise FormatError(f"nested deeper than {MAX_LOG_DEPTH} levels") from None
        return result

    def redact_text(self, text: str) -> str:
        """Return a text without secrets; text that is JSON is parsed, because escapes could hide a secret."""
        if text[:1] in ("{", "[") and (redacted := self._redact_json_text(text)) is not None:
            return redacted
        return self._redact_plain_text(text)

    def _redact_value(self, value: Any) -> Any:
        if isinstance(value, Enum) or value is None or isinstance(value, bool):
            return value
        if isinstance(value, str):
            return self.redact_text(value)
        if isinstance(value, Mapping):
            return {self._redact_key(k): self._redact_named_value(k, v) for k, v in value.items()}
        if isinstance(value, list | tuple):
            return type(value)(self._redact_value(one) for one in value)
        if is_dataclass(value) and not isinstance(value, type):
            return self._redact_dataclass(value)
        return self._redact_number(value)

    def _redact_dataclass(self, value: Any) -> Any:
        changes = {field.name: self._redact_value(getattr(value, field.name)) for field in fields(value)}
        raw = value.raw_arguments if isinstance(value, ToolCall) else None
        if raw is not None and changes["arguments"] != value.arguments and changes["raw_arguments"] == raw:
            # Escapes in the recorded text may hide a value that is plain in the parsed arguments.
            changes["raw_arguments"] = dumps(changes["arguments"]).decode()
        return replace(value, **changes)

    def _redact_key(self, key: Any) -> Any:
        if not isinstance(key, str):
            return key
        names = self._redactor._harmless_names  # runs use the same few names, so each name is checked once
        if key in names and self._known_secrets is None:
            return key
        if normalize_name(key) in SENSITIVE_NAMES:
            return key
        redacted = self._redact_plain_text(key)
        if (
            redacted == key
            and self._known_secrets is None
            and len(key) <= _MAX_NAME_CHARS
            and len(names) < _MAX_CACHED_NAMES
        ):
            names.add(key)
        return redacted

    def _redact_named_value(self, key: Any, value: Any) -> Any:
        """Redact a value with its name: under a sensitive name every value is a secret."""
        sensitive = isinstance(key, str) and normalize_name(key) in SENSITIVE_NAMES
        if not sensitive or isinstance(value, bool) or not isinstance(value, str | int | float):
            return self._redact_value(value)
        text = str(value)
        if text.casefold() in _HARMLESS_VALUES or text.startswith("[redacted:"):
            return value
        return self._replace("secret", text, learn=True)

    def _redact_number(self, value: Any) -> Any:
        if isinstance(value, int) and len(text := str(value)) >= 13:
            redacted = self._redact_plain_text(text)
            return value if redacted == text else redacted
        return value

    def _redact_json_text(self, text: str) -> str | None:
        try:
            value = loads(text, strict=True)
        except FormatError:
            return None
        if not isinstance(value, dict | list):
            return None
        redacted = self._redact_value(value)
        return text if redacted == value else dumps(redacted).decode()

    def _redact_plain_text(self, text: str) -> str:
        harmless = self._redactor._harmless_texts if self._known_secrets is None else None
        if harmless is not None and text in harmless:
            return text
        redacted = self._redact_matches(text)
        if harmless is not None and redacted == text and len(text) <= _MAX_CACHED_TEXT_CHARS:
            harmless[text] = None
        return redacted

    def _redact_matches(self, text: str) -> str:
        text = normalize_json(text)
        text = str(self._redactor._builtin_pattern.sub(self._replace_builtin_match, text))
        for kind, pattern in self._redactor._custom_patterns:
            text = str(pattern.sub(lambda match, kind=kind: self._replace_custom_match(kind, match), text))
        return (
            self._known_secrets.sub(self._replace_known_secret, text)
            if self._known_secrets is not None
            else text
        )

    def _replace_known_secret(self, match: re.Match[str]) -> str:
        placeholder = self._placeholders.get(match[0])
        if placeholder is None:
            return match[0]
        self.counts[placeholder.split(":")[1]] += 1
        return placeholder

    def _replace_builtin_match(self, match: Any) -> str:
        group = next(name for name, value in match.groupdict().items() if value)
        secret = match.group(group)
        if group == "done" or (group == "card" and not _is_card_number(secret)):
            return str(match.group())
        if secret.startswith("[redacted:") or secret.casefold() in _HARMLESS_VALUES:
            return str(match.group())
        replacement = self._replace(KIND_ALIASES.get(group, group), secret, learn=group in PROPAGATED_KINDS)
        return _replace_group(match, match.re.groupindex[group], replacement)

    def _replace_custom_match(self, kind: str, match: Any) -> str:
        group = 1 if match.re.groups and match.group(1) is not None else 0
        if not match.group(group):
            return str(match.group())
        return _replace_group(match, group, self._replace(kind, match.group(group), learn=False))

    def _replace(self, kind: str, secret: str, *, learn: bool) -> str:
        self.counts[kind] += 1
        placeholder = self._redactor.build_placeholder(kind, secret)
        if learn and len(secret) >= _MIN_PROPAGATED_CHARS and normalize_name(secret) not in SENSITIVE_NAMES:
            self.discovered_secrets[secret] = placeholder
        return placeholder


def _replace_group(match: Any, group: int, new: str) -> str:
    """Return the matched text with one group replaced."""
    begin, end = match.span(group)
    matched_text, start = match.group(), match.start()
    return f"{matched_text[: begin - start]}{new}{matched_text[end - start :]}"


def _is_card_number(text: str) -> bool:
    digits = "".join(c for c in text if c.isdigit())
    return 13 <= len(digits) <= 19 and len(set(digits)) > 1 and is_luhn_valid(digits)


def _compile_pattern(kind: str, pattern: str) -> Any:
    if not kind.isidentifier():
        raise ConfigError("the kind of a pattern must be a plain word")
    options = re2.Options()
    options.log_errors = False
    try:
        return re2.compile(pattern, options)
    except (re2.error, UnicodeEncodeError):
        raise ConfigError(f"the pattern of {kind!r} is not a valid RE2 expression") from None

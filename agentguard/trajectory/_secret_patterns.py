"""Patterns of secrets for `agentguard.trajectory.redaction`, as one alternation in RE2 syntax."""

from __future__ import annotations

from enum import Enum
from typing import Any

from agentguard.errors import FormatError
from agentguard.trajectory.safe_json import loads

SENSITIVE_NAMES = frozenset(
    (
        *("password", "passwd", "passphrase", "pwd", "secret", "client_secret", "secret_key"),
        *("secret_access_key", "aws_secret_access_key", "api_key", "apikey", "x_api_key", "access_key"),
        *(
            "access_token",
            "auth_token",
            "refresh_token",
            "id_token",
            "session_token",
            "bearer_token",
            "token",
        ),
        *("authorization", "auth", "proxy_authorization", "cookie", "set_cookie", "private_key"),
        *("credential", "credentials", "pin", "cvv"),
    )
)
"""Names whose value is always a secret, in the form of `normalize_name`."""

_SENSITIVE_NAME_PATTERN = (
    r"pass(?:word|wd|phrase)|pwd|client[_-]?secret|secret(?:[_-]?(?:access[_-]?)?key)?|"
    r"(?:x[_-])?api[_-]?key|access[_-]?(?:key|token)|(?:auth|refresh|id|session|bearer)[_-]?token|"
    r"private[_-]?key|set-cookie|cookie"
)
_API_KEY_PATTERNS = (
    r"sk-[A-Za-z0-9_-]{16,}",  # OpenAI, Anthropic, OpenRouter, DeepSeek
    r"ag-[A-Za-z0-9_-]{43}",  # agentguard's own proxy
    r"(?:sk|rk|pk)_(?:live|test)_[A-Za-z0-9]{10,}",  # Stripe
    r"gh[pousr]_[A-Za-z0-9]{20,}|github_pat_[A-Za-z0-9_]{20,}",
    r"gl(?:pat|ptt|dt|rt)-[A-Za-z0-9_-]{16,}",  # GitLab
    r"(?:AKIA|ASIA|ABIA|ACCA)[A-Z0-9]{16}",  # AWS
    r"AIza[A-Za-z0-9_-]{30,}|ya29\.[A-Za-z0-9_-]{20,}",  # Google
    r"xox[abeoprs]-[A-Za-z0-9-]{10,}|xapp-[A-Za-z0-9-]{10,}",  # Slack
    r"hf_[A-Za-z0-9]{20,}|gsk_[A-Za-z0-9]{20,}|xai-[A-Za-z0-9]{20,}|r8_[A-Za-z0-9]{20,}|pplx-[A-Za-z0-9]{20,}",
    r"npm_[A-Za-z0-9]{20,}|pypi-[A-Za-z0-9_-]{20,}|dop_v1_[a-f0-9]{20,}",
    r"SG\.[A-Za-z0-9_-]{10,}\.[A-Za-z0-9_-]{10,}",  # SendGrid
)

SECRET_PATTERN = "|".join(
    (
        r"(?P<done>\[redacted:\w+:[0-9a-f]{4}\])",  # An existing placeholder stays unchanged.
        r"(?P<private_key>-----BEGIN [A-Z0-9 ]*PRIVATE KEY(?: BLOCK)?-----"
        r"(?s:.*?)(?:-----END [A-Z0-9 ]*PRIVATE KEY(?: BLOCK)?-----|\z))",
        r"\b(?P<jwt>eyJ[A-Za-z0-9_-]{8,}\.eyJ[A-Za-z0-9_-]{8,}\.[A-Za-z0-9_-]*)",
        rf"\b(?P<api_key>{'|'.join(_API_KEY_PATTERNS)})",
        r"(?i:\bbearer)\s+(?P<bearer_token>[A-Za-z0-9._~+/=-]{8,})",
        r"(?i:\bauthorization)(?:\\*[\"'])?\s*[:=]\s*(?:\\*[\"'])?(?i:basic|token|apikey|digest)\s+"
        r"(?P<authorization>[A-Za-z0-9._~+/=-]{4,})",
        r"\b[A-Za-z][A-Za-z0-9+.-]*://[^\s/@:\"'<>]*:(?P<url_password>[^\s@\"'<>]+)@",
        rf"(?i:\b(?:[a-z0-9]+[_-])*(?:{_SENSITIVE_NAME_PATTERN}))(?:\\*[\"'])?\s*[:=]\s*"
        r"(?:\\*\"(?P<quoted>[^\"\\\n]{3,})\\*\"|(?:\\*')(?P<quoted2>[^'\\\n]{3,})\\*'|(?P<secret>[^\s\"'\\,;&}{\[\]()<>]{4,}))",
        r"(?P<email>[A-Za-z0-9][A-Za-z0-9._%+-]*@[A-Za-z0-9-]+(?:\.[A-Za-z0-9-]+)*\.[A-Za-z]{2,})",
        r"(?P<card>\b[2-6]\d{3}(?:[ -]?\d{4}){2}[ -]?\d{1,7}\b|\b3[47]\d{2}[ -]?\d{6}[ -]?\d{5}\b)",
    )
)
"""Named groups are the kinds; only the text of a group is replaced, not the words around it."""

KIND_ALIASES = {"quoted": "secret", "quoted2": "secret"}
PROPAGATED_KINDS = frozenset({"secret", "quoted", "quoted2", "url_password", "authorization", "bearer_token"})
"""Kinds that are recognised by their context; the same text without the context is a secret, too."""

_MAX_LEVELS = 50
_MAX_SAFE_NUMBER = 10**12
"""Smallest number with as many digits as the shortest card number."""
_SAFE_NAMES: set[str] = set()
"""Cache of names that are not sensitive: rows and messages have the same few names."""
_MAX_SAFE_NAMES = 1024
_MAX_NAME_CHARS = 64


def normalize_name(text: str) -> str:
    """Return a name in lower case and with ``_`` for ``-``, to be looked up in `SENSITIVE_NAMES`."""
    return text.casefold().replace("-", "_")


def collect_texts(data: dict[str, Any]) -> list[str] | None:
    """Return the names and texts of JSON data; None if the data needs a full walk.

    A full walk is needed for a sensitive name, a long number, and data that is not plain JSON. For a text
    that is JSON, the result has its inner names and texts, because escapes could hide a secret in the text
    itself.
    """
    texts: list[str] = []
    level: list[Any] = [data]
    for _ in range(_MAX_LEVELS):
        below: list[Any] = []
        for value in level:
            kind = type(value)
            if kind is str:
                embedded = _parse_embedded_json(value) if value[:1] in ("{", "[") else None
                if embedded is None:
                    texts.append(value)
                else:
                    below.append(embedded)
            elif kind is dict:
                if not (_SAFE_NAMES.issuperset(value) or _has_only_safe_names(value)):
                    return None
                texts.extend(value)
                below.extend(value.values())
            elif kind is list:
                below.extend(value)
            elif not _is_safe_scalar(value):
                return None
        if not below:
            return texts
        level = below
    return None


def _parse_embedded_json(text: str) -> Any:
    """Parse a text that is JSON; return None if it is not JSON."""
    try:
        data = loads(text, strict=True)
    except FormatError:
        return None
    return data if isinstance(data, dict | list) else None


def _has_only_safe_names(value: dict[Any, Any]) -> bool:
    if not all(type(key) is str and normalize_name(key) not in SENSITIVE_NAMES for key in value):
        return False
    if len(_SAFE_NAMES) < _MAX_SAFE_NAMES:
        _SAFE_NAMES.update(key for key in value if len(key) <= _MAX_NAME_CHARS)
    return True


def _is_safe_scalar(value: Any) -> bool:
    """Return True if a value is neither text nor a number long enough to be a secret."""
    if type(value) is int:
        return abs(value) < _MAX_SAFE_NUMBER
    return value is None or isinstance(value, bool | float | Enum)


def is_luhn_valid(digits: str) -> bool:
    """Return True if the check digit of a card number is valid (ISO/IEC 7812-1)."""
    total = 0
    for i, digit in enumerate(reversed(digits)):
        value = int(digit) * (2 if i % 2 else 1)
        total += value - 9 if value > 9 else value
    return total % 10 == 0

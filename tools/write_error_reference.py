"""Write the reference of the error codes from the exception classes and from the proxy's source.

python tools/write_error_reference.py
"""

from __future__ import annotations

import ast
import inspect
import re
import sys
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "server")]

from agentguard import errors  # noqa: E402

PAGE = ROOT / "docs" / "error-codes.md"
PROXY = ROOT / "server" / "agentguard_server" / "proxy"
_RESPONSE_FUNCTIONS = {"ProxyError", "_reject", "_error_response"}
"""Functions of the proxy whose first arguments are a status, a code and a message."""
_CODE = re.compile(r"[a-z]+(?:_[a-z]+)*")
_INTRODUCTION = """# Error codes

The codes of agentguard's exceptions and of the proxy's error responses. A code is stable, so that programs
can compare it. A message has no contents of a run or of a request.

`tools/write_error_reference.py` writes this page from the code.

## Exceptions
Each exception of agentguard is an `agentguard.AgentGuardError` and has the attribute `code`. A class is
indented below its base class.

| class | code | meaning |
|---|---|---|"""
_RESPONSES = """
## Responses of the proxy
[proxy-api.md](proxy-api.md#errors) describes the format. The proxy also uses the codes of `ResilienceError`
and its subclasses. Their status is that of the endpoint, or one of these:

- 503: `circuit_open`, `overloaded`, and `no_replica` if all replicas are drained;
- 504: `deadline_exceeded`, `stalled`;
- 502: all others.

In the table, `…` marks a value in a message.

| code | status | messages |
|---|---|---|"""


def build_page() -> str:
    """Return the text of the page."""
    lines = [_INTRODUCTION]
    for depth, error in iter_exceptions(errors.AgentGuardError):
        meaning = _read_summary(error)
        lines.append(f"| {'&emsp;' * depth}`{error.__name__}` | `{error.code}` | {meaning} |")
    lines.append(_RESPONSES)
    for code, responses in sorted(collect_responses().items()):
        statuses = ", ".join(str(status) for status in sorted({status for status, _ in responses}))
        messages = "; ".join(dict.fromkeys(message for _, message in responses if message))
        lines.append(f"| `{code}` | {statuses} | {_escape_cell(messages)} |")
    return "\n".join([*lines, ""])


def iter_exceptions(
    base: type[errors.AgentGuardError], depth: int = 0
) -> Iterator[tuple[int, type[errors.AgentGuardError]]]:
    """Yield the exceptions of `agentguard.errors` with their depth below the root, parents first."""
    yield depth, base
    for error in base.__subclasses__():
        if error.__module__ == errors.__name__:
            yield from iter_exceptions(error, depth + 1)


def collect_responses() -> dict[str, list[tuple[int, str]]]:
    """Return ``(status, message)`` of the error responses in the proxy's source, by code."""
    responses: dict[str, list[tuple[int, str]]] = {}
    for path in sorted(PROXY.rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if not isinstance(node, ast.Call) or _get_name(node.func) not in _RESPONSE_FUNCTIONS:
                continue
            match node.args:
                case [ast.Constant(value=int(status)), ast.Constant(value=str(code)), message, *_] if (
                    _CODE.fullmatch(code)
                ):
                    responses.setdefault(code, []).append((status, _read_message(message)))
                case _:
                    pass
    return responses


def _get_name(function: ast.expr) -> str:
    return function.attr if isinstance(function, ast.Attribute) else getattr(function, "id", "")


def _read_message(node: ast.expr) -> str:
    """Return a message with ``…`` for each value; empty if it is computed elsewhere."""
    if isinstance(node, ast.Constant):
        return str(node.value)
    if isinstance(node, ast.JoinedStr):
        parts = (str(one.value) if isinstance(one, ast.Constant) else "…" for one in node.values)
        return "".join(parts)
    return ""


def _read_summary(error: type[errors.AgentGuardError]) -> str:
    summary = (inspect.getdoc(error) or "").partition("\n\n")[0]
    return _escape_cell(" ".join(summary.replace("``", "`").split()))


def _escape_cell(text: str) -> str:
    return text.replace("|", "\\|")


if __name__ == "__main__":
    PAGE.write_text(build_page(), encoding="utf-8")

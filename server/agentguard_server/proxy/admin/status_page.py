"""Status page in HTML: no script, no texts of runs, all values escaped."""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Iterable, Mapping
from html import escape
from typing import Any, Final

_STYLE: Final = (
    "body{font:15px/1.5 system-ui,sans-serif;margin:2rem auto;max-width:70rem;padding:0 1rem;color:#1b1f24}"
    "table{border-collapse:collapse;width:100%;margin:0 0 2rem}h1{font-size:1.4rem}h2{font-size:1.1rem}"
    "th,td{text-align:left;padding:.3rem .8rem .3rem 0;border-bottom:1px solid #d5dae0;vertical-align:top}"
    "th{font-weight:600}.bad{color:#a3131b;font-weight:600}.good{color:#116329}"
    "@media(prefers-color-scheme:dark){body{background:#14171a;color:#e6e8eb}th,td{border-color:#3a4047}"
    ".bad{color:#ff8a80}.good{color:#7bd88f}}"
)
_STYLE_HASH: Final = base64.b64encode(hashlib.sha256(_STYLE.encode()).digest()).decode()
_CONTENT_SECURITY_POLICY: Final = (
    f"default-src 'none'; style-src 'sha256-{_STYLE_HASH}'; base-uri 'none'; form-action 'none'; "
    "frame-ancestors 'none'"
)
_COLUMNS: Final = (
    "name",
    "state",
    "tier",
    "inflight",
    "breaker",
    "ejections",
    "good",
    "failed",
    "p50",
    "p95",
)


def render_status_page(status: Mapping[str, Any]) -> tuple[str, str]:
    """Return the page for a status, and its content security policy."""
    ready = '<span class="good">ready</span>' if status["ready"] else '<span class="bad">not ready</span>'
    why = "".join(f" {escape(str(one))}." for one in status["why"])
    workers = "".join(_render_worker(one) for one in status["workers"])
    body = (
        '<!doctype html><html lang="en"><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width">'
        f"<title>agentguard</title><style>{_STYLE}</style>"
        f"<h1>agentguard {escape(status['version'])}: {ready}</h1>"
        f"<p>{why} {int(status['inflight'])} requests in flight.</p>{workers}</html>"
    )
    return body, _CONTENT_SECURITY_POLICY


def _render_worker(worker: Mapping[str, Any]) -> str:
    pool = worker.get("pool") or {}
    title = f"Worker {worker.get('worker')}, process {worker.get('pid')}"
    age_s = float(worker.get("age_s") or 0)
    late = f", as of {age_s:.0f} s ago" if age_s else ""
    rest = {
        name: value
        for name, value in worker.items()
        if name not in ("pool", "worker", "pid", "age_s") and not isinstance(value, list)
    }
    rest |= {f"pool {name}": value for name, value in pool.items() if name != "replicas"}
    return (
        f"<h2>{escape(title)}{late}</h2>{_render_replicas(pool.get('replicas') or ())}"
        f"<table>{''.join(_render_row(name, value) for name, value in rest.items())}</table>"
    )


def _render_replicas(replicas: Iterable[Mapping[str, Any]]) -> str:
    head = "".join(f'<th scope="col">{name}</th>' for name in _COLUMNS)
    return f"<table><thead><tr>{head}</tr></thead><tbody>{''.join(map(_render_replica, replicas))}</tbody></table>"  # noqa: E501


def _render_replica(replica: Mapping[str, Any]) -> str:
    flat = {
        **replica,
        **(replica.get("latency_s") or {}),
        "failed": sum((replica.get("failed") or {}).values()),
    }
    cells = []
    for name in _COLUMNS:
        value = flat.get(name)
        text = "–" if value is None else f"{value * 1000:.0f} ms" if name in ("p50", "p95") else str(value)
        marked = f' class="{"good" if value == "up" else "bad"}"' if name == "state" else ""
        cells.append(f"<td{marked}>{escape(text)}</td>")
    return f"<tr>{''.join(cells)}</tr>"


def _render_row(name: str, value: Any) -> str:
    if isinstance(value, Mapping):
        value = ", ".join(f"{key} {inner}" for key, inner in value.items())
    return f'<tr><th scope="row">{escape(str(name))}</th><td>{escape(str(value))}</td></tr>'

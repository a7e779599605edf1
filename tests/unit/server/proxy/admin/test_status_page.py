"""The status page: no data is interpreted as markup, and no resource comes from another origin."""

from __future__ import annotations

import base64
import hashlib
import re
from typing import Any

from agentguard_server.proxy.admin.status_page import render_status_page

EVIL = '"><script>alert(1)</script><img src=x onerror=alert(1)>'


def whole(**more: Any) -> dict[str, Any]:
    replica = {
        "name": EVIL, "state": EVIL, "tier": 0, "inflight": 1, "breaker": None, "ejections": 0, "good": 1,
        "failed": {"x": 2}, "latency_s": {"p50": 0.01, "p95": None, "p99": None},
    }  # fmt: skip
    worker = {
        "worker": EVIL,
        "pid": 1,
        EVIL: EVIL,
        "guard": {EVIL: EVIL},
        "pool": {"replicas": [replica], "x": EVIL},
    }
    return {"version": EVIL, "ready": False, "why": [EVIL], "inflight": 1, "workers": [worker]} | more


def test_status_page_escapes_all_values() -> None:
    body, _ = render_status_page(whole())
    assert "<script" not in body
    assert "<img" not in body
    assert "&lt;script&gt;" in body


def test_status_page_allows_only_its_own_style() -> None:
    body, policy = render_status_page(whole())
    (style,) = re.findall(r"<style>(.*?)</style>", body)
    digest = base64.b64encode(hashlib.sha256(style.encode()).digest()).decode()
    assert f"style-src 'sha256-{digest}'" in policy
    assert "default-src 'none'" in policy
    assert "style=" not in body


def test_status_page_shows_worker_without_report() -> None:
    body, _ = render_status_page(whole(ready=True, why=[], workers=[{"worker": 1, "pid": 2, "age_s": 3.0}]))
    assert "as of 3 s ago" in body

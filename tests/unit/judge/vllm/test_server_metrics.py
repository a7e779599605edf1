"""Counters of a server: the page in the format of vLLM 0.32, and invalid pages."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer

import pytest
from hypothesis import given, strategies as st

from agentguard.errors import JudgeError
from agentguard.judge.vllm.server_metrics import ServerWork, fetch_counters, fetch_work, sum_counters

PAGE = """\
# HELP vllm:prompt_tokens_total Number of prefill tokens processed.
# TYPE vllm:prompt_tokens_total counter
vllm:prompt_tokens_total{engine="0",model_name="judge"} 1200.0
vllm:prompt_tokens_total{engine="1",model_name="judge"} 300.0
vllm:prompt_tokens_cached_total{engine="0",model_name="judge"} 1e+03
vllm:generation_tokens_total{engine="0",model_name="judge"} 12.0
vllm:prefix_cache_queries_total{engine="0",model_name="judge"} 1500.0
vllm:prefix_cache_hits_total{engine="0",model_name="judge"} 1000.0
vllm:num_requests_running 2.0
vllm:odd{engine="0"} NaN
python_gc_objects_collected_total{generation="0"} 8.0
"""


@contextmanager
def telling(page: bytes, status: int = 200) -> Iterator[str]:
    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(status)
            self.end_headers()
            self.wfile.write(page)

        def log_message(self, *args: object) -> None:
            pass

    server = HTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def test_counters_are_summed_over_labels() -> None:
    held = sum_counters(PAGE)
    assert held["vllm:prompt_tokens_total"] == 1500
    assert held["vllm:num_requests_running"] == 2
    assert not {"vllm:odd", "python_gc_objects_collected_total"} & set(held)


def test_computed_tokens_are_sent_minus_cached_tokens() -> None:
    with telling(PAGE.encode()) as root:
        done = fetch_work(root)
        assert fetch_counters(root) == sum_counters(PAGE)
    assert (done.prompt_tokens, done.cached_tokens, done.computed_tokens, done.generated_tokens) == (
        1500,
        1000,
        500,
        12,
    )
    assert done.hit_rate == pytest.approx(2 / 3)
    assert (done - ServerWork(prompt_tokens=500, cached_tokens=400)).computed_tokens == 400
    assert ServerWork().hit_rate == 0


def test_missing_counters_are_an_error() -> None:
    with (
        telling(b"", 404) as root,
        pytest.raises(JudgeError, match="/metrics returned status 404; only vLLM's metrics"),
    ):
        fetch_work(root)
    with pytest.raises(JudgeError, match=r":9/metrics cannot be read: .*refused"):
        fetch_work("http://127.0.0.1:9")


@given(st.text(max_size=200))
def test_any_page_is_parsed(page: str) -> None:
    sum_counters(page + "\nvllm:x{} 1.0e+\nvllm:y 3\n")
    assert sum_counters("vllm:y 3\n" + page.replace("vllm:y", "")).get("vllm:y") == 3

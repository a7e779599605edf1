"""Files of the installed vLLM's environment: the configuration of a model in the local cache."""

from __future__ import annotations

import http.server
import os
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from agentguard.judge.vllm.installation import locate_model_files

pytest.importorskip("huggingface_hub")


class MissingModelHandler(http.server.BaseHTTPRequestHandler):
    """Model hub that has no model and counts its requests."""

    paths: list[str]

    def do_HEAD(self) -> None:
        self.paths.append(self.path)
        self.send_error(404)

    do_GET = do_HEAD

    def log_message(self, *_: object) -> None:
        """Write nothing."""


@contextmanager
def serve_hub() -> Iterator[tuple[str, list[str]]]:
    """Serve an empty model hub; yield its URL and the paths of its requests."""
    handler = type("Handler", (MissingModelHandler,), {"paths": []})
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}", handler.paths  # type: ignore[attr-defined]
        finally:
            server.shutdown()
            thread.join()


def write_cached_model(cache: Path) -> Path:
    """Write the configuration of model ``maker/tiny`` into a cache; return its path."""
    model = cache / "models--maker--tiny"
    config = model / "snapshots" / "0a1b" / "config.json"
    config.parent.mkdir(parents=True)
    config.write_text("{}")
    (model / "refs").mkdir()
    (model / "refs" / "main").write_text("0a1b")
    return config


@pytest.mark.parametrize(("is_cached", "request_count"), [(True, 0), (False, 3)])
def test_configuration_of_cached_model_needs_no_request(
    tmp_path: Path, is_cached: bool, request_count: int
) -> None:
    expected = [write_cached_model(tmp_path)] if is_cached else []
    with serve_hub() as (url, paths):
        environment = {
            **os.environ,
            "HF_ENDPOINT": url,
            "HF_HUB_CACHE": str(tmp_path),
            "HF_HUB_OFFLINE": "0",
            "NO_PROXY": "127.0.0.1",
        }
        files = locate_model_files(Path(sys.executable), "maker/tiny", environment=environment)
    assert files == expected
    assert sum("maker/tiny" in path for path in paths) == request_count

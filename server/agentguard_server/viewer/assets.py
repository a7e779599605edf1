"""Style sheets and scripts, served with content hashes in their URLs for long-term caching."""

from __future__ import annotations

import gzip
import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Final

from starlette.requests import Request
from starlette.responses import Response

from agentguard_server.viewer.renderer import ASSETS_FOLDER

_TYPES: Final = {
    ".css": "text/css; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".svg": "image/svg+xml",
}
_CACHE_FOREVER: Final = "public, max-age=31536000, immutable"


@dataclass(frozen=True, slots=True)
class Asset:
    """Static file: plain and gzipped body, and the beginning of its SHA-256."""

    media_type: str
    body: bytes
    gzip_body: bytes
    hash: str


@lru_cache(maxsize=1)
def load_assets() -> Mapping[str, Asset]:
    """Return all files by name. Only these names are served, so a request cannot reach another path."""
    return {path.name: _read_asset(path) for path in sorted(ASSETS_FOLDER.iterdir()) if path.suffix in _TYPES}


def build_asset_url(name: str) -> str:
    """Return the URL path of an asset below the prefix; it changes with the content."""
    return f"/static/{name}?v={load_assets()[name].hash}"


def serve_asset(request: Request) -> Response:
    """Serve an asset: immutable if the URL has the current hash, otherwise with revalidation."""
    asset = load_assets().get(request.path_params["name"])
    if asset is None:
        return Response("Not found.\n", 404, media_type="text/plain")
    headers = {
        "etag": f'"{asset.hash}"',
        "cache-control": _CACHE_FOREVER if request.query_params.get("v") == asset.hash else "no-cache",
        "vary": "accept-encoding",
    }
    if asset.hash in request.headers.get("if-none-match", ""):
        return Response(status_code=304, headers=headers)
    is_compressed = "gzip" in request.headers.get("accept-encoding", "")
    if is_compressed:
        headers["content-encoding"] = "gzip"
    return Response(
        asset.gzip_body if is_compressed else asset.body, headers=headers, media_type=asset.media_type
    )


def _read_asset(path: Path) -> Asset:
    body = path.read_bytes()
    packed = gzip.compress(body, 9, mtime=0)
    return Asset(_TYPES[path.suffix], body, packed, hashlib.sha256(body).hexdigest()[:16])

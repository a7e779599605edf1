"""HTTP requests to a model server; a server on this machine is never asked through a proxy."""

from __future__ import annotations

import urllib.parse
import urllib.request
from http.client import HTTPResponse
from typing import cast

from agentguard.loopback import is_loopback


def open_url(url: str, *, timeout_s: float) -> HTTPResponse:
    """GET a URL; for a loopback host, ignore the proxies of the environment (``http_proxy``).

    Raises:
        OSError: the server cannot be reached, or answers with an error (``urllib.error.HTTPError``).
        ValueError: the URL is not valid.
    """
    host = urllib.parse.urlsplit(url).hostname or ""
    handlers = [urllib.request.ProxyHandler({})] if is_loopback(host) else []
    opener = urllib.request.build_opener(*handlers)
    return cast(HTTPResponse, opener.open(url, timeout=timeout_s))

"""Watch of a page: no dialogs, no errors on the console, no requests to another origin."""

from __future__ import annotations

from urllib.parse import urlsplit

from playwright.sync_api import ConsoleMessage, Dialog, Page, Request


class Watch:
    """Collector of a page's forbidden actions.

    Args:
        page: the page; watched from now on.
        origin: allowed origin of requests, e.g. ``http://127.0.0.1:8000``; None allows only files.
    """

    def __init__(self, page: Page, origin: str | None) -> None:
        self.page, self.origin = page, origin
        self.wrong: list[str] = []
        page.on("console", self._console)
        page.on("pageerror", lambda error: self.wrong.append(f"error: {error}"))
        page.on("dialog", self._dialog)
        page.on("request", self._request)

    def _console(self, message: ConsoleMessage) -> None:
        if message.type in ("error", "warning"):
            self.wrong.append(f"{message.type}: {message.text}")

    def _dialog(self, dialog: Dialog) -> None:
        self.wrong.append(f"dialog: {dialog.message}")
        dialog.dismiss()

    def _request(self, request: Request) -> None:
        parts = urlsplit(request.url)
        allowed = parts.scheme in ("data", "about", "blob")
        if self.origin is None:
            allowed = allowed or (parts.scheme == "file" and request.is_navigation_request())
        else:
            allowed = allowed or f"{parts.scheme}://{parts.netloc}" == self.origin
        if not allowed:
            self.wrong.append(f"request: {request.url}")

    def quiet(self) -> None:
        """Fail if the page did a forbidden action."""
        assert not self.wrong, "\n".join(self.wrong[:20])


def too_wide(page: Page) -> int:
    """Return by how many pixels a page is wider than its window."""
    return int(page.evaluate("document.documentElement.scrollWidth - document.documentElement.clientWidth"))

"""What a session has asked the sites: whether that can have changed them, and its record for evaluators.

Everything here runs in the browser's thread, as in `session`.
"""

from __future__ import annotations

from typing import Any
from urllib.parse import urlsplit

from playwright.async_api import BrowserContext, Request
from playwright.async_api import Error as PlaywrightError

_READING = ("GET", "HEAD", "OPTIONS")
_SHOWN = ("document", "xhr", "fetch", "other")  # not pictures, styles, scripts and fonts
_MAX_REQUESTS = 10_000


class Trace:
    """The requests of a browser context.

    Attributes:
        changed: Origins that were sent a request that can change something.
    """

    def __init__(self, context: BrowserContext) -> None:
        """Take note of all requests from now on."""
        self.changed: set[str] = set()
        self._finished: list[Request] = []
        context.on("request", self._sent)
        context.on("requestfinished", self._keep)

    def _sent(self, request: Request) -> None:
        if request.method not in _READING:
            parts = urlsplit(request.url)
            self.changed.add(f"{parts.scheme}://{parts.netloc}")

    def _keep(self, request: Request) -> None:
        if request.resource_type in _SHOWN and len(self._finished) < _MAX_REQUESTS:
            self._finished.append(request)

    async def entries(self) -> list[dict[str, Any]]:
        """Return the requests that were answered as entries of an HTTP archive, without the answers' contents."""
        entries = []
        for request in list(self._finished):
            try:
                response = await request.response()
                headers = await request.all_headers()
                answered = await response.all_headers() if response is not None else {}
            except PlaywrightError:  # of a page that has been closed
                continue
            if response is None:
                continue
            asked: dict[str, Any] = {"method": request.method, "url": request.url, "headers": _listed(headers)}
            if request.post_data_buffer is not None:
                text = request.post_data_buffer.decode(errors="replace")
                asked["postData"] = {"mimeType": headers.get("content-type", ""), "text": text}
            entries.append(
                {
                    "request": asked,
                    "response": {
                        "status": response.status,
                        "headers": _listed(answered),
                        "cookies": [],
                        "redirectURL": answered.get("location", ""),
                    },
                }
            )
        return entries


def _listed(headers: dict[str, str]) -> list[dict[str, str]]:
    return [{"name": name, "value": value} for name, value in headers.items()]

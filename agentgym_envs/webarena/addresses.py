"""Addresses as the agent sees them, and as the browser uses them.

An agent reads and writes `http://shopping/...`. The browser goes to the origin that its environment's own copy
of that site has. Both directions are here, so that no origin ever reaches an observation and no address that
an agent writes reaches the browser without its host having been looked up.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from urllib.parse import quote, urlsplit

from agentgym_envs.verbs import quoted

# Whatever may be a host, with its scheme and port. One pattern for all environments: `re` keeps those that it has seen.
_HOST = re.compile(
    r"(?<![\w.-])(https?(?:://|%3A%2F%2F))?([\w-]+(?:\.\w[\w-]*)*)((?::|%3A)\d+)?(?![\w-]|\.\w)", re.IGNORECASE
)


class RefusedAddress(ValueError):
    """The address is not one of the sites'; the message says what is accepted."""


class Addresses:
    """The sites of one environment.

    Attributes:
        origins: Site name to origin, without a final slash.
    """

    def __init__(self, origins: Mapping[str, str]) -> None:
        """Index the origins.

        Args:
            origins: Site name to `http://host[:port]`; a final slash is dropped.

        Raises:
            ValueError: If one is no origin.
        """
        self.origins = {site: origin.rstrip("/") for site, origin in origins.items()}
        names: dict[str, str] = {}
        for site, origin in self.origins.items():
            parts = urlsplit(origin)
            if parts.scheme not in ("http", "https") or not parts.hostname or parts.path or parts.query:
                raise ValueError(f"WebArena: the origin of {site} is {origin!r}; give http://host or http://host:port.")
            names |= {origin: f"http://{site}", parts.netloc: site, parts.hostname: site}
        # Addresses also stand inside the queries of others, percent-encoded.
        names |= {quote(inner, safe=""): quote(outer, safe="") for inner, outer in names.items()}
        self._outer = {inner.lower(): outer for inner, outer in names.items()}
        self._hosts = {urlsplit(origin).hostname for origin in self.origins.values()}

    def outer(self, text: str) -> str:
        """Replace every origin and host in a text by the name of its site."""
        return _HOST.sub(self._named, text)

    def _named(self, match: re.Match[str]) -> str:
        scheme, host, port = match[1] or "", match[2], match[3] or ""
        if host.lower() in self._hosts:
            for before, inner, after in (
                ("", scheme + host + port, ""),
                ("", scheme + host, port),
                (scheme, host + port, ""),
                (scheme, host, port),
            ):
                if outer := self._outer.get(inner.lower()):
                    return before + outer + after
        return match[0]

    def site(self, url: str) -> str | None:
        """Return the site that an address of the browser belongs to, or None."""
        parts = urlsplit(url)
        origin = f"{parts.scheme}://{parts.netloc}"
        return next((site for site, inner in self.origins.items() if inner == origin), None)

    def host(self, site: str) -> str:
        """Return the host that cookies of a site belong to."""
        return urlsplit(self.origins[site]).hostname or ""

    def inner(self, url: str) -> str:
        """Return the browser's address for one that an agent wrote.

        Raises:
            RefusedAddress: If it leads anywhere but to one of the sites.
        """
        accepted = ", ".join(f"http://{site}/" for site in self.origins)
        text = url.strip()
        if "://" not in text and re.match(rf"(?:{'|'.join(map(re.escape, self.origins))})(?:/|$)", text):
            text = f"http://{text}"
        try:
            parts = urlsplit(text)
            port = parts.port
        except ValueError:
            raise RefusedAddress(
                f"{quoted(url)} is no address. Accepted are those that begin with {accepted}"
            ) from None
        if parts.scheme not in ("http", "https"):
            scheme = f"the scheme {parts.scheme}: is not allowed" if parts.scheme else "it has no site"
            raise RefusedAddress(
                f"{quoted(url)} cannot be opened: {scheme}. Accepted are addresses that begin with {accepted}"
            )
        if parts.netloc.lower() not in self.origins or port is not None:
            raise RefusedAddress(
                f"{quoted(url)} cannot be opened: {quoted(parts.netloc) or 'it'} is none of the sites. "
                f"Accepted are addresses that begin with {accepted}"
            )
        # The host comes from the table and not from the text, whatever a parser may make of that.
        path = "/" + parts.path.lstrip("/")
        query = f"?{parts.query}" if parts.query else ""
        fragment = f"#{parts.fragment}" if parts.fragment else ""
        return f"{self.origins[parts.netloc.lower()]}{path}{query}{fragment}"

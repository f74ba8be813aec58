"""Logging in with a form, without a browser: what a site sets as cookies is then put into the browser."""

from __future__ import annotations

import http.cookiejar
import urllib.error
import urllib.parse
import urllib.request
from html.parser import HTMLParser
from typing import NamedTuple


class LoginRefused(Exception):
    """The site shows its form again, or has none; the message says which."""


class _Form(NamedTuple):
    action: str
    fields: dict[str, str]
    types: dict[str, str]


class _Forms(HTMLParser):
    """Collects the forms of a page."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[_Form] = []
        self._open = False

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = {name: value or "" for name, value in attrs}
        if tag == "form":
            self.found.append(_Form(given.get("action", ""), {}, {}))
            self._open = True
        elif tag == "input" and self._open and given.get("name"):
            kind = given.get("type", "text").lower()
            if kind not in ("submit", "button", "checkbox", "radio", "image"):
                self.found[-1].fields[given["name"]] = given.get("value", "")
                self.found[-1].types[given["name"]] = kind

    def handle_endtag(self, tag: str) -> None:
        if tag == "form":
            self._open = False


def log_in(url: str, user: str, password: str, seconds: float) -> dict[str, str]:
    """Log in and return the cookies.

    Args:
        url: The page with the form.
        user: Goes into the first field for text.
        password: Goes into the field for it.
        seconds: What each request may take.

    Raises:
        LoginRefused: If there is no such form, or it is there again afterwards.
        OSError: If the site does not answer.
    """
    jar = http.cookiejar.CookieJar()
    opener = urllib.request.build_opener(urllib.request.HTTPCookieProcessor(jar))
    with opener.open(url, timeout=seconds) as reply:
        form, here = _login_form(reply.read().decode(errors="replace")), reply.url
    if form is None:
        raise LoginRefused("the page has no form with a password")
    names = list(form.types)
    secret = next(name for name in names if form.types[name] == "password")
    before = [name for name in names[: names.index(secret)] if form.types[name] in ("text", "email")]
    if not before:
        raise LoginRefused("the form has no field for the account")
    sent = form.fields | {before[-1]: user, secret: password}
    target = urllib.parse.urljoin(here, form.action)
    request = urllib.request.Request(target, urllib.parse.urlencode(sent).encode(), headers={"Referer": here})
    with opener.open(request, timeout=seconds) as reply:
        if _login_form(reply.read().decode(errors="replace")) is not None:
            raise LoginRefused("the site does not accept account and password")
    return {cookie.name: cookie.value or "" for cookie in jar}


def _login_form(page: str) -> _Form | None:
    forms = _Forms()
    forms.feed(page)
    return next((form for form in forms.found if "password" in form.types.values()), None)

"""One environment's isolated part of a browser: its tabs, what is done in them, and when that has had its effect.

Everything here runs in the browser's thread (`Browser.call`).
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, TypeVar, cast

from playwright.async_api import BrowserContext, CDPSession, Dialog, Download, FileChooser, Page, Request
from playwright.async_api import Error as PlaywrightError

from agentgym_envs.core import Fault
from agentgym_envs.verbs import quoted, well_formed
from agentgym_envs.webarena import grammar, page, scripts
from agentgym_envs.webarena.addresses import Addresses, RefusedAddress
from agentgym_envs.webarena.browser import Browser
from agentgym_envs.webarena.grammar import Command
from agentgym_envs.webarena.page import Element, View, quote
from agentgym_envs.webarena.trace import Trace

T = TypeVar("T")

MAX_TABS = 10
_QUIET_FRAMES = 180  # a page that never comes to rest is looked at after so many, 3 s on an idle machine
_POPUP_SECONDS = 2.0
_CALL_SECONDS = 10.0
_MAX_TITLE = 60
_BLANK = "about:blank"
_REFUSED_BY_PROXY = "ERR_PROXY_CONNECTION_FAILED"
# A site that cannot be reached is this system's failure and not the agent's.
_SITE_IS_DOWN = (
    *("ERR_CONNECTION_REFUSED", "ERR_CONNECTION_RESET", "ERR_CONNECTION_CLOSED", "ERR_CONNECTION_ABORTED"),
    *("ERR_CONNECTION_TIMED_OUT", "ERR_CONNECTION_FAILED", "ERR_EMPTY_RESPONSE", "ERR_TIMED_OUT"),
    *("ERR_NAME_NOT_RESOLVED", "ERR_ADDRESS_UNREACHABLE", "ERR_INCOMPLETE_CHUNKED_ENCODING"),
    "ERR_CONTENT_LENGTH_MISMATCH",
)


class Refused(ValueError):
    """The action cannot be carried out on this page; the message says why."""


class _Crashed(PlaywrightError):
    """The renderer of the page has died."""

    def __init__(self) -> None:
        super().__init__("the page crashed")


class Look(NamedTuple):
    """How pages are shown.

    Attributes:
        width: Of the window, in pixels.
        height: Of the window, in pixels.
        visible_only: Whether only what is in the window is shown.
        max_chars: Largest length of a page's text.
        load_seconds: What a page may take to load.
    """

    width: int = 1280
    height: int = 720
    visible_only: bool = False
    max_chars: int = 30_000
    load_seconds: float = 15.0


class Turn(NamedTuple):
    """What an action led to.

    Attributes:
        told: What happened, in words.
        view: The page, as the agent sees it.
        url: Its address, as the agent sees it.
        valid: Whether the action was carried out.
    """

    told: str
    view: str
    url: str
    valid: bool


class Entry(NamedTuple):
    """A page in a tab's history: its address, and whether opening that gives the page."""

    url: str
    by_get: bool


@dataclass
class _Tab:
    page: Page
    cdp: CDPSession
    frame: str
    history: list[Entry] = field(default_factory=list)
    at: int = -1
    returns_to: int | None = None  # where in the history the page that is being opened is
    title: str = ""
    url: str = _BLANK
    asked: str = ""  # the address that a page asked for last
    loaded: float = -1.0  # when the document was loaded: tells one from the next at the same address
    error: str = ""
    failure: str = "ERR_FAILED"  # why the last request for a document that failed did
    unreachable: str = ""
    posted: bool = False  # the last request for a document sent a form
    committed: bool = True
    loading: set[str] = field(default_factory=set)
    changed: asyncio.Event = field(default_factory=asyncio.Event)
    touched: bool = False  # something was done on the page that opening it again would not repeat
    crash: asyncio.Future[Any] = field(default_factory=lambda: asyncio.get_running_loop().create_future())


class Session:
    """A browser context and its tabs.

    The history of a tab is kept here and not in Chromium, so that a tab that was opened again has it too:
    `go_back` opens the address of the page before. Pages that a sent form led to are passed over, because
    nothing opens them again without sending it again.
    """

    def __init__(self, browser: Browser, context: BrowserContext, addresses: Addresses, look: Look) -> None:
        """Take over a new context; `open` makes one."""
        self._browser = browser
        self._context = context
        self._addresses = addresses
        self._look = look
        self._tabs: list[_Tab] = []
        self._focus = 0
        self._notes: list[str] = []
        self._elements: Mapping[int, Element] = {}
        self._attaching: dict[Page, asyncio.Task[None]] = {}
        self._appeared = asyncio.Event()
        self._windows = 0  # that pages have opened and whose tabs are not there yet
        self._popup_posts = False
        self._answers: set[asyncio.Task[None]] = set()
        self.trace: Trace | None = None
        context.on("page", self._opened)
        context.on("dialog", self._answer)

    @classmethod
    async def open(
        cls,
        browser: Browser,
        addresses: Addresses,
        look: Look,
        now: float | None,
        cookies: Sequence[Mapping[str, Any]] = (),
        storage: Sequence[Mapping[str, Any]] = (),
        traced: bool = False,
    ) -> Session:
        """Make a context with one empty tab.

        Args:
            browser: Where.
            addresses: The sites.
            look: How pages are shown.
            now: The date of the pages, in seconds since 1970; None for the real one.
            cookies: As Playwright takes them.
            storage: The sites' local storage, as Playwright takes it.
            traced: Whether to keep a record of the requests.

        Raises:
            Fault: If the browser died.
        """
        origins = addresses.origins
        context = await browser.chromium.new_context(
            proxy=cast(Any, browser.proxy(list(origins.values()))),
            viewport={"width": look.width, "height": look.height},
            storage_state=cast(Any, {"cookies": [], "origins": list(storage)}),
            service_workers="block",
            accept_downloads=False,
            locale="en-US",
            timezone_id="UTC",
            color_scheme="light",
            reduced_motion="reduce",
        )
        session = cls(browser, context, addresses, look)
        session.trace = Trace(context) if traced else None
        try:
            if cookies:
                await context.add_cookies(cast(Any, list(cookies)))
            await context.add_init_script(scripts.before(now, origins))
            await session._new_tab()
        except BaseException:
            await session.close()
            raise
        return session

    async def close(self) -> None:
        """Close the tabs and the context."""
        for task in [*self._attaching.values(), *self._answers]:
            task.cancel()
        with contextlib.suppress(PlaywrightError):
            await self._context.close()

    # ---- turns --------------------------------------------------------------------------------------

    async def turn(self, command: Command) -> Turn:
        """Carry out an action, wait for its effect and look at the page.

        Raises:
            Fault: If the browser or a site died.
        """
        self._notes = []
        valid = True
        try:
            told = await self._carry_out(command)
        except (Refused, RefusedAddress) as refusal:
            told, valid = str(refusal), False
        except (_Crashed, PlaywrightError):
            if not any(tab.crash.done() or tab.page.is_closed() for tab in self._tabs):
                raise
            told = ""
        return await self._seen(told, valid)

    async def start(self, urls: Sequence[str]) -> Turn:
        """Open the pages that an episode starts on, a tab for each, and look at the first.

        Raises:
            Fault: If the browser or a site died.
        """
        for number, url in enumerate(urls):
            if number:
                await self._new_tab()
            await self._go(self._addresses.inner(url))
        self._focus = 0
        await self._tab.page.bring_to_front()
        return await self._seen("", True)

    async def screenshot(self) -> bytes:
        """Return the window as a PNG image."""
        return await self._tab.page.screenshot(timeout=1_000 * _CALL_SECONDS)

    async def evaluate(self, url: str, expression: str) -> str:
        """Open an address in a tab of its own, and return what a JavaScript expression gives there, as text.

        Args:
            url: Address as the agent would write it; empty for the page that the agent is on.
            expression: JavaScript; empty for the text of the page.

        Raises:
            Fault: If the browser or a site died.
        """
        opened = self._focus if not url else len(self._tabs)
        before = self._focus
        if url:
            await self._new_tab()
            await self._go(self._addresses.inner(url))
        try:
            script = expression or "document.documentElement.outerText"
            value = await self._evaluate(
                self._tabs[opened], f"String((() => {{ try {{ return {script}; }} catch {{ return ''; }} }})() ?? '')"
            )
        finally:
            if url:
                await self._close_tab(self._tabs[opened])
                self._focus = before
        return str(value)

    @property
    def url(self) -> str:
        """Address of the current page, as the agent sees it."""
        tab = self._tab
        return self._addresses.outer(tab.unreachable if tab.error else tab.url)

    # ---- saved states -------------------------------------------------------------------------------

    async def state(self) -> dict[str, Any] | None:
        """Return what opens these tabs again, or None where opening their addresses would not do.

        Hosts are saved as the names of their sites, so it can be resumed beside another server.
        """
        if any(tab.touched or tab.error or (tab.history and not tab.history[tab.at].by_get) for tab in self._tabs):
            return None
        tabs = []
        for tab in self._tabs:
            place = await self._place(tab)
            if place["session"]:
                return None
            history = [[self._addresses.outer(entry.url), entry.by_get] for entry in tab.history]
            tabs.append({"history": history, "at": tab.at, "scroll": place["scroll"]})
        stored = await self._context.storage_state()
        hosts = {self._addresses.host(site): site for site in self._addresses.origins}
        cookies = [
            {**cookie, "domain": hosts[cookie["domain"]]} for cookie in stored["cookies"] if cookie["domain"] in hosts
        ]
        storage = [{**item, "origin": self._addresses.site(item["origin"])} for item in stored["origins"]]
        return {"tabs": tabs, "focus": self._focus, "cookies": cookies, "storage": storage}

    async def resume(self, state: Mapping[str, Any]) -> Turn:
        """Open the tabs of a saved state in a new session whose cookies and storage are already in place.

        Raises:
            Fault: If the browser or a site died.
        """
        for number, saved in enumerate(state["tabs"]):
            if number:
                await self._new_tab()
            tab = self._tab
            history = [Entry(self._inner(url), by_get) for url, by_get in saved["history"]]
            if history:
                await self._go(history[saved["at"]].url)
            tab.history, tab.at = history, saved["at"]
            if saved["scroll"] != [0, 0]:
                await self._evaluate(tab, scripts.SCROLL_TO % tuple(saved["scroll"]))
        self._focus = state["focus"]
        await self._tab.page.bring_to_front()
        return await self._seen("", True)

    async def set_cookies(self, cookies: Sequence[Mapping[str, Any]]) -> None:
        """Replace all cookies."""
        await self._context.clear_cookies()
        if cookies:
            await self._context.add_cookies(cast(Any, list(cookies)))

    # ---- the actions --------------------------------------------------------------------------------

    async def _carry_out(self, command: Command) -> str:
        verb = command.verb
        if verb in grammar.WITH_ELEMENT:
            element = self._element(command.number)
            named = f"{element.role} {quote(element.name)}" if element.name else f"{element.role} [{command.number}]"
            if verb is grammar.click:
                return await self._click(element, named)
            if verb is grammar.hover:
                return await self._hover(element, named)
            return await self._type(element, named, command)
        if verb is grammar.press:
            await self._touch(self._tab.page.keyboard.press(command.text))
            return f"Pressed {command.text}."
        if verb is grammar.scroll:
            await self._evaluate(self._tab, scripts.SCROLL % (1 if command.text == "down" else -1))
            await self._settle(self._tab)
            return f"Scrolled {command.text}."
        if verb is grammar.goto:
            url = self._addresses.inner(command.text)
            await self._go(url)
            return f"Opened {self._addresses.outer(url)}."
        if verb is grammar.go_back:
            return await self._step_in_history(-1)
        if verb is grammar.go_forward:
            return await self._step_in_history(1)
        return await self._change_tabs(command)

    async def _click(self, element: Element, named: str) -> str:
        node = await self._resolve(element)
        point = await self._point(element, node)
        if point.get("option"):
            if not await self._touch(self._on_node(node, scripts.CHOOSE)):
                raise Refused(f"{named} cannot be chosen.")
            return f"Chose {named}."
        self._check_point(point, named)
        if point["met"]:
            await self._touch(self._tab.page.mouse.click(point["x"], point["y"]))
        else:
            await self._touch(self._on_node(node, scripts.ACTIVATE))
        return f"Clicked {named}."

    async def _hover(self, element: Element, named: str) -> str:
        point = await self._point(element, await self._resolve(element))
        if point.get("option"):
            raise Refused(f"{named} is in a closed list; click it to choose it.")
        self._check_point(point, named)
        await self._touch(self._tab.page.mouse.move(point["x"], point["y"]))
        return f"The pointer is over {named}."

    async def _type(self, element: Element, named: str, command: Command) -> str:
        node = await self._resolve(element)
        todo = await self._on_node(node, scripts.FILL, command.text)
        self._tab.touched = True
        if todo.get("gone"):
            raise Refused(f"{named} is no longer on the page.")
        if todo.get("disabled"):
            raise Refused(f"{named} cannot be changed.")
        if "options" in todo:
            options = "; ".join(map(quote, todo["options"]))
            raise Refused(f"{named} has no option {quote(quoted(command.text))}; it has {options}.")
        if "format" in todo:
            raise Refused(f"{named} does not accept {quote(quoted(command.text))} as {todo['format']}.")
        if "kind" in todo:
            raise Refused(f"{named} takes no text; it is {todo['kind']}.")
        keyboard = self._tab.page.keyboard
        if todo.get("insert"):
            await keyboard.press("Control+a")  # also in editors whose text is not that of the field
            await self._touch(keyboard.insert_text(command.text) if command.text else keyboard.press("Delete"))
        else:
            await self._settle(self._tab)
        if command.enter:
            await self._touch(keyboard.press("Enter"))
        enter = " and pressed Enter" if command.enter else ""
        return f"Typed {quote(quoted(command.text))} into {named}{enter}."

    async def _step_in_history(self, step: int) -> str:
        tab = self._tab
        # After an error page the page before is the one that the tab still stands on in its history.
        at = tab.at + (0 if tab.error and step < 0 else step)
        while 0 <= at < len(tab.history) and not tab.history[at].by_get:
            at += step
        if not 0 <= at < len(tab.history):
            raise Refused(
                f"There is no {'earlier' if step < 0 else 'later'} page in this tab that can be opened again."
            )
        url = tab.history[at].url
        tab.returns_to = at
        await self._go(url)
        return f"Went {'back' if step < 0 else 'forward'} to {self._addresses.outer(url)}."

    async def _change_tabs(self, command: Command) -> str:
        if command.verb is grammar.new_tab:
            if len(self._tabs) >= MAX_TABS:
                raise Refused(f"There are {len(self._tabs)} tabs already, and at most {MAX_TABS}; close one first.")
            await self._new_tab()
            return f"Opened tab {self._focus}."
        if command.verb is grammar.tab_focus:
            if not 0 <= command.number < len(self._tabs):
                raise Refused(f"There is no tab {command.number}; accepted are 0 to {len(self._tabs) - 1}.")
            self._focus = command.number
            await self._tab.page.bring_to_front()
            return f"Went to tab {self._focus}."
        closed = self._focus
        await self._close_tab(self._tab)
        if not self._tabs:
            await self._new_tab()
        await self._tab.page.bring_to_front()
        return f"Closed tab {closed}."

    def _element(self, number: int) -> Element:
        if number not in self._elements:
            shown = "the observation shows no elements"
            if self._elements:
                shown = f"the observation shows ids from {min(self._elements)} to {max(self._elements)}"
            raise Refused(f"There is no element [{number}]; {shown}.")
        return self._elements[number]

    async def _point(self, element: Element, node: str) -> dict[str, Any]:
        """Return what a pointer would meet of an element, and where in the window."""
        point: dict[str, Any] = await self._on_node(node, scripts.POINT)
        if element.frame and "met" in point:
            box = await self._send(self._tab, "DOM.getBoxModel", backendNodeId=element.frame)
            left, top = box["model"]["content"][:2]
            point |= {"x": point["x"] + left, "y": point["y"] + top}
        return point

    def _check_point(self, point: Mapping[str, Any], named: str) -> None:
        if point.get("gone"):
            raise Refused(f"{named} is no longer on the page.")
        if point.get("disabled"):
            raise Refused(f"{named} is disabled.")
        if point.get("hidden"):
            raise Refused(f"{named} is not visible.")
        if point.get("file"):
            raise Refused(f"{named} asks for a file, and there are no files here.")

    # ---- pages and tabs -----------------------------------------------------------------------------

    @property
    def _tab(self) -> _Tab:
        return self._tabs[self._focus]

    async def _new_tab(self) -> None:
        opened = await self._context.new_page()
        await self._attaching.pop(opened)
        number = next((number for number, tab in enumerate(self._tabs) if tab.page is opened), None)
        if number is None:
            raise PlaywrightError("the new tab has gone at once")
        self._focus = number

    async def _close_tab(self, tab: _Tab) -> None:
        self._tabs.remove(tab)
        self._focus = max(0, min(self._focus, len(self._tabs) - 1))
        with contextlib.suppress(PlaywrightError, TimeoutError):
            await asyncio.wait_for(tab.page.close(), _CALL_SECONDS)

    def _opened(self, opened: Page) -> None:
        """A page has come into being, also one that a page opened by itself."""
        self._attaching[opened] = asyncio.ensure_future(self._attach(opened))
        self._appeared.set()

    async def _attach(self, opened: Page) -> None:
        try:
            cdp = await self._context.new_cdp_session(opened)
            await cdp.send("Page.enable")
            tab = _Tab(opened, cdp, (await cdp.send("Page.getFrameTree"))["frameTree"]["frame"]["id"])
            cdp.on("Page.frameRequestedNavigation", lambda event: self._requested(tab, event))
            cdp.on("Page.frameStartedLoading", lambda event: self._loading(tab, event["frameId"], True))
            cdp.on("Page.frameStoppedLoading", lambda event: self._loading(tab, event["frameId"], False))
            cdp.on("Page.frameDetached", lambda event: self._loading(tab, event["frameId"], False))
            cdp.on("Page.windowOpen", lambda _: self._opens_window())
            cdp.on("Page.frameNavigated", lambda event: self._navigated(tab, event["frame"]))
            opened.on("requestfailed", lambda request: self._request_failed(tab, request))
            opened.on("crash", lambda _: self._crashed(tab))
            opened.on("close", lambda _: self._closed(tab))
            opened.on("download", lambda download: self._downloaded(download))
            opened.on("filechooser", lambda chooser: self._asked_for_file(chooser))
        except PlaywrightError:
            return  # it has been closed again already
        self._tabs.append(tab)

    def _requested(self, tab: _Tab, event: Mapping[str, Any]) -> None:
        posts = event["reason"] == "formSubmissionPost"
        if event.get("disposition", "currentTab") != "currentTab":
            self._popup_posts = posts
        elif event["frameId"] == tab.frame:
            tab.posted = posts
            tab.asked = event["url"]
            tab.committed = False
            self._loading(tab, tab.frame, True)

    def _opens_window(self) -> None:
        self._windows += 1

    def _loading(self, tab: _Tab, frame: str, is_loading: bool) -> None:
        if is_loading:
            tab.loading.add(frame)
        else:
            tab.loading.discard(frame)
        tab.changed.set()

    def _navigated(self, tab: _Tab, frame: Mapping[str, Any]) -> None:
        if "parentId" not in frame:
            tab.committed = True
            tab.unreachable = frame.get("unreachableUrl", "")
            tab.changed.set()

    def _request_failed(self, tab: _Tab, request: Request) -> None:
        with contextlib.suppress(PlaywrightError):  # of a page that is not yet known
            if request.is_navigation_request() and request.frame == tab.page.main_frame:
                tab.failure = (request.failure or "ERR_FAILED").removeprefix("net::")

    def _crashed(self, tab: _Tab) -> None:
        if not tab.crash.done():
            tab.crash.set_result(None)
        tab.loading.clear()
        tab.changed.set()

    def _closed(self, tab: _Tab) -> None:
        tab.changed.set()
        if tab in self._tabs:
            self._notes.append(f"Tab {self._tabs.index(tab)} was closed by its page.")
            self._tabs.remove(tab)
            self._focus = max(0, min(self._focus, len(self._tabs) - 1))

    def _answer(self, dialog: Dialog) -> None:
        """Answer a page's dialog at once: nothing else works as long as it is open."""
        asked = quote(quoted(dialog.message))
        agreed = dialog.type != "prompt"
        if dialog.type != "beforeunload":
            self._notes.append(f"The page showed {asked}; it was answered with {'OK' if agreed else 'Cancel'}.")
        self._later(dialog.accept() if agreed else dialog.dismiss())

    def _downloaded(self, download: Download) -> None:
        self._notes.append(
            f"The download of {quote(quoted(download.suggested_filename))} was refused; nothing is stored here."
        )
        self._later(download.cancel())

    def _asked_for_file(self, chooser: FileChooser) -> None:
        del chooser  # taking note of it keeps it from opening
        self._notes.append("The page asked for a file; there are no files here.")

    def _later(self, work: Awaitable[Any]) -> None:
        async def done() -> None:
            with contextlib.suppress(PlaywrightError):
                await work

        task = asyncio.ensure_future(done())
        self._answers.add(task)
        task.add_done_callback(self._answers.discard)

    # ---- waiting ------------------------------------------------------------------------------------

    async def _go(self, url: str) -> None:
        tab = self._tab
        tab.posted = False
        try:
            reply = await self._send(tab, "Page.navigate", self._look.load_seconds, url=url)
        except TimeoutError:
            await self._too_slow(tab, url)
        if "loaderId" in reply and not reply.get("errorText"):
            tab.touched = False
        await self._settle(tab, new_page="loaderId" in reply)

    async def _touch(self, work: Awaitable[T]) -> T | None:
        """Do something on the page, and wait for its effect; None if the page did not react."""
        tab = self._tab
        tab.touched = True
        self._elements = {}
        done = None
        with contextlib.suppress(TimeoutError):  # a script that does not end; `_settle` ends it
            done = await asyncio.wait_for(work, min(_CALL_SECONDS, self._look.load_seconds))
        await self._settle(tab)
        while self._windows or self._attaching:
            await self._follow_popup()
        return done

    async def _follow_popup(self) -> None:
        """Wait for a tab that a page has opened, and go to it."""
        self._windows = max(0, self._windows - 1)
        if not self._attaching:
            self._appeared.clear()
            try:
                await asyncio.wait_for(self._appeared.wait(), _POPUP_SECONDS)
            except TimeoutError:  # Chromium has blocked it
                return
        opened, task = next(iter(self._attaching.items()))
        await task
        del self._attaching[opened]
        popup = next((tab for tab in self._tabs if tab.page is opened), None)
        if popup is None:
            return
        if len(self._tabs) > MAX_TABS:
            await self._refuse_tab(popup)
            return
        popup.posted, self._popup_posts = self._popup_posts, False
        await self._settle(popup)
        if popup in self._tabs:
            self._focus = self._tabs.index(popup)
            self._notes.append(f"The page opened tab {self._focus}.")

    async def _settle(self, tab: _Tab, new_page: bool = False) -> None:
        """Wait until nothing is being loaded and the document is at rest, then take note of where the tab is.

        Raises:
            Fault: If a site did not answer.
        """
        loop = asyncio.get_running_loop()
        end = loop.time() + self._look.load_seconds
        while not tab.crash.done() and not tab.page.is_closed():
            left = end - loop.time()
            if left <= 0:
                if not tab.committed:
                    await self._too_slow(tab, tab.asked)
                self._notes.append(f"The page was still loading after {self._look.load_seconds:g} s.")
                await self._send(tab, "Page.stopLoading")
                break
            tab.changed.clear()
            quiet = scripts.QUIET % (900 * left, _QUIET_FRAMES)  # before this gives up waiting for the answer
            try:
                late = await self._evaluate(tab, quiet, left)
            except TimeoutError:
                with contextlib.suppress(TimeoutError, PlaywrightError):
                    await self._send(tab, "Runtime.terminateExecution", 1.0)
                continue
            except _Crashed:
                return
            except PlaywrightError:  # the document has gone; the next one comes
                if not tab.loading and not tab.changed.is_set():
                    with contextlib.suppress(TimeoutError):
                        await asyncio.wait_for(tab.changed.wait(), min(1.0, left))
                continue
            if late:
                self._notes.append(f"The page was not at rest after {self._look.load_seconds:g} s.")
            if not tab.loading:
                break
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(tab.changed.wait(), left)
        await self._take_note(tab, new_page)

    async def _take_note(self, tab: _Tab, new_page: bool) -> None:
        """Update a tab's address, title and history after something was done."""
        if tab.crash.done() or tab.page.is_closed() or tab not in self._tabs:
            return  # see `_bury`
        place = await self._place(tab)
        for refused in place["refused"]:
            self._notes.append(
                f"The link leads to {quoted(refused)}, which is outside of the sites and was not opened. "
                f"The sites are {', '.join(self._addresses.origins)}."
            )
        fresh = place["loaded"] != tab.loaded
        tab.loaded, tab.title = place["loaded"], self._addresses.outer(place["title"])
        tab.error = tab.failure if place["failed"] else ""
        if tab.error:
            await self._failed(tab)
            return
        moved = place["url"] != tab.url
        tab.url = place["url"]
        if tab.url != _BLANK and self._addresses.site(tab.url) is None:
            self._notes.append(
                f"The page led to {quoted(tab.url)}, which is outside of the sites; the tab was emptied."
            )
            await self._send(tab, "Page.navigate", url=_BLANK)
            tab.url, tab.title = _BLANK, ""
            return
        if tab.url != _BLANK and (fresh or moved or new_page):
            by_get = not tab.posted or place["redirects"] > 0
            if fresh:
                tab.touched = not by_get
            if tab.returns_to is None:
                del tab.history[tab.at + 1 :]
                tab.history.append(Entry(tab.url, by_get))
                tab.at = len(tab.history) - 1
            else:
                tab.at = tab.returns_to
                tab.history[tab.at] = Entry(tab.url, by_get)
        tab.posted, tab.returns_to = False, None

    async def _failed(self, tab: _Tab) -> None:
        """A page could not be opened.

        Raises:
            Fault: If that is a site's failure.
        """
        told = self._addresses.outer(tab.unreachable)
        if tab.error.endswith(_REFUSED_BY_PROXY):
            self._notes.append(
                f"The page led to {quoted(told)}, which is outside of the sites and was not opened. "
                f"The sites are {', '.join(self._addresses.origins)}."
            )
        elif tab.error.endswith(_SITE_IS_DOWN):
            raise Fault("site", f"{told} cannot be reached ({tab.error})")
        else:
            self._notes.append(f"{quoted(told)} could not be opened ({tab.error}).")

    async def _too_slow(self, tab: _Tab, url: str) -> None:
        with contextlib.suppress(PlaywrightError, TimeoutError):
            await self._send(tab, "Page.stopLoading", 1.0)
        raise Fault("site", f"{self._addresses.outer(url)} did not answer within {self._look.load_seconds:g} s")

    # ---- looking ------------------------------------------------------------------------------------

    async def _seen(self, told: str, valid: bool) -> Turn:
        while True:
            await self._bury()
            tab = self._tab
            try:
                view = View(f"This page could not be opened ({tab.error}).", {}) if tab.error else await self._view(tab)
                break
            except _Crashed:
                continue
        self._elements = view.elements
        tabs = " | ".join(
            f"Tab {number}{' (current)' if number == self._focus else ''}: {quote(some.title[:_MAX_TITLE])}"
            for number, some in enumerate(self._tabs)
        )
        told = " ".join([told, *dict.fromkeys(self._notes)]).strip()
        shown = f"{tabs}\nURL: {self.url}\n{view.text}".rstrip()
        return Turn(well_formed(told), well_formed(shown), self.url, valid)

    async def _bury(self) -> None:
        """Close tabs whose page has crashed, and what pages have opened beyond the limit; one at least is left."""
        for tab in list(self._tabs):
            if tab.crash.done():
                self._notes.append("The page crashed; its tab was closed.")
                await self._close_tab(tab)
        while len(self._tabs) > MAX_TABS:
            await self._refuse_tab(self._tabs[-1])
        if not self._tabs:
            await self._new_tab()

    async def _refuse_tab(self, popup: _Tab) -> None:
        await self._close_tab(popup)
        self._notes.append(f"The page wanted to open another tab; there are {MAX_TABS} at most.")

    async def _view(self, tab: _Tab) -> View:
        tree = (await self._send(tab, "Accessibility.getFullAXTree"))["nodes"]
        frames = await self._inner_frames(tab) if any(map(page.is_frame, tree)) else {}
        visible = await self._in_window(tab) if self._look.visible_only else None
        return page.read(tree, self._addresses.outer, visible, self._look.max_chars, frames)

    async def _inner_frames(self, tab: _Tab) -> dict[int, Any]:
        """Return the trees of the frames in a page, by Chromium's number of the node that holds each."""
        found = {}
        waiting = list((await self._send(tab, "Page.getFrameTree"))["frameTree"].get("childFrames", ()))
        while waiting:
            some = waiting.pop()
            waiting += some.get("childFrames", ())
            with contextlib.suppress(PlaywrightError):  # it has gone meanwhile
                owner = await self._send(tab, "DOM.getFrameOwner", frameId=some["frame"]["id"])
                tree = await self._send(tab, "Accessibility.getFullAXTree", frameId=some["frame"]["id"])
                found[owner["backendNodeId"]] = tree["nodes"]
        return found

    async def _in_window(self, tab: _Tab) -> set[int]:
        """Return Chromium's numbers of the nodes of which some part is in the window."""
        documents = (await self._send(tab, "DOMSnapshot.captureSnapshot", computedStyles=[]))["documents"]
        found = set()
        waiting = [(0, 0.0, 0.0)]  # documents, and where their upper left corners are in the window
        while waiting:
            number, left, top = waiting.pop()
            document = documents[number]
            left, top = left - document.get("scrollOffsetX", 0), top - document.get("scrollOffsetY", 0)
            nodes, layout = document["nodes"], document["layout"]
            within = nodes["contentDocumentIndex"]
            inner = dict(zip(within["index"], within["value"], strict=True))
            for index, (x, y, width, height) in zip(layout["nodeIndex"], layout["bounds"], strict=True):
                x, y = x + left, y + top
                if x < self._look.width and x + width > 0 and y < self._look.height and y + height > 0:
                    found.add(nodes["backendNodeId"][index])
                    if index in inner:
                        waiting.append((inner[index], x, y))
        return found

    # ---- Chromium's protocol ------------------------------------------------------------------------

    async def _send(self, tab: _Tab, method: str, seconds: float = _CALL_SECONDS, **arguments: Any) -> Any:
        call: asyncio.Future[Any] = asyncio.ensure_future(tab.cdp.send(method, arguments))
        try:
            # Chromium does not answer for a page that has crashed.
            done, _ = await asyncio.wait({call, tab.crash}, timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
            if call in done:
                return call.result()
        finally:
            call.cancel()
        if tab.crash.done():
            raise _Crashed
        raise TimeoutError(f"the page did not answer within {seconds:g} s")

    async def _evaluate(self, tab: _Tab, expression: str, seconds: float = _CALL_SECONDS) -> Any:
        reply = await self._send(
            tab, "Runtime.evaluate", seconds, expression=expression, awaitPromise=True, returnByValue=True
        )
        return reply["result"].get("value")

    async def _place(self, tab: _Tab) -> dict[str, Any]:
        place = await self._evaluate(tab, scripts.LOCATION)
        if not isinstance(place, dict):  # the page has replaced parts of the language
            raise PlaywrightError("the page cannot be asked for its address")
        return place

    async def _resolve(self, element: Element) -> str:
        try:
            found = await self._send(self._tab, "DOM.resolveNode", backendNodeId=element.node)
        except PlaywrightError as error:
            if self._tab.page.is_closed() or not self._browser.alive:
                raise
            raise Refused(f"{element.role} {quote(element.name)} is no longer on the page.") from error
        return str(found["object"]["objectId"])

    async def _on_node(self, node: str, function: str, *arguments: str) -> Any:
        reply = await self._send(
            self._tab,
            "Runtime.callFunctionOn",
            objectId=node,
            functionDeclaration=function,
            arguments=[{"value": argument} for argument in arguments],
            returnByValue=True,
        )
        if "exceptionDetails" in reply:
            raise PlaywrightError("the page cannot be asked for its elements")
        return reply["result"].get("value")

    def _inner(self, url: str) -> str:
        return url if url == _BLANK else self._addresses.inner(url)

"""Chromium processes that environments of this process share: starting one, joining it, leaving it, replacing it."""

from __future__ import annotations

import asyncio
import atexit
import concurrent.futures
import contextlib
import os
import signal
import socket
import threading
from collections.abc import Coroutine
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from playwright.async_api import Browser as Chromium
from playwright.async_api import Error as PlaywrightError
from playwright.async_api import Playwright, async_playwright

from agentgym_envs.core import Fault
from agentgym_envs.webarena.packages import NO_BROWSER, SetupError

T = TypeVar("T")

FLAGS = (
    "--no-sandbox",  # containers have no user namespaces
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    # Contexts are apart all the same. Within one, a tab keeps its renderer when it goes from site to site, which
    # was measured to save a fifth of a reset's time.
    "--disable-site-isolation-trials",
)
_STOP_SECONDS = 15.0
_ANSWER_SECONDS = 5.0  # what a deadline in the browser's thread may come late
_CHECK_EVERY = 25  # contexts after which the memory is looked at


class Settings(NamedTuple):
    """How a Chromium is started, and when it is replaced.

    Attributes:
        chromium: The program, or None for Playwright's own.
        start_seconds: What its start may take.
        max_contexts: Contexts after which new ones go to a new process.
        max_memory_mb: Memory from which on they do, plus `max_memory_mb_per_env` for each environment in it.
        max_memory_mb_per_env: See there.
    """

    chromium: Path | None
    start_seconds: float = 60.0
    max_contexts: int = 1_000
    max_memory_mb: int = 1_000
    max_memory_mb_per_env: int = 250


class Browser:
    """A Chromium with Playwright's driver, and the thread with the event loop that talks to them.

    Playwright's objects belong to the loop that made them. So everything runs there, and `call` may be used
    from any thread and from inside any other running loop. The driver ends at the end of its standard input and
    takes Chromium with it, so both end with this process however that ends.

    Attributes:
        settings: How it was started.
        taken: Number of environments in it.
        version: Chromium's version.
    """

    def __init__(self, settings: Settings) -> None:
        """Start it.

        Raises:
            Fault: If it does not start in time.
            SetupError: If there is no Chromium.
        """
        self.settings = settings
        self.taken = 0
        self.version = ""
        self._contexts = 0
        self._worn = False
        self._owner = os.getpid()
        self._lost = False
        self._ending = threading.Lock()
        self._playwright: Playwright | None = None
        self._chromium: Chromium | None = None
        self._pids: dict[int, str] = {}
        # A bound port that nobody listens on: what is sent to this proxy is refused at once, see `proxy`.
        self._nowhere = socket.socket()
        self._nowhere.bind(("127.0.0.1", 0))
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._run, name="webarena-browser", daemon=True)
        self._thread.start()
        try:
            self._submit(self._start(), settings.start_seconds)
        except BaseException:
            self.end()
            raise

    @property
    def alive(self) -> bool:
        """Whether it runs, as far as is known, and belongs to this process."""
        return not self._lost and self._owner == os.getpid() and self._chromium is not None

    @property
    def worn(self) -> bool:
        """Whether new contexts should go to a new process."""
        return self._worn

    @property
    def chromium(self) -> Chromium:
        """Playwright's browser, for use in the thread of this one.

        Raises:
            Fault: If it died.
        """
        if self._chromium is None or self._lost:
            raise Fault("browser", "Chromium died")
        return self._chromium

    @property
    def pid(self) -> int:
        """Chromium's process id."""
        return next(pid for pid, kind in self._pids.items() if kind == "browser")

    def proxy(self, origins: list[str]) -> dict[str, str]:
        """Return proxy settings for a context under which nothing but these origins can be reached.

        Everything else - pages, their scripts, images, sockets, redirects, popups, other ports of the loopback
        interface - is sent to a proxy that does not exist. It happens in Chromium's network stack, so it costs
        no time and leaves its cache on, unlike the interception of requests.
        """
        server = f"http://127.0.0.1:{self._nowhere.getsockname()[1]}"
        # Without `<-loopback>`, which must stand first, all of localhost would be reached directly.
        return {"server": server, "bypass": ",".join(["<-loopback>", *origins])}

    def call(self, work: Coroutine[Any, Any, T], seconds: float) -> T:
        """Run a coroutine in the browser's thread and wait for it.

        Args:
            work: What to run; cancelled when the time is over or the waiting is interrupted.
            seconds: What it may take.

        Raises:
            Fault: If the browser died, or the time was over.
        """
        if not self.alive:
            work.close()
            raise Fault("browser", "Chromium died")
        try:
            return self._submit(work, seconds)
        except PlaywrightError as error:
            first = str(error).partition("\n")[0]
            raise Fault("browser", first if self.alive else f"Chromium died ({first})") from error
        except Exception as error:
            if type(error) is not Exception:
                raise
            # What Playwright raises for calls during which its driver dies has no class of its own.
            self.forget()
            raise Fault("browser", f"Playwright's driver died ({error})") from error

    def opened_context(self) -> None:
        """Count a context, and look now and then whether the process has become too large."""
        self._contexts += 1
        if self._contexts >= self.settings.max_contexts:
            self._worn = True
        elif self._contexts % _CHECK_EVERY == 0:
            limit = self.settings.max_memory_mb + self.settings.max_memory_mb_per_env * self.taken
            self._worn = self._worn or self.memory_mb() > limit

    def memory_mb(self) -> float:
        """Return the memory of Chromium's processes: the sum of their proportional sets, in MB."""
        with contextlib.suppress(Fault):
            self.call(self._list_processes(), _ANSWER_SECONDS)
        return sum(map(_pss_mb, self._pids))

    def end(self) -> None:
        """End the processes and the thread; a second call does nothing."""
        with self._ending:
            if self._owner != os.getpid() or self._loop.is_closed():
                return
            with contextlib.suppress(Exception):
                self._submit(self._stop(), _STOP_SECONDS)
            self._lost = True
            if self._pids and (start := _start_time(self.pid)) is not None and start == self._started:
                with contextlib.suppress(ProcessLookupError):  # what a hanging driver has left
                    os.kill(self.pid, signal.SIGKILL)
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._thread.join(_STOP_SECONDS)
            self._nowhere.close()

    def forget(self) -> None:
        """Use it no more: Chromium or its driver died, or this is a fork of the process, without the thread."""
        self._lost = True

    def _submit(self, work: Coroutine[Any, Any, T], seconds: float) -> T:
        future = asyncio.run_coroutine_threadsafe(asyncio.wait_for(work, seconds), self._loop)
        try:
            return future.result(seconds + _ANSWER_SECONDS)
        except (TimeoutError, concurrent.futures.TimeoutError, concurrent.futures.CancelledError) as error:
            future.cancel()
            raise Fault("browser", str(error) or f"Chromium did not finish within {seconds:g} s") from error
        except BaseException:
            future.cancel()
            raise

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        try:
            self._loop.run_forever()
        finally:
            for task in asyncio.all_tasks(self._loop):
                task.cancel()
            self._loop.run_until_complete(asyncio.sleep(0))
            self._loop.close()

    async def _start(self) -> None:
        try:
            self._playwright = await async_playwright().start()
            program = self.settings.chromium
            chromium = await self._playwright.chromium.launch(
                executable_path=program,
                args=list(FLAGS),
                timeout=1_000 * self.settings.start_seconds,
                # Signals are this process's affair; the driver ends when this process does.
                handle_sigint=False,
                handle_sigterm=False,
                handle_sighup=False,
            )
        except PlaywrightError as error:
            if self.settings.chromium is None and "Executable doesn't exist" in str(error):
                raise SetupError(NO_BROWSER) from error
            raise Fault("browser", f"Chromium cannot be started: {str(error)[:500]}") from error
        chromium.on("disconnected", lambda _: self.forget())
        self._chromium = chromium
        self.version = chromium.version
        await self._list_processes()
        self._started = _start_time(self.pid)

    async def _list_processes(self) -> None:
        session = await self.chromium.new_browser_cdp_session()
        found = await session.send("SystemInfo.getProcessInfo")
        await session.detach()
        self._pids = {process["id"]: process["type"] for process in found["processInfo"]}

    async def _stop(self) -> None:
        if self._chromium is not None:
            with contextlib.suppress(PlaywrightError):
                await self._chromium.close()
        if self._playwright is not None:
            await self._playwright.stop()


_lock = threading.RLock()  # reentrant: a garbage collection may leave a browser while one is joined
_browsers: list[Browser] = []


def join(settings: Settings) -> Browser:
    """Take a place in a Chromium of these settings; a new one is started where there is none that is fit.

    Args:
        settings: How it is, or was, started.

    Raises:
        Fault: If a new one does not start.
        SetupError: If there is no Chromium.
    """
    with _lock:
        for browser in list(_browsers):
            if not browser.alive:
                _browsers.remove(browser)
                browser.end()
            elif browser.settings == settings and not browser.worn:
                browser.taken += 1
                return browser
        browser = Browser(settings)
        browser.taken = 1
        _browsers.append(browser)
        return browser


def leave(browser: Browser) -> None:
    """Give a place back; the browser ends with the last one."""
    with _lock:
        browser.taken -= 1
        last = browser.taken == 0
        if last and browser in _browsers:
            _browsers.remove(browser)
    if last:
        browser.end()


def _pss_mb(pid: int) -> float:
    try:
        lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    except OSError:  # it has ended, or this is no Linux
        return 0.0
    return sum(int(line.split()[1]) for line in lines if line.startswith("Pss:")) / 1024


def _start_time(pid: int) -> str | None:
    """When a process started: with its id it is that process and no later one with the same id."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[19]
    except (OSError, IndexError):
        return None


def _end_all() -> None:
    for browser in list(_browsers):
        browser.end()


def _after_fork() -> None:
    """The browsers stay with the parent; a forked process starts its own."""
    global _lock
    _lock = threading.RLock()  # another thread of the parent may have held it
    for browser in _browsers:
        browser.forget()
    _browsers.clear()


atexit.register(_end_all)
os.register_at_fork(after_in_child=_after_fork)

"""The WebArena scenario: tasks on web sites, done in a real browser on a copy of the sites of one's own.

`docs/scenarios/webarena.md` describes the observations, the sites and the tasks.
"""

from __future__ import annotations

import base64
import contextlib
import io
import json
import random
import threading
import weakref
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import numpy as np
from gymnasium.error import ResetNeeded

from agentgym_envs.core import Fault, Info, Outcome, RefusedAction, Start, TextEnv, _digest, checked_record
from agentgym_envs.tasks import Task, TaskTable
from agentgym_envs.verbs import Verb
from agentgym_envs.webarena import grammar, host, oracle, packages, scoring, tasks
from agentgym_envs.webarena.sites import pristine
from agentgym_envs.webarena.sites.interface import Cookie, SiteServer, Tenant, start_sites
from agentgym_envs.webarena.tasks import WebTask

packages.check_playwright()

from agentgym_envs.webarena import browser as browsers  # noqa: E402 (a missing package is told of first)
from agentgym_envs.webarena.addresses import Addresses  # noqa: E402
from agentgym_envs.webarena.session import Look, Session, Turn  # noqa: E402

_TEXT_VERSION = "text 1"  # a new one as soon as the same actions give another text
_OPEN_SECONDS = 30.0
_MAX_WINDOW = 8_192  # pixels; Chromium dies of much larger ones


class WebArenaEnv(TextEnv):
    """Do the task in the browser, then say so with `stop`, with the answer where one was asked for.

    Score: 1 if everything that the task asks for holds when the agent stops, else 0. `info` also has `url` (the
    current page's address) and `browser` (Chromium's major version, on which texts may depend).

    Starting elsewhere: `options={"init": {"intent": ..., "eval": {...}, "sites": [...], "start_url": ...,
    "logins": {...}, "plan": [...]}}`, a task in WebArena's classic fields; only `intent` and `eval` are needed,
    and `plan` is for the oracle alone.

    An episode is not replayed after a fault, because that would send requests to the sites twice: it ends.
    """

    metadata: dict[str, Any] = {"render_modes": ["ansi", "rgb_array"], "render_fps": 1}  # noqa: RUF012
    scenario: ClassVar[str] = "WebArena"
    verbs: ClassVar[Sequence[Verb]] = grammar.VERBS
    deterministic: ClassVar[bool] = False
    start_sites: ClassVar[host.StartSites] = staticmethod(start_sites)
    traced: ClassVar[bool] = False  # whether sessions keep a record of their requests

    def __init__(
        self,
        *,
        visible_only: bool = False,
        window: tuple[int, int] = (1280, 720),
        max_chars: int = 30_000,
        load_seconds: float = 15.0,
        chromium: str | None = None,
        start_seconds: float = 60.0,
        max_contexts: int = 1_000,
        **options: Any,
    ) -> None:
        """Make the environment; the browser and the sites start at the first reset.

        Args:
            visible_only: Whether observations show what is in the window alone, instead of the whole page.
            window: Width and height of the browser's window, in pixels.
            max_chars: Largest length of a page's text; a longer one ends with a marker.
            load_seconds: What a page may take to load.
            chromium: A Chromium or Chrome; by default that of CHROMIUM_PATH, else the system's, else Playwright's.
            start_seconds: What the start of the browser may take.
            max_contexts: Episodes after which the browser process is replaced.
            options: As in `TextEnv`.

        Raises:
            ValueError: If an argument is not accepted; the message says what is.
        """
        for name, seconds in (("load_seconds", load_seconds), ("start_seconds", start_seconds)):
            if isinstance(seconds, bool) or not isinstance(seconds, int | float) or not 0 < seconds < float("inf"):
                raise ValueError(f"{self.scenario}: {name} is a number above 0, not {seconds!r}.")
        if not isinstance(window, tuple | list) or len(window) != 2:
            raise ValueError(f"{self.scenario}: window is a width and a height in pixels, not {window!r}.")
        if not isinstance(visible_only, bool):
            raise ValueError(f"{self.scenario}: visible_only is True or False, not {visible_only!r}.")
        for name, number, least in (
            ("max_chars", max_chars, 100),
            ("max_contexts", max_contexts, 1),
            *(("window", size, 100) for size in window),
        ):
            if isinstance(number, bool) or not isinstance(number, int) or number < least:
                raise ValueError(f"{self.scenario}: {name} is a whole number of at least {least}, not {number!r}.")
        if max(window) > _MAX_WINDOW:
            raise ValueError(f"{self.scenario}: window is at most {_MAX_WINDOW} wide and high, not {window!r}.")
        super().__init__(**options)
        self._look = Look(window[0], window[1], visible_only, max_chars, float(load_seconds))
        self._settings = browsers.Settings(packages.find_chromium(chromium), start_seconds, max_contexts)
        self._held = Held(type(self).start_sites, self._settings, self.traced)
        # For an environment that is never closed. At the end of this process everything ends by itself.
        weakref.finalize(self, _abandon, self._held).atexit = False

    @classmethod
    def task_table(cls) -> TaskTable:
        """All embedded tasks."""
        return tasks.task_table()

    @classmethod
    def data_hash(cls) -> str:
        """Hashes of the tasks and of the sites' content, and the version of this text."""
        return f"{tasks.tasks_hash()}, {pristine.data_hash()}, {_TEXT_VERSION}"

    @classmethod
    def web_task(cls, task: Task) -> WebTask:
        """Return what a task of the table asks for."""
        return tasks.web_task(tasks.embedded()[task.index])

    @classmethod
    def web_task_of_init(cls, init: Mapping[str, Any]) -> WebTask:
        """Return what `options["init"]` asks for.

        Raises:
            ValueError: If it is not accepted.
        """
        return tasks.task_of_init(init)

    def oracle_action(self) -> str | None:
        """The next action of the task's plan on the page that the agent sees; None where it has none.

        Raises:
            gymnasium.error.ResetNeeded: If there was no reset yet.
        """
        self._check_episode()
        return None if self._outcome.end else oracle.next_action(self._web.plan, self._turn_seen.view)

    def render(self) -> Any:
        """Return the last turn as text, or the browser's window as an image.

        Returns:
            For `render_mode="ansi"` a string, for `"rgb_array"` an array of uint8, [height, width, 3].

        Raises:
            agentgym_envs.Fault: If the browser died.
        """
        if self.render_mode != "rgb_array":
            return super().render()
        from PIL import Image

        session = self._held.session
        if session is None:
            raise ResetNeeded(f"{self.scenario}: there is no episode; call reset() first.")
        image = Image.open(io.BytesIO(self._held.call(session.screenshot())))
        return np.asarray(image.convert("RGB"))

    def state_hash(self) -> str:
        """Return a hash of everything that this environment's sites hold: databases, uploads, settings, clock.

        Raises:
            agentgym_envs.Fault: If the sites cannot be reached.
            gymnasium.error.ResetNeeded: If there was no reset yet.
        """
        self._check_episode()
        return self._held.tenant().state_hash()

    def close(self) -> None:
        """Close the tabs and leave the browser and the sites, which end with the last environment in them."""
        self._held.close()
        self._record = None
        super().close()

    # ---- the episode --------------------------------------------------------------------------------

    def _task_of_init(self, init: Mapping[str, Any]) -> Task:
        subset = tasks.SUBSETS[self.web_task_of_init(init).sites[0]]
        return Task(f"webarena-init_{_digest(json.dumps(init, sort_keys=True))[:8]}", -1, subset, "train", "custom")

    def _begin(self, task: Task, rng: random.Random, init: Mapping[str, Any] | None) -> Start:
        del rng  # a task says everything: nothing is drawn
        web = self._task_at_hand(task, init)
        self._held.close_session()  # first, or its pages could still send something
        cookies = self._held.tenant().reset(web.logins)
        questions = () if init is None else web.evaluation.get("state") or ()
        for wanted in questions:  # one that cannot be asked is told of now, and not when the agent is done
            self._held.tenant().query(wanted["site"], wanted["query"], **wanted.get("arguments", {}))
        self._open([_playwright_cookie(cookie) for site in cookies.values() for cookie in site])
        turn = self._held.turn("start", web.start_urls)
        sites = ", ".join(f"http://{site}/" for site in self._held.addresses.origins)
        self._head = f"Task: {web.intent}\nSites: {sites}\n"
        return Start(self._shown(turn), web.intent, info=self._facts())

    def _act(self, action: str) -> Outcome:
        try:
            command = grammar.parse(action)
        except grammar.NotUnderstood as error:
            return self._told(str(error), valid=False)
        if command.verb is grammar.stop:
            score = self._score(command.text)
            told = "The task was ended."
            return Outcome(told, score, score == 1.0, end="answer", info=self._facts())
        turn = self._held.turn("turn", command)
        self._head = f"{turn.told}\n"
        return Outcome(self._shown(turn), 0.0, valid=turn.valid, info=self._facts())

    def _restart(self) -> None:
        self._held.close()

    def _task_at_hand(self, task: Task, init: Mapping[str, Any] | None) -> WebTask:
        self._web = self.web_task(task) if init is None else self.web_task_of_init(init)
        return self._web

    def _open(self, cookies: Sequence[Mapping[str, Any]], storage: Sequence[Mapping[str, Any]] = ()) -> None:
        self._held.open(self._look, cookies, storage)

    def _shown(self, turn: Turn) -> str:
        self._turn_seen = turn
        return f"{self._head}{turn.view}"

    def _told(self, told: str, valid: bool) -> Outcome:
        self._head = f"{told}\n"
        return Outcome(self._shown(self._turn_seen), 0.0, valid=valid, info=self._facts())

    def _facts(self) -> Info:
        return {"url": self._turn_seen.url, "browser": f"Chromium {self._held.version}"}

    def _score(self, answer: str) -> float:
        """Score the episode without leaving a trace of it in the sites."""
        session, tenant = self._held.session, self._held.tenant()
        assert session is not None

        def read(url: str, expression: str) -> str:
            return str(self._held.call(session.evaluate(url, expression)))

        opens_pages = any(target["url"] != "last" for target in self._web.evaluation.get("program_html") or ())
        before = tenant.snapshot() if opens_pages else b""
        score = scoring.score(self._web.evaluation, answer, self._turn_seen.url, tenant.query, read)
        if opens_pages:
            tenant.restore(before)
        return score

    # ---- snapshots ----------------------------------------------------------------------------------

    def _snapshot_record(self) -> dict[str, Any]:
        """Return what every scenario saves, and what opens the pages again on the saved state of the sites.

        The latter only if every tab shows a page that its address gives and on which nothing was done since. That is
        faster, and it is checked by the same hash; otherwise restoring replays.
        """
        record = super()._snapshot_record()
        if self._running and not (self._actions and isinstance(self._actions[-1], RefusedAction)):
            with contextlib.suppress(Fault):  # then the replay alone is saved
                record |= self._state()
        return record

    def _state(self) -> dict[str, Any]:
        session = self._held.session
        assert session is not None
        tabs = self._held.call(session.state())
        if tabs is None:
            return {}
        server = base64.b64encode(self._held.tenant().snapshot()).decode()
        return {"state": {"browser": tabs, "server": server, "head": self._head, "valid": self._outcome.valid}}

    def _replay(self, record: Mapping[str, Any]) -> None:
        state = record.get("state")
        if state is None or not self._resume(record, state):
            super()._replay(record)

    def _resume(self, record: Mapping[str, Any], state: Mapping[str, Any]) -> bool:
        """Open the pages of a snapshot again; False if that did not give its observation."""
        checked_record("WebArena: the snapshot's state", state, browser=dict, server=str, head=str, valid=bool)
        start, saved = record["start"], state["browser"]
        init = start["init"]
        task = self._task_of_init(init) if init is not None else self.task_table().find(start["task"])
        web = self._task_at_hand(task, init)
        try:
            self._held.close_session()
            tenant = self._held.tenant()
            server = base64.b64decode(state["server"])
            tenant.reset(web.logins)
            tenant.restore(server)
            origins = tenant.origins
            cookies = [{**cookie, "domain": Addresses(origins).host(cookie["domain"])} for cookie in saved["cookies"]]
            self._open(cookies, [{**item, "origin": origins[item["origin"]]} for item in saved["storage"]])
            turn = self._held.turn("resume", saved)
            tenant.restore(server)  # the requests of opening the tabs have not happened
            session = self._held.session
            assert session is not None
            self._held.call(session.set_cookies(cookies))
        except (Fault, KeyError, TypeError):
            self._restart()
            return False
        self._head = state["head"]
        observation = self._shown(turn)
        outcome = Outcome(observation, 0.0, valid=state["valid"], info=self._facts())
        self._accept(outcome)
        if _digest(self._observation) != record["observation"]:
            return False
        self._record, self._task, self._goal = dict(start), task, web.intent
        self._actions = [
            RefusedAction("", entry["refused"]) if isinstance(entry, dict) else entry for entry in record["actions"]
        ]
        self._prefix, self._paid = record["prefix"], 0.0
        self._running = True
        return True


class Held:
    """What an environment holds: a tenant of the sites, a place in a browser, and its session there."""

    def __init__(self, start: host.StartSites, settings: browsers.Settings, traced: bool) -> None:
        self._start = start
        self._traced = traced
        self._settings = settings
        self._server: SiteServer | None = None
        self._tenant: Tenant | None = None
        self._browser: browsers.Browser | None = None
        self.session: Session | None = None
        self.version = ""

    @property
    def addresses(self) -> Addresses:
        """Of the tenant's sites."""
        return Addresses(self.tenant().origins)

    def tenant(self) -> Tenant:
        """Return the tenant, of a new server where it has died.

        Raises:
            Fault: If no server starts.
        """
        if self._server is not None and not self._server.alive:
            self._leave_sites()
        if self._server is None:
            self._server = host.join(self._start)
        if self._tenant is None:
            self._tenant = self._server.open_tenant()
        return self._tenant

    def open(self, look: Look, cookies: Sequence[Mapping[str, Any]], storage: Sequence[Mapping[str, Any]]) -> None:
        """Open a session, of a new browser where that has died or is worn.

        Raises:
            Fault: If no browser starts.
        """
        if self._browser is not None and (self._browser.worn or not self._browser.alive):
            self._leave_browser()
        if self._browser is None:
            self._browser = browsers.join(self._settings)
        self._look = look
        self.version = self._browser.version.partition(".")[0]
        tenant = self.tenant()
        addresses = Addresses(tenant.origins)
        opening = Session.open(self._browser, addresses, look, tenant.clock(), cookies, storage, self._traced)
        self.session = self._browser.call(opening, _OPEN_SECONDS)
        self._browser.opened_context()

    def turn(self, method: str, argument: Any) -> Turn:
        """Call one of the session's methods that end with a look at the page.

        Raises:
            Fault: If the browser or a site died.
        """
        assert self.session is not None
        work = getattr(self.session, method)(argument)
        # Twice, for a page that opens another one.
        turn: Turn = self.call(work, _OPEN_SECONDS + 2 * self._look.load_seconds)
        return turn

    def call(self, work: Any, seconds: float = _OPEN_SECONDS) -> Any:
        """Run a coroutine of the session.

        Raises:
            Fault: If the browser or a site died.
        """
        assert self._browser is not None
        return self._browser.call(work, seconds)

    def close(self) -> None:
        """Free everything; what has died is left behind."""
        self.close_session()
        self._leave_browser()
        self._leave_sites()

    def close_session(self) -> None:
        """Close the tabs."""
        session, self.session = self.session, None
        if session is not None:
            with contextlib.suppress(Fault):
                self.call(session.close())

    def _leave_browser(self) -> None:
        browser, self._browser = self._browser, None
        if browser is not None:
            browsers.leave(browser)

    def _leave_sites(self) -> None:
        tenant, self._tenant = self._tenant, None
        server, self._server = self._server, None
        if tenant is not None:
            with contextlib.suppress(Fault):
                tenant.close()
        if server is not None:
            host.leave(server)


def _abandon(held: Held) -> None:
    """Free what an environment held that is gone: in a thread, as this may be the browser's own."""
    threading.Thread(target=held.close, daemon=True).start()


def _playwright_cookie(cookie: Cookie) -> dict[str, Any]:
    return {
        "name": cookie.name,
        "value": cookie.value,
        "url": cookie.url,
        "httpOnly": cookie.http_only,
        "sameSite": cookie.same_site,
    }


def make(source: str = "embedded", **options: Any) -> WebArenaEnv:
    """Make a WebArena environment; the registered ids call this.

    Args:
        source: `"embedded"` for the sites and tasks of this package, `"external"` for sites of the user's own.
        options: As for `WebArenaEnv`, and for external sites as for `external_env.make_external`.

    Raises:
        ValueError: If an argument is not accepted.
    """
    if source == "embedded":
        return WebArenaEnv(**options)
    if source == "external":
        from agentgym_envs.webarena.external_env import make_external

        return make_external(**options)
    raise ValueError(f"WebArena: unknown source {source!r}; accepted are 'embedded' and 'external'.")

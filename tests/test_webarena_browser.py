"""The browser half of WebArena: a real Chromium on small real sites of this test's own."""

import asyncio
import gc
import json
import os
import re
import signal
import subprocess
import sys
import threading
import time
import tracemalloc
from collections.abc import Iterator
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest
from gymnasium.error import ResetNeeded

from agentgym_envs import Fault, Task, TaskTable
from agentgym_envs.webarena import browser as browsers
from agentgym_envs.webarena import grammar, host, packages, page
from agentgym_envs.webarena.addresses import Addresses, RefusedAddress
from agentgym_envs.webarena.env import WebArenaEnv
from agentgym_envs.webarena.tasks import WebTask, web_task
from tests.web_agent import act, find, gone, refused
from tests.web_sites import WebSites

ROOT = Path(__file__).parents[1]
WRITE_A_NOTE: dict[str, Any] = {
    "intent": "Write a note.",
    "sites": ["shopping", "reddit"],
    "logins": {"shopping": "emma"},
    "eval": {"state": [{"site": "shopping", "query": "notes", "equals": [{"text": "hello"}]}]},
}


class StubEnv(WebArenaEnv):
    """The environment on this test's sites."""

    start_sites: ClassVar[host.StartSites] = staticmethod(WebSites)

    @classmethod
    def task_table(cls) -> TaskTable:
        return TaskTable("WebArena", [Task("webarena-stub_0", 0, "Shopping", "train", "embedded")])

    @classmethod
    def data_hash(cls) -> str:
        return "stub"

    @classmethod
    def web_task(cls, task: Task) -> WebTask:
        return web_task(WRITE_A_NOTE)


@pytest.fixture(scope="module")
def keeper() -> Iterator[StubEnv]:
    """Keeps the browser and the sites running between the tests."""
    env = StubEnv()
    env.reset(seed=0)
    yield env
    env.close()
    assert browsers._browsers == []
    assert host._hosts == []


@pytest.fixture
def env(keeper: StubEnv) -> Iterator[StubEnv]:
    env = StubEnv()
    env.reset(seed=0)
    yield env
    env.close()


def sites(env: StubEnv) -> WebSites:
    server = env._held._server
    assert isinstance(server, WebSites)
    return server


# ---- what is seen --------------------------------------------------------------------------------------

UPLOAD = "button 'Upload'"
HANG = "link 'Hang'"
HOME = """\
Tab 0 (current): 'Home of shopping'
URL: http://shopping/
[1] RootWebArea 'Home of shopping'
  [2] heading 'Welcome to shopping' level: 1
  [3] navigation
    [4] link 'Form'
    [5] link 'Odd things'
    [6] link 'Notes'
    [7] link 'Long'
    [8] link 'Outside'
    [9] link 'Forum'
    [10] link 'Who'
  [11] StaticText 'Some stressed text on shopping.'
  [12] table
    [13] row
      [14] columnheader 'Name'
      [15] columnheader 'Price'
    [16] row
      [17] cell 'Cup'
      [18] cell '$3.20'
    [19] row
      [20] cell
        [21] link 'Big cup'
      [22] cell '$4'
  [23] StaticText '2023-11-14T22:13:20.000Z'"""


def test_the_first_observation_is_the_task_and_the_page(env: StubEnv) -> None:
    observation, info = env.reset(seed=1)
    assert observation == (
        "Task: Write a note.\nSites: http://shopping/, http://cms/, http://reddit/, http://gitlab/\n" + HOME
    )
    assert info["goal"] == "Write a note."
    assert info["url"] == "http://shopping/"
    assert str(info["browser"]).startswith("Chromium ")
    assert env.observation_space.contains(observation)


def test_the_same_actions_give_the_same_text(env: StubEnv, keeper: StubEnv) -> None:
    keeper.reset(seed=0)
    texts = []
    for some in (env, keeper):
        texts.append(
            [act(some, "click", "link 'Odd things'"), act(some, "click", "button 'Later'"), act(some, "go_back")]
        )
    assert texts[0] == texts[1]
    assert "Tab 0 (current): 'came later'" in texts[0][1]  # a timer and a request of the page were waited for
    addresses = env._held.addresses.origins, keeper._held.addresses.origins
    assert addresses[0] != addresses[1]
    assert not any(origin in text for origin in addresses[0].values() for text in texts[0])


def test_only_what_is_in_the_window() -> None:
    env = StubEnv(visible_only=True)
    env.reset(seed=0)
    top = act(env, "goto [http://shopping/long]")
    below = act(env, "scroll [down]")
    assert "'Line 0'" in top
    assert "'Line 0'" not in below
    *_, line = re.finditer(r"\[(\d+)\] StaticText '(Line \d+)'", below)
    assert "'Line 399'" not in below
    assert act(env, "goto [http://shopping/long]").count("StaticText") < 50
    assert "shows ids from 1 to" in refused(env, f"click [{line[1]}]")  # an id of the whole page, not shown now
    assert act(env, "scroll [down]").partition("\n")[2] == below.partition("\n")[2]
    env.close()


def test_a_long_page_ends_with_a_marker() -> None:
    env = StubEnv(max_chars=500)
    env.reset(seed=0)
    observation = act(env, "goto [http://shopping/long]")
    assert re.search(r"\n\[the page goes on: \d+ more lines\]$", observation)
    assert len(observation) < 800
    assert "There is no element [400]" in refused(env, "click [400]")
    env.close()


def test_the_window_as_an_image() -> None:
    env = StubEnv(render_mode="rgb_array", window=(640, 400))
    env.reset(seed=0)
    image = env.render()
    assert image.shape == (400, 640, 3)
    assert image.dtype == np.uint8
    assert len(np.unique(image)) > 10
    env.close()


def test_what_a_page_adds_is_waited_for(env: StubEnv) -> None:
    assert "StaticText 'All there'" in act(env, "goto [http://shopping/chain]")


def test_inner_frames_are_part_of_the_page(env: StubEnv) -> None:
    observation = act(env, "goto [http://shopping/framed]")
    for line in ("Iframe 'Inside'", "RootWebArea 'Form'", "textbox 'Text' value: 'old'", "'Old text'", "button 'Deep'"):
        assert line in observation
    assert observation.index("'Outside'") < observation.index("'Search'") < observation.index("'Deep'")
    assert "value: 'new'" in act(env, "type [new] [0]", "textbox 'Text'")
    assert "checked: true" in act(env, "click", "checkbox 'Agree'")
    assert "textbox value: 'Better'" in act(env, "type [Better] [0]", "textbox value: 'Old text'")
    assert "Tab 0 (current): '1'" in act(env, "click", "button 'Deep'")
    assert "'1 notes'" in act(env, "click", "button 'Send'")
    shown = StubEnv(visible_only=True, window=(800, 250))
    shown.reset(seed=0)
    observation = act(shown, "goto [http://shopping/framed]")
    assert "textbox 'Text'" in observation
    assert "button 'Deep'" not in observation
    shown.close()


def test_text_in_quotes_stays_on_one_line() -> None:
    assert page.quote("it's\na  line") == '"it\'s a line"'
    assert page.quote('it\'s "so"') == "'it\\'s \"so\"'"
    assert page.quote("\\") == "'\\\\'"


# ---- what is done --------------------------------------------------------------------------------------


def test_a_form_is_filled_and_sent_and_scored(env: StubEnv) -> None:
    act(env, "click", "link 'Form'")
    act(env, "type [hello] [0]", "textbox 'Text'")
    assert "value: 'Small'" in act(env, "click", "option 'Small'")
    assert "value: 'Large'" in act(env, "type [large] [0]", "combobox 'Size'")
    assert "checked: true" in act(env, "click", "checkbox 'Agree'")
    act(env, "type [2023-02-03] [0]", "Date 'Day'")
    act(env, "type [two\nlines, [even] so] [0]", "textbox 'More'")
    observation = act(env, "click", "button 'Send'")
    assert "URL: http://shopping/notes\n" in observation
    tenant = env._held.tenant()
    assert tenant.query("shopping", "notes") == [
        {"text": "hello", "size": "Large", "agree": "on", "day": "2023-02-03", "more": "two\r\nlines, [even] so"}
    ]
    before = tenant.state_hash()
    _, reward, terminated, truncated, info = env.step("stop []")
    assert (reward, terminated, truncated, info["end"], info["success"]) == (1.0, True, False, "answer", True)
    assert tenant.state_hash() == before
    with pytest.raises(ResetNeeded):
        env.step("stop []")


def test_an_agent_that_does_nothing_scores_nothing(env: StubEnv) -> None:
    for answer in ("", "N/A", "hello"):
        env.reset(seed=0)
        _, reward, *_, info = env.step(f"stop [{answer}]")
        assert (reward, info["success"], info["end"]) == (0.0, False, "answer")


def test_enter_sends_a_form_by_default(env: StubEnv) -> None:
    act(env, "click", "link 'Form'")
    assert "URL: http://shopping/notes?q=cup\n" in act(env, "type [cup]", "textbox 'Search'")


def test_history_passes_over_what_a_form_led_to(env: StubEnv) -> None:
    act(env, "click", "link 'Form'")
    assert "'Empty.'" in act(env, "type [ ] [1]", "textbox 'Text'")  # a page that no address gives
    assert "URL: http://shopping/form\n" in act(env, "go_back")
    assert "URL: http://shopping/\n" in act(env, "go_back")
    assert "There is no earlier page" in refused(env, "go_back")
    assert "URL: http://shopping/form\n" in act(env, "go_forward")
    assert "There is no later page" in refused(env, "go_forward")
    assert sites(env).requests.count(f"POST {env._held.addresses.origins['shopping'][7:]}/notes") == 1


def test_tabs(env: StubEnv) -> None:
    assert "Tab 0: 'Home of shopping' | Tab 1 (current): ''\nURL: about:blank" in act(env, "new_tab")
    act(env, "goto [http://reddit/notes]")
    assert "Tab 0 (current): 'Home of shopping' | Tab 1: 'Notes'\n" in act(env, "tab_focus [0]")
    assert "There is no tab 2; accepted are 0 to 1." in refused(env, "tab_focus [2]")
    assert "URL: http://reddit/notes\n" in act(env, "close_tab")
    assert "Tab 0 (current): ''\nURL: about:blank" in act(env, "close_tab")
    for _ in range(9):
        act(env, "new_tab")
    assert "There are 10 tabs already" in refused(env, "new_tab")


def test_popups_are_followed_and_bounded(env: StubEnv) -> None:
    act(env, "click", "link 'Odd things'")
    observation = act(env, "click", "link 'New window'")
    assert (
        "The page opened tab 1.\nTab 0: 'Odd' | Tab 1 (current): 'Notes'\nURL: http://shopping/notes\n" in observation
    )
    act(env, "tab_focus [0]")
    observation = act(env, "click", "button 'Many windows'")
    assert "there are 10 at most" in observation
    assert "Tab 9" in observation
    assert "Tab 10" not in observation


def run(env: StubEnv, script: str) -> None:
    """Run a script of the page's own."""
    session = env._held.session
    assert session is not None
    env._held.call(session._evaluate(session._tab, script))


def test_popups_that_come_at_any_time_are_bounded_too(env: StubEnv) -> None:
    run(env, "for (let i = 0; i < 14; i++) setTimeout(() => window.open('/notes?' + i), 0)")
    seen = [env.step("scroll [down]")[0] for _ in range(5)]
    assert all(observation.count("Tab ") <= 10 for observation in seen)
    assert any("wanted to open another tab" in observation for observation in seen)
    assert "There are 10 tabs already" in refused(env, "new_tab")


def test_a_title_of_half_a_character_is_text(env: StubEnv) -> None:
    run(env, r"document.title = '\ud800 half'")
    observation = act(env, "scroll [down]")
    assert "Tab 0 (current): '? half'" in observation
    observation.encode()


def test_a_page_that_breaks_the_language_is_a_fault(env: StubEnv) -> None:
    run(env, "window.performance.getEntriesByType = null; null")
    assert env.step("scroll [down]")[4]["fault_kind"] == "browser"
    assert HOME in env.reset(seed=0)[0]


def test_dialogs_downloads_and_files(env: StubEnv) -> None:
    act(env, "click", "link 'Odd things'")
    assert "The page showed 'Careful!'; it was answered with OK." in act(env, "click", "button 'Alert'")
    assert "'agreed'" in act(env, "click", "button 'Confirm'")
    assert "answered with Cancel" in act(env, "click", "button 'Prompt'")
    assert "The download of 'a.csv' was refused" in act(env, "click", "link 'Download'")
    assert "URL: http://shopping/odd\n" in env._observation
    assert "asks for a file" in refused(env, f"click [{find(env, UPLOAD)}]")
    assert "'covered'" in act(env, "click", "button 'Covered'")


def test_keys_and_pointer(env: StubEnv) -> None:
    act(env, "click", "link 'Form'")
    act(env, "click", "textbox 'Text'")
    act(env, "press [ctrl+a]")
    assert "value: 'x'" in act(env, "press [x]")
    assert "The pointer is over" in act(env, "hover", "button 'Send'")
    for keys in ("ctrl+v", "Control+C", "shift+insert", "meta+x"):
        assert "there is no clipboard" in refused(env, f"press [{keys}]")


@pytest.mark.parametrize(
    ("action", "told"),
    [
        ("", "Accepted are: click [<id>]; type"),
        ("click", "write click [<id>]."),
        ("click [-1]", "write click [<id>]."),
        ("click [99999999999999]", "write click [<id>]."),
        ("click [\u0663]", "write click [<id>]."),
        ("click [9999]", "There is no element [9999]; the observation shows ids from 1 to 23."),
        ("click [1]\nclick [2]", "one action on one line"),
        ("type [4] [x] [2]", "1 to press Enter or 0"),
        ("type [4]", "write type [<id>]"),
        ("type [4] [x] [0]", "link 'Form' takes no text"),
        ("press [ctrl+nothing]", "accepted are one character"),
        ("scroll [left]", "write scroll [<direction>]"),
        ("goto []", "write goto [<url>]"),
        ("goto [file:///etc/passwd]", "the scheme file: is not allowed"),
        ("goto [view-source:http://shopping/]", "the scheme view-source: is not allowed"),
        ("goto [javascript:alert(1)]", "the scheme javascript: is not allowed"),
        ("goto [data:text/html,x]", "the scheme data: is not allowed"),
        ("goto [chrome://version]", "the scheme chrome: is not allowed"),
        ("goto [about:blank]", "the scheme about: is not allowed"),
        ("goto [http://example.com/]", "example.com is none of the sites"),
        ("goto [http://shopping.evil/]", "shopping.evil is none of the sites"),
        ("goto [http://shopping@evil/]", "is none of the sites"),
        ("goto [http://shopping:8000/]", "is none of the sites"),
        ("goto [http://127.0.0.1:36000/]", "is none of the sites"),
        ("goto [http://[::1/]", "is no address"),
        ("dance [1]", "Accepted are: click"),
    ],
)
def test_bad_actions_are_refused_and_explained(keeper: StubEnv, action: str, told: str) -> None:
    if not keeper._running or "shows" not in told:
        keeper.reset(seed=0)
    observation = refused(keeper, action)
    assert told in observation
    assert HOME in observation


@pytest.mark.timeout(120)  # without a stall it takes seconds
def test_any_text_is_answered(env: StubEnv) -> None:
    for action in (
        "\x00\ud800[",
        "[" * 8000,
        "type [1] [" * 700,
        "type [1] [x] [" + " " * 8000 + "x",  # a pattern that tries every division of the space would take minutes
        "goto [http://shopping/" + "a" * 8000 + "]",
        "`click [1]`",
    ):
        observation, *_, info = env.step(action)
        assert env.observation_space.contains(observation)
        assert "fault" not in info
    assert act(env, "goto [http://shopping/]").endswith(HOME)


# ---- nothing else is reached ---------------------------------------------------------------------------


def test_nothing_but_the_sites_is_reached(env: StubEnv) -> None:
    assert "The link leads to http://example.com/, which is outside" in act(env, "click", "link 'Outside'")
    assert "URL: http://shopping/\n" in env._observation
    assert "URL: http://reddit/notes\n" in act(env, "click", "link 'Forum'")
    act(env, "goto [http://shopping/odd]")
    asked = len(sites(env).requests)
    assert "'refused'" in act(env, "click", "button 'Neighbour'")
    assert "outside of the sites and was not opened" in act(env, "click", "button 'Other port'")
    assert sites(env).requests[asked:] == []
    act(env, "go_back")
    assert "http://example.com/x, which is outside" in act(env, "click", "link 'Away'")
    assert "URL: http://shopping/odd\n" in act(env, "go_back")


def test_addresses() -> None:
    addresses = Addresses({"shopping": "http://shopping.t1.localhost:8000/", "cms": "http://cms.t1.localhost:8000"})
    assert addresses.inner("http://shopping//a/?q=1#x") == "http://shopping.t1.localhost:8000/a/?q=1#x"
    assert addresses.inner("shopping/a") == "http://shopping.t1.localhost:8000/a"
    assert addresses.outer("see http://cms.t1.localhost:8000/x, cms.t1.localhost") == "see http://cms/x, cms"
    assert addresses.outer("?next=http%3A%2F%2Fshopping.t1.localhost%3A8000%2F") == "?next=http%3A%2F%2Fshopping%2F"
    assert addresses.outer("?next=http%3a%2f%2fcms.t1.localhost%2Fx") == "?next=http%3a%2f%2fcms%2Fx"
    assert addresses.outer("http://shopping.t1.localhost:80001/") == "http://shopping:80001/"
    assert addresses.outer("http://shopping.t11.localhost:8000/") == "http://shopping.t11.localhost:8000/"
    for url in (
        "http://shopping\\@evil/",
        "//evil/",
        "http:///x",
        "http://shopping.t1.localhost:8000/",
        "ftp://shopping/",
    ):
        with pytest.raises(RefusedAddress):
            addresses.inner(url)
    with pytest.raises(ValueError, match="give http://host"):
        Addresses({"shopping": "shopping.example/shop"})


def test_addresses_of_environments_that_are_gone_take_no_memory() -> None:
    def used() -> int:
        gc.collect()
        return tracemalloc.get_traced_memory()[0]

    def come_and_go(labels: range) -> None:
        for label in labels:
            origin = f"http://shopping.t{label}.localhost:8000"
            assert Addresses({"shopping": origin}).outer(f"{origin}/") == "http://shopping/"

    come_and_go(range(10))
    tracemalloc.start()
    try:
        before = used()
        come_and_go(range(10, 110))
        assert used() - before < 50_000  # a compiled pattern for each was 700,000
    finally:
        tracemalloc.stop()


def test_an_episode_leaves_nothing_to_the_next(env: StubEnv, keeper: StubEnv) -> None:
    keeper.reset(seed=0)
    act(env, "click", "link 'Form'")
    act(env, "type [mine] [1]", "textbox 'Text'")
    assert "'1 notes'" in env._observation
    assert "'0 notes'" in act(keeper, "goto [http://shopping/notes]")
    env.reset(seed=0)
    assert "'0 notes'" in act(env, "goto [http://shopping/notes]")
    assert "'You are user=emma'" in act(env, "goto [http://shopping/whoami]")
    assert "'You are nobody'" in act(env, "goto [http://reddit/whoami]")
    assert env.step("nonsense")[4]["turn"] == 4


# ---- threads, snapshots --------------------------------------------------------------------------------


def test_any_thread_and_a_running_loop(env: StubEnv) -> None:
    results: list[str] = []
    thread = threading.Thread(target=lambda: results.append(act(env, "click", "link 'Notes'")))
    thread.start()
    thread.join(60)

    async def inside() -> None:
        results.append(act(env, "go_back"))

    asyncio.run(inside())
    assert "'0 notes'" in results[0]
    assert HOME in results[1]


def test_a_snapshot_is_opened_again(env: StubEnv) -> None:
    for action in (
        "goto [http://shopping/form]",
        "new_tab",
        "goto [http://reddit/]",
        "goto [http://reddit/long]",
        "scroll [down]",
    ):
        act(env, action)
    saved = env.snapshot()
    assert "state" in json.loads(saved)
    asked = len(sites(env).requests)
    seen = env._observation
    states = env._held.tenant().state_hash()
    assert act(env, "go_back") != seen
    twin = StubEnv()
    for some in (twin, env):
        observation, info = some.restore(saved)
        assert observation == seen
        assert info["turn"] == 5
        assert some._held.tenant().state_hash() == states
        assert "URL: http://reddit/\n" in act(some, "go_back")
        assert "URL: http://shopping/form\n" in act(some, "tab_focus [0]")
    opened = [
        request for request in sites(env).requests[asked:] if env._held.addresses.origins["reddit"][7:] in request
    ]
    assert len(opened) <= 4  # go_back, the restored tab, go_back, and a favicon: nothing was replayed
    twin.close()


def test_what_cannot_be_opened_again_is_replayed(env: StubEnv) -> None:
    act(env, "click", "link 'Form'")
    states = []
    act(env, "type [half a] [0]", "textbox 'Text'")  # in the middle of a form
    states.append((env.snapshot(), env._observation))
    act(env, "type [ ] [1]", "textbox 'Text'")  # a page that answered a form
    states.append((env.snapshot(), env._observation))
    act(env, "type [hello] [1]", "textbox 'Text'")
    act(env, "go_back")
    states.append((env.snapshot(), env._observation))
    for saved, seen in states[:2]:
        assert "state" not in json.loads(saved)
        assert env.restore(saved)[0] == seen
    saved, seen = states[2]
    observation, info = env.reset(options={"snapshot": saved})
    assert observation == seen
    assert info["turn"] == 0
    assert env._held.tenant().query("shopping", "count") == 1
    assert "URL: http://shopping/notes\n" in act(env, "go_forward")


def test_a_snapshot_that_does_not_fit_is_replayed(env: StubEnv) -> None:
    act(env, "goto [http://shopping/notes]")
    record = json.loads(env.snapshot())
    record["state"]["browser"]["tabs"][0]["history"][-1][0] = "http://shopping/long"
    assert env.restore(json.dumps(record).encode())[0] == env._observation
    assert "'0 notes'" in env._observation


# ---- death ---------------------------------------------------------------------------------------------


def test_a_killed_chromium_ends_the_episodes_in_it_and_no_others() -> None:
    env, other = StubEnv(load_seconds=20.0), StubEnv(max_contexts=999)
    for some in (env, other):
        some.reset(seed=0)
    browser = env._held._browser
    assert browser is not None
    assert browser is not other._held._browser
    killer = threading.Timer(1.0, os.kill, (browser.pid, signal.SIGKILL))
    killer.start()
    observation, reward, terminated, truncated, info = env.step("goto [http://shopping/hang]")
    killer.join()
    assert (reward, terminated, truncated) == (0.0, False, True)
    assert (info["end"], info["fault_kind"]) == ("fault", "browser")
    assert HOME in observation
    assert "URL: http://shopping/notes\n" in act(other, "goto [http://shopping/notes]")
    with pytest.raises(ResetNeeded):
        env.step("go_back")
    assert HOME in env.reset(seed=0)[0]
    assert env._held._browser is not browser
    for some in (env, other):
        some.close()


def test_a_killed_driver_is_replaced(env: StubEnv) -> None:
    lonely = StubEnv(max_contexts=998)
    lonely.reset(seed=0)
    browser = lonely._held._browser
    assert browser is not None
    os.kill(driver_of(browser), signal.SIGKILL)
    assert lonely.step("goto [http://shopping/]")[4]["fault_kind"] == "browser"
    assert HOME in lonely.reset(seed=0)[0]
    assert gone(browser.pid)
    lonely.close()


def test_a_driver_that_is_killed_in_mid_step_is_a_fault(env: StubEnv) -> None:
    lonely = StubEnv(max_contexts=995, load_seconds=50.0)
    lonely.reset(seed=0)
    browser = lonely._held._browser
    assert browser is not None
    requests, asked, driver = sites(lonely).requests, len(sites(lonely).requests), driver_of(browser)

    def kill() -> None:
        while not any("/hang" in request for request in requests[asked:]):
            time.sleep(0.01)
        os.kill(driver, signal.SIGKILL)

    threading.Thread(target=kill, daemon=True).start()
    assert lonely.step("goto [http://shopping/hang]")[4]["fault_kind"] == "browser"
    assert HOME in lonely.reset(seed=0)[0]
    lonely.close()


def test_the_error_without_a_class_that_a_dead_driver_leaves_is_a_fault() -> None:
    lonely = StubEnv(max_contexts=994)
    lonely.reset(seed=0)
    browser = lonely._held._browser
    assert browser is not None

    async def raises(error: Exception) -> None:
        raise error

    with pytest.raises(KeyError, match="ours"):
        browser.call(raises(KeyError("ours")), 5)  # a mistake of this package stays one
    with pytest.raises(Fault, match="driver died"):
        browser.call(raises(Exception("Connection closed while reading from the driver")), 5)
    assert HOME in lonely.reset(seed=0)[0]
    assert gone(browser.pid)
    lonely.close()


def driver_of(browser: browsers.Browser) -> int:
    driver = browser.pid
    while "/driver/node" not in Path(f"/proc/{driver}/cmdline").read_text():
        driver = int(Path(f"/proc/{driver}/stat").read_text().rpartition(")")[2].split()[1])
    return driver


def test_a_crashed_page_is_told_of(env: StubEnv) -> None:
    lonely = StubEnv(max_contexts=997)
    lonely.reset(seed=0)
    browser = lonely._held._browser
    assert browser is not None
    browser.memory_mb()
    act(lonely, "goto [http://shopping/odd]")
    browser.memory_mb()
    assert "state" in json.loads(lonely.snapshot())
    for pid, kind in browser._pids.items():
        if kind == "renderer":
            os.kill(pid, signal.SIGKILL)
    assert "state" not in json.loads(lonely.snapshot())  # what the page holds cannot be asked any more
    observation, *_, info = lonely.step("click [2]")
    assert "fault" not in info
    assert "crashed" in observation
    assert HOME in act(lonely, "goto [http://shopping/]")
    lonely.close()


def test_a_page_that_does_not_answer_is_a_fault() -> None:
    env = StubEnv(load_seconds=1.0)
    env.reset(seed=0)
    for action in ("goto [http://shopping/hang]", "click"):
        env.reset(seed=0)
        if action == "click":
            act(env, "click", "link 'Odd things'")
            action = f"click [{find(env, HANG)}]"
        _, reward, _, truncated, info = env.step(action)
        assert (reward, truncated, info["fault_kind"]) == (0.0, True, "site")
        assert info["fault"] == "http://shopping/hang did not answer within 1 s"
    env.reset(seed=0)
    act(env, "click", "link 'Odd things'")
    assert "still loading" in act(env, "click", "button 'Endless'")  # a script that does not end is ended
    assert HOME in act(env, "go_back")
    env.close()


def test_a_dead_site_is_a_fault_and_the_next_reset_mends_it() -> None:
    class OtherEnv(StubEnv):
        start_sites: ClassVar[host.StartSites] = staticmethod(lambda: WebSites())

    env = OtherEnv()
    env.reset(seed=0)
    sites(env).close()
    _, reward, _, truncated, info = env.step("goto [http://shopping/notes]")
    assert (reward, truncated, info["fault_kind"]) == (0.0, True, "site")
    assert HOME in env.reset(seed=0)[0]
    env.close()


def test_a_browser_is_replaced_by_age() -> None:
    env = StubEnv(max_contexts=2)
    pids = []
    for _ in range(3):
        env.reset(seed=0)
        assert env._held._browser is not None
        pids.append(env._held._browser.pid)
    assert pids[0] == pids[1] != pids[2]
    assert gone(pids[0])
    env.close()
    assert gone(pids[2])


def test_an_environment_that_nobody_closed_leaves_nothing_behind() -> None:
    env = StubEnv(max_contexts=996)
    env.reset(seed=0)
    assert env._held._browser is not None
    pid = env._held._browser.pid
    del env
    gc.collect()
    assert gone(pid)


SCRIPT = """
import sys, time
sys.path.insert(0, {tests!r})
from test_webarena_browser import StubEnv
env = StubEnv()
env.reset(seed=0)
print(env._held._browser.pid, flush=True)
env.step("goto [http://shopping/hang]")
"""


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGTERM, signal.SIGINT])
def test_chromium_ends_with_its_process(how: signal.Signals) -> None:
    script = SCRIPT.format(tests=str(ROOT / "tests"))
    process = subprocess.Popen(
        [sys.executable, "-c", script], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=ROOT
    )
    assert process.stdout is not None
    pid = int(process.stdout.readline())
    process.send_signal(how)
    _, errors = process.communicate(timeout=60)
    assert process.returncode != 0
    assert ("KeyboardInterrupt" in errors) == (how == signal.SIGINT)
    assert gone(pid)


# ---- arguments -----------------------------------------------------------------------------------------


def test_arguments(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for options, told in (
        ({"load_seconds": 0}, "load_seconds is a number above 0"),
        ({"max_chars": 5}, "max_chars is a whole number of at least 100"),
        ({"load_seconds": float("inf")}, "load_seconds is a number above 0"),
        ({"window": (10, 10)}, "window is a whole number of at least 100"),
        ({"window": (10**9, 100)}, "window is at most 8192"),
        ({"window": 500}, "window is a width and a height"),
        ({"window": (200, 200, 200)}, "window is a width and a height"),
        ({"visible_only": "no"}, "visible_only is True or False"),
        ({"chromium": 5}, "is no path"),
        ({"chromium": "/no/such/browser"}, "is no program"),
    ):
        with pytest.raises(ValueError, match=told):
            StubEnv(**options)
    monkeypatch.setenv("CHROMIUM_PATH", "/no/such/browser")
    with pytest.raises(ValueError, match="CHROMIUM_PATH"):
        StubEnv()
    monkeypatch.delenv("CHROMIUM_PATH")
    monkeypatch.setenv("PATH", str(tmp_path))
    assert packages.find_chromium() is None


def test_a_missing_browser_is_told_of(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PLAYWRIGHT_BROWSERS_PATH", str(tmp_path))
    with pytest.raises(packages.SetupError, match="python -m playwright install --with-deps --only-shell chromium"):
        browsers.Browser(browsers.Settings(None))


def test_programmed_episodes(env: StubEnv) -> None:
    heading = {
        "url": "__SHOPPING__/",
        "locator": "document.querySelector('h1').outerText",
        "required_contents": {"exact_match": "Welcome to shopping"},
    }
    init = {
        "intent": "Open the forum.",
        "sites": ["reddit"],
        "start_url": "__REDDIT__/notes |AND| __SHOPPING__",
        "eval": {
            "eval_types": ["url_match", "program_html"],
            "reference_url": "__REDDIT__/notes",
            "program_html": [heading],
        },
    }
    observation, info = env.reset(options={"init": init})
    assert "Tab 0 (current): 'Notes' | Tab 1: 'Home of shopping'\nURL: http://reddit/notes\n" in observation
    assert (info["subset"], info["source"]) == ("Reddit", "custom")
    before = env._held.tenant().state_hash()
    _, reward, *_ = env.step("stop [done]")
    assert reward == 1.0
    assert env._held.tenant().state_hash() == before
    for bad, told in (
        ({"intent": "x"}, "needs 'eval'"),
        ({**init, "colour": 1}, "has 'colour'"),
        ({**init, "sites": ["mars"]}, "there is no site 'mars'"),
        ({**init, "eval": {}}, "checks nothing"),
        ({**init, "eval": {"rules": "verified", "task_id": 1, "task_type": "retrieve"}}, "the official tasks"),
    ):
        with pytest.raises(ValueError, match=told):
            env.reset(options={"init": bad})
    with pytest.raises(ResetNeeded):
        env.step("stop []")


def test_every_verb_is_read_back() -> None:
    commands = {
        grammar.click(3): (3, ""),
        grammar.type(3, "a [b] c", 0): (3, "a [b] c"),
        grammar.hover(3): (3, ""),
        grammar.press("ctrl+Enter"): (-1, "Control+Enter"),
        grammar.scroll("up"): (-1, "up"),
        grammar.new_tab(): (-1, ""),
        grammar.tab_focus(1): (1, ""),
        grammar.close_tab(): (-1, ""),
        grammar.goto("http://shopping/[x]"): (-1, "http://shopping/[x]"),
        grammar.go_back(): (-1, ""),
        grammar.go_forward(): (-1, ""),
        grammar.stop("two\nlines"): (-1, "two\nlines"),
    }
    assert len(commands) == len(grammar.VERBS)
    for verb, (action, (number, text)) in zip(grammar.VERBS, commands.items(), strict=True):
        command = grammar.parse(f" {action.upper() if verb is grammar.new_tab else action} ")
        assert (command.verb, command.number, command.text) == (verb, number, text)
    assert grammar.parse("scroll [direction=down]").text == "down"
    assert grammar.parse("type [1] [x]").enter
    assert not grammar.parse("type [1] [x] [press_enter_after=0]").enter


def test_a_browser_that_cannot_start_is_a_fault() -> None:
    with pytest.raises(Fault, match="cannot be started"):
        browsers.Browser(browsers.Settings(Path("/bin/false"), start_seconds=20.0))

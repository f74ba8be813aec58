"""WebArena as a whole, a browser on the embedded sites: kept apart, reset, saved and killed."""

import inspect
import json
import os
import random
import signal
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any, ClassVar

import pytest
from gymnasium.error import ResetNeeded

from agentgym_envs.verbs import grammar_table
from agentgym_envs.webarena import grammar, host, tasks
from agentgym_envs.webarena.env import WebArenaEnv, make
from agentgym_envs.webarena.external_env import make_external
from agentgym_envs.webarena.sites import start_sites
from agentgym_envs.webarena.sites.accounts import PRIVILEGED
from agentgym_envs.webarena.sites.client import SiteProcess
from agentgym_envs.webarena.verify import any_action
from tests.web_agent import act, find, gone, running

CREATE = "button 'Create ticket'"
EVALUATION = {"answer": {"type": "text", "value": "nothing"}}


@pytest.fixture(scope="module", autouse=True)
def keeper() -> Iterator[WebArenaEnv]:
    """Keeps the browser and the sites running between the tests."""
    env = WebArenaEnv()
    env.reset(seed=0)
    yield env
    env.close()


@pytest.fixture
def env() -> Iterator[WebArenaEnv]:
    env = WebArenaEnv(split="all")
    yield env
    env.close()


def start(env: WebArenaEnv, site: str, path: str = "/", account: str = "") -> str:
    """Begin an episode on a page, logged in with the privileged account if there is one."""
    account = account or PRIVILEGED.get(site, "")
    init = {
        "intent": "Look around.",
        "sites": [site],
        "start_url": f"http://{site}{path}",
        "logins": {site: account} if account else {},
        "eval": EVALUATION,
    }
    return env.reset(seed=0, options={"init": init})[0]


# ---- what the sites show -------------------------------------------------------------------------------


def test_listings_and_searches_of_the_shop_show_products(env: WebArenaEnv) -> None:
    listing = start(env, "shopping", "/catalogue/")
    assert listing.count("button 'Add to cart'") == 20
    assert listing.count("StaticText '$") >= 20
    found = act(env, "type [lamp] [1]", "textbox 'Search'")
    assert "URL: http://shopping/search/?q=lamp\n" in found
    assert 0 < found.count("button 'Add to cart'") <= 20
    assert found.lower().count("lamp") > 3
    assert "StaticText '$" in found


def test_an_editor_in_an_inner_frame_is_typed_into(env: WebArenaEnv) -> None:
    start(env, "cms", "/dashboard/catalogue/")
    act(env, "click", "button 'Actions'")
    act(env, "click", "link 'Edit'")
    editor = "textbox 'Rich Text Area' value: "
    act(env, "type [Soft and plain.] [0]", editor)
    assert f"{editor}'Soft and plain.'" in env._observation
    act(env, "click", "button 'Save'")
    rows = env._held.tenant().query("cms", "sql", statement="SELECT description FROM catalogue_product")
    assert [row for row in rows if row["description"] == "<p>Soft and plain.</p>"]


def test_docs_hold_the_grammar_table_and_every_option() -> None:
    page = (Path(__file__).parents[1] / "docs" / "scenarios" / "webarena.md").read_text(encoding="utf-8")
    assert grammar_table(grammar.VERBS) in page
    for maker in (WebArenaEnv, make, make_external):
        for name, parameter in inspect.signature(maker).parameters.items():
            assert parameter.kind is parameter.VAR_KEYWORD or f"| `{name}` | " in page, name


# ---- apart from each other -----------------------------------------------------------------------------


def wander(env: WebArenaEnv, rng: random.Random) -> str:
    observation, _, terminated, truncated, info = env.step(any_action(env._observation, rng))
    assert (terminated, truncated) == (False, False), info
    return observation


def test_environments_side_by_side_are_as_each_alone() -> None:
    envs = [WebArenaEnv() for _ in PRIVILEGED]

    def begin(number: int) -> list[str]:
        return [start(envs[number], [*PRIVILEGED][number])]

    def hashes() -> list[str]:
        return [env.state_hash() for env in envs]

    alone = []
    for number, env in enumerate(envs):
        rng = random.Random(number)
        alone.append(begin(number) + [wander(env, rng) for _ in range(12)])
    states = hashes()
    rngs = [random.Random(number) for number in range(len(envs))]
    together = [begin(number) for number in range(len(envs))]
    order = random.Random("order")
    for number in order.sample([*range(len(envs))] * 12, 12 * len(envs)):
        together[number].append(wander(envs[number], rngs[number]))
    assert together == alone
    assert hashes() == states
    for env in envs:
        env.close()


def test_a_reset_leaves_nothing_of_an_episode(env: WebArenaEnv) -> None:
    first = start(env, "cms")
    pristine = env.state_hash()
    rng = random.Random("anything")
    changed = 0
    for site in (*PRIVILEGED, "shopping"):
        before = start(env, site)
        for _ in range(15):
            wander(env, rng)
        changed += env.state_hash() != pristine
        assert start(env, site) == before
    assert changed == 4
    assert start(env, "cms") == first
    session = env._held.session
    assert session is not None
    env._held.close_session()
    env._held.tenant().reset({})
    env._open([])
    state = env._held.call(env._held.session.state())  # type: ignore[union-attr]
    assert (state["cookies"], state["storage"]) == ([], [])


def test_an_episode_that_logs_out_leaves_the_next_logged_in(env: WebArenaEnv) -> None:
    first = start(env, "gitlab")
    assert "logged in as" in first
    assert "logged in as" not in act(env, "click", "button 'Logout'")
    assert start(env, "gitlab") == first


def test_what_cannot_be_scored_is_told_of_at_the_reset(env: WebArenaEnv) -> None:
    for question, told in (
        ({"site": "shopping", "query": "order", "equals": []}, "accepted are .*orders"),
        ({"site": "gitlab", "query": "sql", "arguments": {"statement": "SELEKT 1"}, "equals": []}, "syntax error"),
    ):
        with pytest.raises(ValueError, match=told):
            env.reset(options={"init": {"intent": "x", "eval": {"state": [question]}}})


def test_a_closed_environment_starts_nothing_again() -> None:
    env = WebArenaEnv()
    env.reset(seed=0)
    env.close()
    for ask in (env.state_hash, env.snapshot, env.oracle_action):
        with pytest.raises(ResetNeeded):
            ask()
    assert env._held._server is None
    assert env._held._browser is None


def test_scores_do_not_depend_on_what_was_played_before(env: WebArenaEnv) -> None:
    fields = tasks.embedded()
    changing = [number for number, task in enumerate(fields) if task["changes_state"]]
    reading = [number for number, task in enumerate(fields) if not task["changes_state"]]
    rng = random.Random("tasks")
    chosen = [f"webarena-embedded_{number}" for number in rng.sample(changing, 3) + rng.sample(reading, 3)]

    def scores(names: list[str], solve: bool) -> dict[str, tuple[float, str]]:
        found = {}
        for name in names:
            env.reset(seed=0, options={"task": name})
            for _ in range(30):
                action = env.oracle_action() if solve else "stop [N/A]"
                assert action is not None
                if env.step(action)[2]:
                    break
            found[name] = (env._outcome.score, env.state_hash())
        return found

    solved = scores(chosen, solve=True)
    assert {score for score, _ in solved.values()} == {1.0}
    assert scores(chosen[::-1], solve=True) == solved
    assert {score for score, _ in scores(chosen, solve=False).values()} == {0.0}


# ---- saved states --------------------------------------------------------------------------------------


def future(env: WebArenaEnv, *actions: str) -> list[Any]:
    seen: list[Any] = [env.step(action)[0] for action in actions]
    return [*seen, env.state_hash()]


def test_snapshots_in_mid_form_after_an_error_page_and_before_going_back(env: WebArenaEnv) -> None:
    other = WebArenaEnv(split="all")
    start(env, "gitlab", "/newticket")
    moments = []
    act(env, "type [Half a summary] [0]", "textbox 'Summary:'")
    moments.append(("in mid-form", False, [f"click [{find(env, CREATE)}]", "go_back"]))
    saved = [env.snapshot()]
    act(env, "type [] [0]", "textbox 'Summary:'")
    assert "Tickets must contain a summary" in act(env, "click", CREATE)
    saved.append(env.snapshot())
    moments.append(("after an error page", False, ["go_back", "goto [http://gitlab/roadmap]"]))
    act(env, "goto [http://gitlab/roadmap]")
    saved.append(env.snapshot())
    moments.append(("before going back", True, ["go_back", "go_forward", "scroll [down]"]))
    for (name, cheap, actions), data in zip(moments, saved, strict=True):
        assert ("state" in json.loads(data)) == cheap, name
        env.restore(data)
        other.restore(data)
        assert env._observation == other._observation, name
        assert future(env, *actions) == future(other, *actions), name
    other.close()


# ---- death ---------------------------------------------------------------------------------------------


class LonelyEnv(WebArenaEnv):
    """An environment with a site process of its own, which is given up soon when it does not answer."""

    start_sites: ClassVar[host.StartSites] = staticmethod(lambda: start_sites(call_seconds=2.0))


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGSTOP])
def test_a_site_process_that_dies_or_hangs_in_mid_request(how: signal.Signals, keeper: WebArenaEnv) -> None:
    keeper.reset(seed=0)
    env = LonelyEnv(load_seconds=2.0)
    first = start(env, "gitlab")
    server = env._held._server
    assert isinstance(server, SiteProcess)
    killer = threading.Timer(0.02, os.kill, (server.pid, how))
    killer.start()
    for _ in range(100):
        _, reward, terminated, truncated, info = env.step("goto [http://gitlab/timeline]")
        if truncated:
            break
    killer.join()
    assert (reward, terminated, truncated, info["end"]) == (0.0, False, True, "fault")
    assert info["fault_kind"] in ("site", "died")
    assert start(env, "gitlab") == first
    assert gone(server.pid)
    assert running(env._held._server.pid)  # type: ignore[union-attr]
    assert act(keeper, "scroll [down]")  # another environment, on other sites in the same browser, has not noticed
    env.close()

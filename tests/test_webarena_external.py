"""WebArena on external sites, against a stand-in whose process is really restarted and really fails."""

import json
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from agentgym_envs import Fault
from agentgym_envs.webarena import browser as browsers
from agentgym_envs.webarena import official, packages
from agentgym_envs.webarena.env import WebArenaEnv, make
from agentgym_envs.webarena.external import configured
from agentgym_envs.webarena.packages import SetupError
from tests.external_site import Container
from tests.web_agent import act

NOTES = {
    "url": "__GITLAB__/",
    "locator": "document.querySelector('h1').outerText",
    "required_contents": {"exact_match": "1 notes"},
}
CLASSIC = [
    {
        "task_id": 7,
        "sites": ["gitlab"],
        "intent": "Add a note.",
        "start_url": "__GITLAB__",
        "require_login": True,
        "eval": {"eval_types": ["program_html"], "program_html": [NOTES]},
    },
    {
        "task_id": 8,
        "sites": ["gitlab"],
        "intent": "How many notes are there?",
        "start_url": "__GITLAB__/?list=1",
        "eval": {"eval_types": ["string_match"], "reference_answers": {"exact_match": "0"}},
    },
    {
        "task_id": 9,
        "sites": ["gitlab"],
        "intent": "Open the list of things to do.",
        "start_url": "__GITLAB__",
        "eval": {"eval_types": ["url_match"], "reference_url": "__GITLAB__/dashboard/todos"},
    },
    {"task_id": 10, "sites": ["map"], "intent": "x", "eval": {"eval_types": ["url_match"], "reference_url": "x"}},
]
ADD, READ, OPEN = ({"task": f"webarena-file_{number}"} for number in range(3))


@pytest.fixture(scope="module", autouse=True)
def browser() -> Iterator[None]:
    """Keeps the browser running between the tests."""
    browser = browsers.join(browsers.Settings(packages.find_chromium()))
    yield
    browsers.leave(browser)


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AGENTGYM_CACHE", str(tmp_path / "cache"))


@pytest.fixture
def container() -> Iterator[Container]:
    container = Container()
    yield container
    container.close()


@pytest.fixture
def task_file(tmp_path: Path) -> Path:
    path = tmp_path / "tasks.json"
    path.write_text(json.dumps(CLASSIC))
    return path


@pytest.fixture
def env(container: Container, task_file: Path) -> Iterator[WebArenaEnv]:
    env = make_env(container, task_file)
    yield env
    env.close()


def make_env(container: Container, task_file: Path | str, **options: Any) -> WebArenaEnv:
    site = {"url": container.url, "reset": container.reset_url}
    return make(source="external", sites={"gitlab": site}, task_set=task_file, **{"reset_seconds": 8.0, **options})


def add_a_note(env: WebArenaEnv) -> float:
    act(env, "type [hello] [0]", "textbox 'Text'")
    assert "'1 notes'" in act(env, "click", "button 'Add'")
    return env.step("stop []")[1]


def test_episodes_are_logged_in_scored_and_reset_only_where_they_changed_something(
    env: WebArenaEnv, container: Container
) -> None:
    observation, info = env.reset(seed=0, options=READ)
    assert "Tab 0 (current): 'Notes'\nURL: http://gitlab/?list=1\n" in observation
    assert "'0 notes'" in observation
    assert "'true'" in observation  # the real date
    assert (info["source"], info["subset"]) == ("custom", "GitLab")
    assert env.step("stop [0]")[1] == 1.0
    env.reset(options=OPEN)
    act(env, "click", "link 'To do'")
    assert env.step("stop []")[1] == 1.0
    assert container.resets == 0
    env.reset(options=ADD)
    assert add_a_note(env) == 1.0
    assert container.resets == 0
    assert "'0 notes'" in env.reset(options=READ)[0]
    assert container.resets == 1
    assert env.step("stop [1]")[1] == 0.0
    assert [task.id for task in env.tasks] == [
        "webarena-file_1",
        "webarena-file_2",
    ]  # the others are test, or unplayable


def test_a_reset_is_not_forgotten_by_a_process_that_dies(
    env: WebArenaEnv, container: Container, task_file: Path
) -> None:
    env.reset(seed=0, options=ADD)
    add_a_note(env)
    env.close()
    other = make_env(container, task_file)
    assert "'0 notes'" in other.reset(seed=0, options=READ)[0]
    assert container.resets == 1
    other.close()


def test_a_reset_by_a_command(container: Container, task_file: Path) -> None:
    code = f"import urllib.request as u; u.urlopen(u.Request({container.reset_url!r}, data=b'', method='POST'))"
    site = {"url": container.url, "reset": f'{sys.executable} -c "{code}"'}
    env = make(source="external", sites={"gitlab": site}, task_set=task_file, reset_seconds=20.0)
    env.reset(seed=0, options=ADD)
    add_a_note(env)
    assert "'0 notes'" in env.reset(options=READ)[0]
    assert container.resets == 1
    env.close()


@pytest.mark.parametrize(
    ("mood", "told"),
    [
        ("late", ""),
        ("flaky", ""),
        ("error", "resetting gitlab by POST .* failed: HTTP Error 500"),
        ("hang", "resetting gitlab by POST .* failed: .*timed out"),
        ("dead", "gitlab .* could not be used within 2 s: .*refused"),
    ],
)
def test_resets_that_fail(mood: str, told: str, container: Container, task_file: Path) -> None:
    env = make_env(container, task_file, reset_seconds=2.0 if told else 20.0)
    env.reset(seed=0, options=ADD)
    add_a_note(env)
    container.mood = mood
    if told:
        start = time.monotonic()
        with pytest.raises(Fault, match=told):
            env.reset(options=READ)
        assert time.monotonic() - start < 30
        container.mood = "good"
    assert "'0 notes'" in env.reset(options=READ)[0]
    env.close()


def test_a_changed_site_that_nothing_resets_is_told_of(container: Container, task_file: Path) -> None:
    env = make(source="external", sites={"gitlab": container.url}, task_set=task_file)
    env.reset(seed=0, options=ADD)
    add_a_note(env)
    with pytest.raises(ValueError, match=r"an episode has changed gitlab .* nothing says how to reset it"):
        env.reset(options=READ)
    env.close()
    left = {"url": container.url, "reset": "none"}
    env = make(source="external", sites={"gitlab": left}, task_set=task_file)
    assert "'1 notes'" in env.reset(options=READ)[0]
    env.close()


def test_a_wrong_password_is_a_fault_that_names_site_and_account(container: Container, task_file: Path) -> None:
    site = {"url": container.url, "account": "byteblaze:wrong"}
    env = make(source="external", sites={"gitlab": site}, task_set=task_file)
    with pytest.raises(Fault, match=r"logging in to gitlab at http.*sign_in as 'byteblaze' failed 3 times: .*accept"):
        env.reset(seed=0, options=READ)
    env.close()


def test_each_environment_has_a_back_end_for_itself(container: Container, task_file: Path) -> None:
    second = Container()
    env = make_env(container, task_file)
    other = make_env(container, task_file)
    env.reset(seed=0, options=READ)
    with pytest.raises(Fault, match=r"all 1 back ends .* are in use; .* Configure one more"):
        other.reset(seed=0, options=READ)
    env.close()
    other.close()
    site = {"url": f"{container.url},{second.url}", "reset": f"{container.reset_url},{second.reset_url}"}
    both = [make(source="external", sites={"gitlab": site}, task_set=task_file) for _ in range(2)]
    for some in both:
        some.reset(seed=0, options=ADD)
        assert add_a_note(some) == 1.0  # it counts its own notes alone
    for some in both:
        some.close()
    second.close()


def test_a_saved_episode_is_replayed_on_sites_that_were_reset(env: WebArenaEnv, container: Container) -> None:
    env.reset(seed=0, options=ADD)
    act(env, "type [hello] [0]", "textbox 'Text'")
    observation = act(env, "click", "button 'Add'")
    saved = env.snapshot()
    assert env.restore(saved)[0] == observation
    assert "'1 notes'" in observation
    assert container.resets == 1


def test_a_site_that_dies_is_a_fault_and_the_next_reset_waits_for_it(env: WebArenaEnv, container: Container) -> None:
    env.reset(seed=0, options=OPEN)
    container.stop()
    _, reward, _, truncated, info = env.step("goto [http://gitlab/]")
    assert (reward, truncated, info["fault_kind"]) == (0.0, True, "site")
    container.start()
    assert "'0 notes'" in env.reset(options=OPEN)[0]


def test_configurations(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("AGENTGYM_WEBARENA_SHOPPING_ADMIN", "http://one:7780/admin, http://two:7780/admin/")
    monkeypatch.setenv("AGENTGYM_WEBARENA_SHOPPING_ADMIN_RESET", "docker restart one, docker restart two")
    monkeypatch.setenv("AGENTGYM_WEBARENA_GITLAB", "http://one:8023,http://two:8023")
    found = [dict(backend) for backend in configured(None)]
    assert [backend["cms"].reset for backend in found] == ["docker restart one", "docker restart two"]
    assert (found[1]["cms"].origin, found[1]["cms"].path) == ("http://two:7780", "/admin")
    for sites, told in (
        ({}, "no external sites are configured"),
        ({"mars": "http://x"}, "there is no site 'mars'"),
        ({"gitlab": "x:1"}, "the address of gitlab is 'x:1'"),
        ({"gitlab": {"reset": "x"}}, "give an address, or an object"),
        ({"gitlab": "http://a,http://b", "reddit": "http://c"}, "the same number of addresses"),
        ({"gitlab": {"url": "http://a,http://b,http://c", "reset": "x,y"}}, "3 addresses and 2 of reset"),
    ):
        with pytest.raises(ValueError, match=told):
            configured(sites)
    for options, told in (
        ({"source": "mars"}, "unknown source 'mars'"),
        ({"source": "external", "reset_seconds": 0}, "reset_seconds"),
        ({"source": "external", "task_set": tmp_path / "none.json"}, "give 'verified', 'classic' or a JSON file"),
    ):
        with pytest.raises(ValueError, match=told):
            make(**options)


# ---- the official tasks --------------------------------------------------------------------------------


def test_a_missing_package_is_told_of(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(official, "_PACKAGE", "no_such_package")
    with pytest.raises(SetupError, match="pip install --no-deps webarena-verified"):
        official.TaskSet("verified", {"gitlab": ""})


def test_official_tasks_are_scored_by_their_evaluators(container: Container) -> None:
    pytest.importorskip("webarena_verified")
    env = make_env(container, "verified", split="all")
    table = env.task_table()
    assert len(table) == 812
    assert {task.subset for task in env.tasks} == {"GitLab"}
    for actions, score in ((["click"], 1.0), ([], 0.0)):
        observation, info = env.reset(seed=0, options={"task": 44})
        assert "Task: Open my todos page\n" in observation
        assert (info["task"], info["source"]) == ("webarena_44", "real")
        for action in actions:
            act(env, action, "link 'To do'")
        assert env.step("stop []")[1] == score
    env.reset(seed=0, options={"task": 44})
    act(env, "click", "link 'To do'")
    answer = {"task_type": "NAVIGATE", "status": "NOT_FOUND_ERROR", "retrieved_data": None}
    assert env.step(f"stop [{json.dumps(answer)}]")[1] == 0.0
    env.close()


def test_answers_reach_the_evaluators() -> None:
    pytest.importorskip("webarena_verified")
    entry = {
        "request": {"method": "GET", "url": "http://x/admin", "headers": []},
        "response": {"status": 200, "headers": [], "cookies": [], "redirectURL": ""},
    }
    evaluation = {"rules": "verified", "task_id": 0, "task_type": "retrieve"}
    for answer, score in (
        ("Quest Lumaflex\u2122 Band", 1.0),
        ('["Quest Lumaflex\u2122 Band"]', 1.0),
        ('{"task_type": "RETRIEVE", "status": "SUCCESS", "retrieved_data": ["Quest Lumaflex\u2122 Band"]}', 1.0),
        ("Quest", 0.0),
        ("N/A", 0.0),
        ("", 0.0),
    ):
        assert official.evaluate(evaluation, answer, [entry], {"cms": "http://x/admin"}) == score, answer
    assert official.evaluate(evaluation, "Quest Lumaflex\u2122 Band", [], {"cms": "http://x/admin"}) == 0.0


def test_an_answer_that_is_too_deep_for_json_is_a_text() -> None:
    assert official._response("[" * 8000, "retrieve")["retrieved_data"] == ["[" * 8000]


def test_the_classic_tasks_are_read() -> None:
    pytest.importorskip("webarena_verified")
    found = official.TaskSet("classic", {"shopping": "", "cms": "/admin", "reddit": "", "gitlab": ""})
    assert len(found.table) == 812
    assert sum(task.solvable for task in found.table) > 400
    assert found.web_task(0).start_urls == ["http://cms/admin"]

"""The embedded tasks of WebArena: made from the sites' content, solved through the browser, worth nothing unsolved."""

import json
from collections.abc import Iterator

import pytest

from agentgym_envs.webarena import build_tasks, oracle, scoring, tasks
from agentgym_envs.webarena.env import WebArenaEnv
from agentgym_envs.webarena.sites.interface import Tenant

TABLE = tasks.task_table()
FIRST = {fields["template"]: f"webarena-embedded_{index}" for index, fields in reversed([*enumerate(tasks.embedded())])}


@pytest.fixture(scope="module")
def env() -> Iterator[WebArenaEnv]:
    env = WebArenaEnv(split="all")
    env.reset(seed=0)
    yield env
    env.close()


@pytest.fixture
def pristine(env: WebArenaEnv) -> Tenant:
    tenant = env._held.tenant()
    env._held.close_session()
    tenant.reset({})
    return tenant


def test_the_file_is_what_the_sites_give(pristine: Tenant) -> None:
    assert build_tasks.build(pristine) == json.loads(build_tasks.FILE.read_text(encoding="utf-8"))


def test_tasks_are_worth_nothing_before_they_are_done(pristine: Tenant) -> None:
    before = pristine.state_hash()
    for task in TABLE:
        web = WebArenaEnv.web_task(task)
        for answer in ("", "N/A", "0", "done", web.intent):
            score = scoring.score(web.evaluation, answer, web.start_urls[0], pristine.query, lambda *_: "")
            assert score == 0.0, (task.id, answer)
    assert pristine.state_hash() == before


@pytest.mark.parametrize("template", FIRST)
def test_the_oracle_solves_its_task(env: WebArenaEnv, template: str) -> None:
    env.reset(seed=0, options={"task": FIRST[template]})
    for _ in range(10):
        action = env.oracle_action()
        assert action is not None, env._observation
        _, _, terminated, truncated, info = env.step(action)
        assert info["valid_action"], env._observation
        if terminated or truncated:
            break
    assert (info["score"], info["success"], info["end"]) == (1.0, True, "answer")
    assert env.oracle_action() is None


def test_the_oracle_finds_its_way_from_elsewhere(env: WebArenaEnv) -> None:
    env.reset(seed=0, options={"task": FIRST["new_ticket"]})
    for action in ("goto [http://reddit/]", "new_tab"):
        env.step(action)
    for _ in range(10):
        action_ = env.oracle_action()
        assert action_ is not None
        if env.step(action_)[2]:
            break
    assert env._outcome.score == 1.0


def test_every_template_is_there_in_both_splits() -> None:
    assert len(TABLE) == build_tasks.PER_TEMPLATE * len(build_tasks.TEMPLATES)
    assert set(TABLE.subsets) == {"Shopping", "CMS", "Reddit", "GitLab"}
    for split in ("train", "test"):
        of_split = {WebArenaEnv.web_task(task).template for task in TABLE.select(None, split)}
        assert of_split == {template.__name__ for template in build_tasks.TEMPLATES}


def test_rules_name_lines_and_not_parts_of_them() -> None:
    view = "Tab 0 (current): 'x'\nURL: http://gitlab/\n[1] RootWebArea\n  [2] link 'A b'\n  [3] link 'A' focused: true"
    assert oracle.next_action([{"see": ["link 'A'"], "do": "click [{link 'A'}]"}], view) == "click [3]"
    assert oracle.next_action([{"see": ["link 'b'"], "do": "stop []"}], view) is None
    assert oracle.next_action([{"see": ["URL: http://gitlab/"], "do": "stop []"}], view) == "stop []"
    assert oracle.next_action([{"see": ["URL: http://gitlab"], "do": "stop []"}], view) is None
    assert oracle.next_action([{"see": [], "do": "click [{link 'C'}]"}], view) is None

"""The embedded tasks of WebArena: made from the sites' content, solved through the browser, worth nothing unsolved."""

from collections import Counter
from collections.abc import Iterator
from typing import Any

import pytest

from agentgym_envs.webarena import build_tasks, oracle, scoring, tasks
from agentgym_envs.webarena.env import WebArenaEnv
from agentgym_envs.webarena.sites.interface import SITES, Tenant
from agentgym_envs.webarena.templates import TEMPLATES
from agentgym_envs.webarena.templates.common import Data, Template, click, form, given, number, spread, stop

TABLE = tasks.task_table()
FIRST = {fields["template"]: f"webarena-embedded_{index}" for index, fields in reversed([*enumerate(tasks.embedded())])}
# Of each domain something to find out and something to change, two sites, a page; `make verify` plays all tasks.
SAMPLE = (
    "cheapest_of_category",
    "onto_wish_list",
    "revenue_in_month",
    "note_on_order",
    "people_in_topic",
    "move_topic",
    "page_of_ticket",
    "close_ticket",
    "owner_of_ticket_into_forum",
)
TURNS = 25


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


def solve(env: WebArenaEnv) -> dict[str, Any]:
    for _ in range(TURNS):
        action = env.oracle_action()
        assert action is not None, env._observation
        _, _, terminated, truncated, info = env.step(action)
        assert info["valid_action"], env._observation
        if terminated or truncated:
            return info
    raise AssertionError(f"not done after {TURNS} turns")


def test_the_file_is_what_the_sites_give(pristine: Tenant) -> None:
    assert build_tasks.text_of(build_tasks.build(pristine)) == build_tasks.FILE.read_text(encoding="utf-8")


def test_there_is_enough_of_everything() -> None:
    listed = tasks.embedded()
    assert len(listed) >= 400
    assert sum(len(fields["plan"]) > 7 for fields in listed) >= 20  # six actions and more
    assert sum(fields["changes_state"] for fields in listed) >= 20
    assert sum(len(fields["sites"]) > 1 for fields in listed) >= 20
    assert len(TEMPLATES) == len({template.name for template in TEMPLATES}) >= 60
    by_domain = Counter(template.sites[0] for template in TEMPLATES if len(template.sites) == 1)
    assert min(by_domain[site] for site in SITES) >= 15


def test_every_template_is_there_in_both_splits() -> None:
    for split in ("train", "test"):
        of_split = {WebArenaEnv.web_task(task).template for task in TABLE.select(None, split)}
        assert of_split == {template.name for template in TEMPLATES}


def test_nobody_guesses_the_answers() -> None:
    evaluations = [fields["eval"] for fields in tasks.embedded()]
    answers = Counter(str(evaluation["answer"]) for evaluation in evaluations if "answer" in evaluation)
    assert max(answers.values()) <= answers.total() // 50


def test_tasks_are_worth_nothing_before_they_are_done(pristine: Tenant) -> None:
    before = pristine.state_hash()
    for task in TABLE:
        web = WebArenaEnv.web_task(task)
        for answer in ("", "N/A", "0", "done", web.intent):
            score = scoring.score(web.evaluation, answer, web.start_urls[0], pristine.query, lambda *_: "")
            assert score == 0.0, (task.id, answer)
    assert pristine.state_hash() == before


@pytest.mark.parametrize("template", SAMPLE)
def test_the_oracle_solves_its_task(env: WebArenaEnv, template: str) -> None:
    env.reset(seed=0, options={"task": FIRST[template]})
    info = solve(env)
    assert (info["score"], info["success"], info["end"]) == (1.0, True, "answer")
    assert env.oracle_action() is None


def test_scores_do_not_depend_on_what_was_played_before(env: WebArenaEnv) -> None:
    first, last = FIRST["close_ticket"], FIRST["note_on_order"]
    for task in (first, last, first):
        env.reset(seed=0, options={"task": task})
        undone = env.step("stop []")[4]["score"]
        env.reset(seed=0, options={"task": task})
        before = env.state_hash()
        done = solve(env)["score"]
        after = env.state_hash()
        env._score("")
        assert (undone, done) == (0.0, 1.0)
        assert before != after == env.state_hash()  # the task changes something, and scoring nothing


def test_the_oracle_finds_its_way_from_elsewhere(env: WebArenaEnv) -> None:
    env.reset(seed=0, options={"task": FIRST["owner_of_component"]})
    for action in ("goto [http://reddit/]", "new_tab"):
        env.step(action)
    assert solve(env)["score"] == 1.0


def test_rules_name_lines_and_not_parts_of_them() -> None:
    view = (
        "Tab 0: 'x' | Tab 1 (current): 'Order 17: thanks'\nURL: http://gitlab/\n[1] RootWebArea\n  [2] link 'A b'\n"
        "  [3] link 'A' focused: true\n  [4] cell 'C'\n    [5] link 'A'"
    )
    for see, seen in (
        ("link 'A'", True),
        ("link 'b'", False),
        ("URL: http://gitlab/", True),
        ("URL: http://gitlab", False),
        ("tab 'Order 17:'", True),
        ("tab 'Order 1:'", False),
        ("cell 'C' » link 'A'", True),
        ("cell 'C' » link 'A b'", False),
        ("cell *", True),
        ("cell", False),
        ("lin *", False),
    ):
        assert (oracle.next_action([{"see": [see], "do": "stop []"}], view) == "stop []") is seen, see
    assert oracle.next_action([{"see": [], "do": "click [{link 'A'}]"}], view) == "click [3]"
    assert oracle.next_action([{"see": [], "do": "click [{cell 'C' » link 'A'}]"}], view) == "click [5]"
    assert oracle.next_action([{"see": [], "do": "click [{link 'C'}]"}], view) is None


def test_rules_read_tables_and_lists_row_by_row() -> None:
    view = (
        "[1] table\n  [2] row\n    [3] cell\n      [4] link 'Ada'\n    [5] cell\n    [6] cell '3'\n  [7] row\n"
        "    [8] cell\n      [9] link 'Bob'\n    [10] cell\n    [11] cell '7'\n[12] StaticText 'Ada'\n[13] link 'Ada'\n"
        "[14] StaticText '5'\n[15] StaticText '70'\n"
    )
    for see, seen in (
        ("link 'Ada' + cell", True),
        ("link 'Ada' + cell *", True),
        ("link 'Ada' + cell '3'", False),
        ("link 'Ada' + cell * + cell '3'", True),
        ("link 'Ada' + cell * + cell '7'", False),  # which is in Bob's row
        ("link 'Ada' » cell '7'", True),
        ("link 'Bob' + cell * + cell '7'", True),
        ("link 'Ada' + StaticText '5'", True),  # of the second, where the first has another
        ("link 'Ada' + StaticText * + StaticText '70'", True),
        ("link 'Bob' » link 'Ada' + StaticText '5'", True),
        ("link 'Bob' + StaticText '5'", False),
        ("link 'Ada' + StaticText '7'", False),
        ("link 'Ada' + button", False),
        ("row + cell + link 'Bob'", True),
    ):
        assert (oracle.next_action([{"see": [see], "do": "stop []"}], view) == "stop []") is seen, see
    assert oracle.next_action([{"see": [], "do": "click [{link 'Ada' + StaticText '5'}]"}], view) == "click [14]"


def test_a_name_that_reads_as_an_operator_is_refused() -> None:
    template = Template("t", ("gitlab",), "{name}", given(), [click("link '{name}' + link 'View'")], url="/")
    template.task({"name": "C++ and C"})
    with pytest.raises(ValueError, match="operator"):
        template.task({"name": "pens + paper"})


def test_a_row_fills_the_slots_of_a_template() -> None:
    template = Template(
        "sold",
        ("cms",),
        'How many of "{title}"?',
        given({"title": "Miller's Jar", "sold": 3}),
        [click("link '{title}'"), form({"textbox 'Name'": "{title}"}, "button 'Go'"), stop("{sold}", "cell '{sold}'")],
        number("{sold}"),
    )
    rows = list(template.rows(None))  # type: ignore[arg-type]
    fields = template.task(rows[0])
    assert fields["intent"] == 'How many of "Miller\'s Jar"?'
    assert fields["eval"] == {"answer": {"type": "number", "value": 3}}
    assert [rule["do"] for rule in fields["plan"]] == [
        "stop [3]",
        "click [{button 'Go'}]",
        "type [{textbox 'Name'}] [Miller's Jar] [0]",
        'click [{link "Miller\'s Jar"}]',
        "goto [http://cms/]",
    ]
    assert fields["plan"][1]["see"] == ["textbox 'Name' value: \"Miller's Jar\""]


def test_rows_are_drawn_at_even_distances() -> None:
    rows = [{"id": place} for place in range(10)]
    assert [row["id"] for row in spread(rows, 4, first=6)] == [6, 8, 1, 3]
    assert spread(rows[:3], 4, first=6) == rows[:3]


def test_data_is_read_once_and_copied(pristine: Tenant) -> None:
    data = Data(pristine)
    data("gitlab", "versions")[0]["name"] = "changed"
    assert data("gitlab", "versions")[0]["name"] != "changed"

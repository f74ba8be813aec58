"""From a reply to an action: what is understood, what is refused, and that no string breaks it."""

import copy
import pickle
import random
from typing import Any

import gymnasium
import pytest
from gymnasium.utils.env_checker import check_env

from agentgym_envs import RefusedAction
from agentgym_wrappers import ActionParser, HorizonCurriculum, parse_reply
from agentgym_wrappers.parsing import FORMATS, MAX_REPLY_CHARS
from tests.toy_env import COUNTER_ID, CounterEnv

UNDERSTOOD = {
    "<action>go north</action>": "go north",
    "I go.\n<ACTION>\n go north \n</Action>\nDone.": "go north",
    "<action>a\nb</action>": "a\nb",
    "Action: go north": "go north",
    "Thought: north is best.\nAction:\n\n  go north\n": "go north",
    "THOUGHT: hm\nACTION : go".replace(" :", ":"): "go",
    "**Thought:** hm\n**Action:** go north": "go north",
    "Thought:\nhm\n\nAction:\nget 1 oak logs": "get 1 oak logs",
    "Action: go north\nObservation: you are there": "go north",
    "In summary, the next action is ```click [12]```": "click [12]",
    "I would run\n```\nlook\n```": "look",
    "```text\nlook around\n```": "look around",
    "Action:\n```\nlook\n```": "look",
    "Action: ```text\n\nlook\n``` and so on": "look",
    "Action: `look`": "look",
    "look": "look",
    "\n  `look`\n\n": "look",
    "<search>who is it</search>": "<search>who is it</search>",
    # one action, marked twice
    "Action: <action>go</action>": "go",
    "Action:\n<action>\ngo\n</action>": "go",
    "<action>Action: go</action>": "go",
    "```\n<action>go</action>\n```": "go",
    "```\nAction: go\n```": "go",
    # thoughts do not count
    "<think>maybe <action>a</action> or Action: b</think>\n<action>c</action>": "c",
    "<think>\nAction: a\n</think>\ngo": "go",
    "<THINK>x</THINK>go": "go",
    "Action: a, so\n</think>\nAction: go": "go",
    "Action: a<think>b</think>\nAction: c</think>\nAction: go": "go",
    "<action>go</action><think>why did I?</think>": "go",
    # a marker beats what stands around it
    "```\nsome notes\n```\nAction: go": "go",
    "some words\nand more\nAction: go": "go",
    # a line that only speaks of an action
    "The action: unclear.\nAction: go": "go",
}

REFUSED = {
    "": "No action was found",
    " \n\t\n": "No action was found",
    "I go north.\nThen I look.": "No action was found",
    "Thought: go north": "No action was found",
    "<think>only thoughts</think>": "No action was found",
    "<think>go north": "ended before </think>",
    "go<think>hm</think><think>": "ended before </think>",
    "<action>go</action><action>go</action>": "Several actions",
    "Action: go\nAction: go": "Several actions",
    "```go```\n```go```": "Several actions",
    "<action>go</action>\nAction: look": "Several actions",
    "Action:\nAction: look": "Several actions",
    "<action></action>": "The action is empty",
    "Action:": "The action is empty",
    "``` ```": "The action is empty",
    "Action:\n``` ```\nlook": "The action is empty",
    "Action: ```\n\n```": "The action is empty",
    "Action:\n``` ```\n``` ```\nAction: go": "Several actions",
    "Action: ```look\n": "not closed",
    "Action: ```\nlook\ngo\n```": "several lines",
    "<action>go": "not closed",
    "<action>go <action>north</action>": "inside another",
    "```\nlook": "not closed",
    "```\nlook\ngo\n```": "several lines",
}


@pytest.mark.parametrize(("reply", "action"), UNDERSTOOD.items())
def test_an_action_is_found(reply: str, action: str) -> None:
    found = parse_reply(reply)
    assert found == action
    assert not isinstance(found, RefusedAction)


@pytest.mark.parametrize(("reply", "problem"), REFUSED.items())
def test_a_reply_without_a_single_action_is_refused_with_a_short_reason(reply: str, problem: str) -> None:
    refused = parse_reply(reply)
    assert isinstance(refused, RefusedAction)
    assert refused == reply
    assert problem in refused.reason
    assert "Write exactly one action, as <action>your action</action>." in refused.reason
    assert len(refused.reason) < 120


@pytest.mark.parametrize(
    ("formats", "reply", "expected"),
    [
        (("tags",), "go", None),
        (("tags",), "Action: go", None),
        (("react",), "<action>look</action>\nAction: go", "go"),
        (("bare",), "<action>look</action>", "<action>look</action>"),
        (("fence",), "Action: ```go```", "go"),
        (("bare", "react"), "go", "go"),
    ],
)
def test_only_the_given_formats_count(formats: tuple[str, ...], reply: str, expected: str | None) -> None:
    found = parse_reply(reply, formats)
    assert found == (reply if expected is None else expected)
    assert isinstance(found, RefusedAction) == (expected is None)


def test_the_reason_shows_a_format_that_is_accepted() -> None:
    refused = parse_reply("no\naction", ("react", "fence"))
    assert isinstance(refused, RefusedAction)
    assert "Action: your action" in refused.reason
    assert "<action>" not in refused.reason


@pytest.mark.parametrize("formats", [("tag",), ["tags", "fences"], "tgs", (), [None]])
def test_unknown_formats_are_refused(formats: Any) -> None:
    with pytest.raises(ValueError, match="tags, react, fence, bare"):
        parse_reply("go", formats)
    with pytest.raises(ValueError, match="tags, react, fence, bare"):
        ActionParser(CounterEnv(), formats)


PIECES = [
    *(
        "<action>",
        "</action>",
        "<think>",
        "</think>",
        "Action:",
        "Thought:",
        "```",
        "`",
        "**",
        "\n",
        "\r",
        " ",
    ),
    *("go", "a: b", "<", "</", "ACTION", "\0", "\ud800", "\u2028", "\U0001f600", "e\u0301", "\x1b[0m"),
]


def test_no_string_raises_and_every_action_is_a_plain_part_of_its_reply() -> None:
    rng = random.Random("junk")
    kinds = set()
    for _ in range(20_000):
        reply = "".join(rng.choice(PIECES) for _ in range(rng.randrange(12)))
        found = parse_reply(reply)
        kinds.add(type(found))
        if isinstance(found, RefusedAction):
            assert found == reply
        else:
            assert found == found.strip() != ""
            assert all(part in reply for part in found.split("\n"))
    assert kinds == {str, RefusedAction}


@pytest.mark.parametrize(
    "piece", [*PIECES, "<action>\n", "Action:\n", "Action:```", "```\n", "``` ", "``` ```\n", "<think></think>"]
)
@pytest.mark.timeout(60)
def test_the_time_grows_no_faster_than_the_reply(piece: str) -> None:
    """What goes over the rest of the reply again and again takes minutes on these, which the time limit ends."""
    many = piece * (1_000_000 // len(piece))
    for reply in (many, "x" + many, piece + "x" * 1_000_000, f"Action:\n{many}"):
        parse_reply(reply)


# ---- the wrapper ----------------------------------------------------------------------------------------


def test_a_refused_reply_spends_one_turn_and_changes_nothing() -> None:
    env = ActionParser(CounterEnv())
    env.reset(seed=0)
    before = env.unwrapped.value  # type: ignore[attr-defined]
    observation, _, terminated, truncated, info = env.step("I wonder.\nWhat now?")
    assert observation.startswith("No action was found.")
    assert (info["valid_action"], info["turn"], terminated, truncated) == (False, 1, False, False)
    observation, *_, info = env.step("Thought: on\nAction: add 1")
    assert observation == f"The counter shows {before + 1}."
    assert (info["valid_action"], info["turn"]) == (True, 2)
    env.close()


@pytest.mark.parametrize("through", [copy.copy, copy.deepcopy, lambda refused: pickle.loads(pickle.dumps(refused))])
def test_a_refused_reply_survives_copies_and_pickles(through: Any) -> None:
    refused = through(RefusedAction("I wonder.", "Write one action."))
    assert type(refused) is RefusedAction
    assert (refused, refused.reason) == ("I wonder.", "Write one action.")


def test_refused_replies_count_towards_the_horizon() -> None:
    env = HorizonCurriculum(ActionParser(gymnasium.make(COUNTER_ID)), 2)
    env.reset(seed=0)
    assert [env.step(reply)[3] for reply in ("", "a\nb")] == [False, True]
    env.close()


def test_whole_replies_are_in_the_action_space_and_any_string_is_answered() -> None:
    env = ActionParser(gymnasium.make(COUNTER_ID))
    assert env.action_space.contains("x" * MAX_REPLY_CHARS)
    env.reset(seed=0)
    for reply in ("x" * 100_000, "\ud800", "\0", "", "<action>" * 12_500, RefusedAction("", "cut off")):
        observation, *_, info = env.step(reply)
        assert info["valid_action"] is False
        assert env.observation_space.contains(observation)
    assert observation == "cut off"
    with pytest.raises(ValueError, match="an action is a string, not 3"):
        env.step(3)  # type: ignore[arg-type]
    env.close()


def test_the_spec_survives_json_and_makes_the_same_parser() -> None:
    env = ActionParser(gymnasium.make(COUNTER_ID), ("tags", "bare"))
    spec = env.spec
    assert spec is not None
    again = gymnasium.make(type(spec).from_json(spec.to_json()))
    assert isinstance(again, ActionParser)
    assert again.formats == ("tags", "bare") != FORMATS
    env.close()
    again.close()


@pytest.mark.filterwarnings("ignore:.*different from the unwrapped version.*")
def test_gymnasiums_checker_accepts_the_wrapped_environment() -> None:
    env = HorizonCurriculum(ActionParser(CounterEnv()), 5)
    check_env(env, skip_render_check=True)
    env.close()


def test_other_environments_are_refused() -> None:
    with pytest.raises(ValueError, match="ActionParser wraps"):
        ActionParser(gymnasium.make("CartPole-v1"))

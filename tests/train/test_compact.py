"""The compact model: made from training tasks only, retold with other names, the same for the same seed."""

from __future__ import annotations

import random
import re
import signal
import subprocess
import sys
from pathlib import Path

import gymnasium
import pytest
import torch
import yaml

from agentgym_train.chat import Chat
from agentgym_train.compact import CompactConfig, compact_command, compact_path
from agentgym_train.compact_model import (
    Story,
    make_model,
    make_tokenizer,
    names_in,
    oracle_stories,
    retell,
    retold,
    tell,
)
from agentgym_train.config import ConfigError
from agentgym_train.models import load_model, load_tokenizer, stop_tokens
from agentgym_train.self_check import check_model, packing_problem

ENV = "AgentGym/TextCraft-Depth1-v0"
SMALL = CompactConfig(env=ENV, echo_steps=4, episodes=24, oracle_episodes=8, vocabulary=400, hidden_size=32, layers=2)


@pytest.fixture(scope="module")
def stories() -> list[Story]:
    return oracle_stories(ENV, 40)


def test_stories_are_of_training_tasks_and_end_well(stories: list[Story]) -> None:
    env = gymnasium.make(ENV, split="test")
    held_out = {task.id for task in env.unwrapped.tasks}  # type: ignore[attr-defined]
    env.close()
    assert len(stories) == 40
    assert held_out.isdisjoint(story.task for story in stories)
    assert all(story.turns[-1][0].startswith("craft") for story in stories)


def test_a_story_is_retold_with_other_names_wherever_they_stand() -> None:
    story = Story(
        "t",
        "get <count> <item>",
        "craft 4 oak planks using 1 oak log\n\nGoal: craft oak planks.",
        (("get 1 oak log", "Got 1 oak log"), ("craft 4 oak planks using 1 oak log", "Crafted 4 minecraft:oak_planks")),
    )
    names = names_in([story])
    assert names == ["craft", "log", "oak", "planks", "using"]  # but not the instruction's words
    names = ["log", "oak", "planks"]
    for seed in range(20):
        other = retell(story, names, random.Random(seed))
        oak, planks, log = re.fullmatch(
            r"craft 4 (\w+) (\w+) using 1 \1 (\w+)\n\nGoal: craft \1 \2\.", other.opening
        ).groups()  # type: ignore[union-attr]
        assert other.turns == (
            (f"get 1 {oak} {log}", f"Got 1 {oak} {log}"),
            (f"craft 4 {oak} {planks} using 1 {oak} {log}", f"Crafted 4 minecraft:{oak}_{planks}"),
        )
        assert (other.task, other.instruction) == (story.task, story.instruction)


def test_names_are_often_exchanged_and_words_of_the_instruction_never(stories: list[Story]) -> None:
    told = list(retold(stories, 50, seed=0))
    assert told == list(retold(stories, 50, seed=0))
    assert told != list(retold(stories, 50, seed=1))
    own = {story.opening for story in stories}
    assert not own & {story.opening for story in told}
    assert all(story.turns[0][0].startswith("get ") for story in told)


def test_a_story_is_written_as_rollouts_see_it(stories: list[Story]) -> None:
    chat = Chat(make_tokenizer([story.text for story in stories], 400))
    story = stories[0]
    trajectory = tell(story, chat, whole=False)
    prompt = chat.prompt(story.instruction, story.opening)
    assert trajectory.tokens[: len(prompt)] == prompt
    trained = [token for token, flag in zip(trajectory.tokens, trajectory.mask, strict=True) if flag]
    assert trained == [token for reply, _ in story.turns for token in chat.reply(reply)]
    whole = tell(story, chat, whole=True)
    assert whole.tokens == trajectory.tokens
    assert sum(whole.mask) > sum(trajectory.mask)


def test_the_same_seed_gives_the_same_model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folders = []
    for name in ("one", "two"):
        monkeypatch.setenv("AGENTGYM_CACHE", str(tmp_path / name))
        folders.append(compact_path(SMALL))
    one, two = (load_model(str(folder)) for folder in folders)
    assert all(torch.equal(a, b) for a, b in zip(one.parameters(), two.parameters(), strict=True))
    check_model(one, "compact")
    assert packing_problem(one) == ""
    tokenizer = load_tokenizer(str(folders[0]))
    assert tokenizer.get_vocab() == load_tokenizer(str(folders[1])).get_vocab()
    chat = Chat(tokenizer, stop_tokens(one))
    assert chat.stop_tokens == {chat.end_of_turn}
    written = (folders[1] / "model.safetensors").stat().st_mtime_ns
    assert compact_path(SMALL) == folders[1]  # it is made once
    assert (folders[1] / "model.safetensors").stat().st_mtime_ns == written


def test_the_command_writes_a_folder_and_refuses_what_it_cannot_make(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "deep" / "model"
    small = ["--echo-steps", "0", "--episodes", "8", "--oracle-episodes", "4", "--hidden-size", "32", "--layers", "1"]
    assert compact_command(["--env", ENV, "--out", str(out), *small]) == 0
    assert f"--model.path {out}" in capsys.readouterr().out.replace("\n", " ")
    load_model(str(out))
    made_with = yaml.safe_load((out / "compact.yaml").read_text())
    assert (made_with["env"], made_with["episodes"], made_with["hidden_size"]) == (ENV, 8, 32)
    assert sorted(path.name for path in out.parent.iterdir()) == ["model"]
    for arguments, message in (
        (["--out", str(out)], "exists already"),
        (["--env", "AgentGym/Nothing-v0", "--out", str(tmp_path / "a")], "Known here: AgentGym/"),
        (["--hidden-size", "100"], "give a multiple of 32"),
        (["--episodes", "0"], "give at least"),
    ):
        assert compact_command(arguments) == 1
        assert message in capsys.readouterr().err
    assert sorted(path.name for path in tmp_path.iterdir()) == ["deep"]


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_leaves_nothing_behind(tmp_path: Path, number: signal.Signals) -> None:
    out = tmp_path / "deep" / "model"
    command = [sys.executable, "-m", "agentgym_train.cli", "compact", "--env", ENV, "--out", str(out)]
    small = ["--oracle-episodes", "4", "--hidden-size", "32", "--layers", "1"]
    process = subprocess.Popen([*command, *small], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert process.stdout is not None
    process.stdout.readline()  # it has begun to learn
    (partial,) = out.parent.iterdir()
    assert partial.name.startswith(".model-")
    process.send_signal(number)
    _, errors = process.communicate(timeout=120)
    assert (process.returncode, list(out.parent.iterdir())) == (128 + number, [])
    assert errors.splitlines()[-1] == "stopped; no model was written"
    assert "Traceback" not in errors


def test_the_first_heads_begin_by_looking_at_the_token_before() -> None:
    model = make_model(make_tokenizer([], 300), CompactConfig(hidden_size=64, layers=1))
    model.set_attn_implementation("eager")
    tokens = torch.randint(3, 250, (1, 30), generator=torch.Generator().manual_seed(0))
    weights = model(input_ids=tokens, output_attentions=True).attentions[0][0]
    assert (weights.diagonal(-1, 1, 2).mean(-1) > 0.6).all()


def test_numbers_are_checked() -> None:
    with pytest.raises(ConfigError, match=r"lr=0\.0 is not accepted"):
        CompactConfig(lr=0.0).check()

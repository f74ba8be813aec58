"""Supervised fine-tuning: which episodes are imitated, to the token, and whole runs that learn, stop and go on."""

import json
from pathlib import Path
from typing import Any

import pytest

from agentgym_train.chat import Chat
from agentgym_train.cli import main
from agentgym_train.config import ConfigError, from_dict
from agentgym_train.config_kinds import SFTConfig
from agentgym_train.run import drive
from agentgym_train.sft import SFT
from agentgym_train.supervised import Batches
from agentgym_train.training_data import Record, episode_trajectory, messages_of, read_records, write_down
from agentgym_wrappers import FixedHorizon, StagedHorizon
from tests.train.small_runs import assert_same_run, press_ctrl_c, rows_of, settings


def talk(reply: str, number: int = 0, turns: int = 2) -> dict[str, Any]:
    """A conversation about the letter that the held-out vowel task asks for."""
    messages = [{"role": "system", "content": "write"}, {"role": "user", "content": f"{number}: write o"}]
    for turn in range(turns):
        messages += [{"role": "assistant", "content": reply}, {"role": "user", "content": f"{5 * turn + 5} of 10"}]
    return {"messages": messages}


def write_lines(file: Path, rows: list[dict[str, Any]]) -> Path:
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return file


def sft_settings(tiny_path: Path, run: Path, data: Path | str = "", **changes: Any) -> dict[str, Any]:
    plain = settings(tiny_path, run, env={"subsets": ["Vowels"]}, evaluate={"tasks": 1, "samples": 32}, batch_size=4)
    plain["data"] = {"path": str(data)}
    return {**plain, **changes}


def run_sft(plain: dict[str, Any], resume: bool = False) -> dict[str, Any]:
    return drive(SFT, from_dict(plain, SFTConfig), resume, None)


def test_it_learns_from_conversations_what_solves_a_held_out_task(tiny_path: Path, tmp_path: Path) -> None:
    data = write_lines(tmp_path / "talks.jsonl", [talk("ooooo", number) for number in range(8)])
    plain = sft_settings(tiny_path, tmp_path / "run", data, batch_size=8, epochs=50, checkpoint_every=0)
    summary = run_sft(plain)
    rows = rows_of(tmp_path / "run", "sft")
    assert len(rows) == summary["steps"] == 50
    assert rows[-1]["loss"] < 0.2 < 3 < rows[0]["loss"]
    before, after = rows_of(tmp_path / "run", "eval")
    assert after["score/mean"] > before["score/mean"] + 0.4
    assert summary["after"] > summary["before"]
    assert {"before", "after", "gain", "checkpoint"} <= summary.keys()


def test_without_a_file_the_oracle_of_the_training_tasks_is_imitated(
    tiny_path: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = tmp_path / "run"
    plain = settings(tiny_path, run, epochs=8, batch_size=6, checkpoint_every=0, evaluate={"tasks": 1, "samples": 1})
    run_sft({**plain, "data": {"tasks": 6}, "horizon": 2})
    assert "6 episodes\n" in capsys.readouterr().out
    rows = rows_of(run, "sft")
    assert len(rows) == 8
    assert rows[-1]["loss"] < rows[0]["loss"]
    assert {row["turns/mean"] for row in rows} == {2.0}
    with pytest.raises(ConfigError, match=r"no episodes to train on; 6 left out: more turns than the horizon's 1"):
        run_sft({**plain, "run_dir": str(tmp_path / "short"), "data": {"tasks": 6}, "horizon": 1})
    assert not (tmp_path / "short" / "config.yaml").exists()


def test_a_run_that_is_stopped_goes_on_exactly(
    tiny_path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    data = write_lines(tmp_path / "talks.jsonl", [talk(letter * 3) for letter in "oaeic"])
    changes: dict[str, Any] = {"batch_size": 2, "epochs": 2}
    run_sft(sft_settings(tiny_path, tmp_path / "straight", data, **changes))
    run, recipe = tmp_path / "run", tmp_path / "recipe.json"
    recipe.write_text(json.dumps(sft_settings(tiny_path, run, data, **changes)))
    with monkeypatch.context() as patch:
        press_ctrl_c(patch, after=3)
        assert main(["sft", "--recipe", str(recipe)]) == 130
    assert f"agentgym sft --resume {run}" in capsys.readouterr().out
    assert json.loads((run / "summary.json").read_text())["status"] == "interrupted"

    assert main(["train", "--resume", str(run)]) == 1
    assert f"a run of `agentgym sft`; continue it with: agentgym sft --resume {run}" in capsys.readouterr().err
    kept = data.read_text()
    write_lines(data, [talk("aaa")] * 5)
    assert main(["sft", "--resume", str(run)]) == 1
    assert "the episodes are not those that the run" in capsys.readouterr().err
    data.write_text(kept)

    assert main(["sft", "--resume", str(run)]) == 0
    assert_same_run(run, tmp_path / "straight")
    assert (run / "report.html").exists()


def test_a_finished_run_goes_on_to_more_epochs(tiny_path: Path, tmp_path: Path) -> None:
    data = write_lines(tmp_path / "talks.jsonl", [talk(letter * 3) for letter in "oaei"])
    plain = sft_settings(tiny_path, tmp_path / "run", data, epochs=1)
    run_sft(plain)
    assert main(["sft", "--resume", plain["run_dir"], "--epochs", "3"]) == 0
    assert [row["step"] for row in rows_of(tmp_path / "run", "sft")] == [0, 1, 2]


def test_under_a_growing_horizon_short_episodes_come_first(tiny_path: Path, tmp_path: Path) -> None:
    talks = [talk("o", number, turns) for number in range(4) for turns in (1, 2, 3)]
    data = write_lines(tmp_path / "talks.jsonl", talks)
    horizon = {"kind": "staged", "stages": [[0, 1], [0.5, 2]]}
    run_sft(sft_settings(tiny_path, tmp_path / "run", data, horizon=horizon, evaluate={"tasks": 1, "samples": 1}))
    rows = rows_of(tmp_path / "run", "sft")
    assert [row["horizon"] for row in rows] == [1, 2]
    assert rows[0]["turns/mean"] == 1.0
    assert rows[1]["turns/mean"] > 1.0


def test_batches_are_a_pure_function_of_the_step() -> None:
    batches = Batches([1] * 5, [FixedHorizon(1)] * 5, size=2, epochs=2, seed=0)
    drawn = [batches.at(step) for step in range(len(batches))]
    order = [place for batch in drawn for place in batch]
    assert sorted(order[:5]) == sorted(order[5:]) == list(range(5))
    assert batches.at(3) == drawn[3]
    growing = StagedHorizon(((0.0, 1), (0.5, 4)), total_steps=4)
    staged = Batches([1, 4, 1, 4], [growing] * 4, size=2, epochs=2, seed=0)
    assert [set(staged.at(step)) <= {0, 2} for step in (0, 1)] == [True, True]
    assert set(staged.at(2)) | set(staged.at(3)) == {0, 1, 2, 3}
    assert Batches([3], [FixedHorizon(2)], 1, 1, 0).at(0) == []


def test_a_conversation_is_tokenized_as_in_rollouts(chat: Chat) -> None:
    record = Record("here", talk("ooo"))
    trajectory = write_down(messages_of(record), chat, "here")
    reply = chat.reply("ooo")
    expected = [*chat.prompt("write", "0: write o"), *reply, *chat.after_reply("5 of 10", ended=True), *reply]
    assert trajectory.tokens == expected
    assert trajectory.sampled == 2 * len(reply)
    trained = [token for token, mask in zip(trajectory.tokens, trajectory.mask, strict=True) if mask]
    assert trained == [*reply, *reply]
    rendered = str(chat.tokenizer.apply_chat_template(record.data["messages"], tokenize=False))
    assert rendered.startswith(str(chat.tokenizer.decode(trajectory.tokens)))


def test_only_marked_turns_are_trained_on_and_other_formats_are_read(chat: Chat) -> None:
    turns = [
        {"from": "human", "value": "write o", "loss": None},
        {"from": "gpt", "value": "fine", "loss": False},
        {"from": "human", "value": "go on"},
        {"from": "gpt", "value": "ooo", "loss": True},
    ]
    trajectory = write_down(messages_of(Record("here", {"conversations": turns})), chat, "here")
    trained = [token for token, mask in zip(trajectory.tokens, trajectory.mask, strict=True) if mask]
    assert trained == chat.reply("ooo")
    assert chat.decode(trajectory.tokens).count("fine") == 1
    assert "system" not in chat.tokenizer.decode(trajectory.tokens)


def test_a_runs_own_successes_are_imitated_and_held_out_tasks_are_not(
    tiny_path: Path, tmp_path: Path, chat: Chat, capsys: pytest.CaptureFixture[str]
) -> None:
    oracle = tmp_path / "oracle"
    evaluate = ["--evaluate.tasks", "3", "--evaluate.samples", "1", "--evaluate.horizon", "2", "--run-dir", str(oracle)]
    assert main(["eval", "--policy", "oracle", "--env.id", "Toy/Letters-v0", *evaluate]) == 0
    rows = rows_of(oracle, name="trajectories.jsonl")
    assert [row["score"] for row in rows] == [1.0] * 3

    trained = [{**rows[0], "task": "letters_0"}, {**rows[1], "task": "letters_1", "score": 0.5}]
    spoiled = {**rows[0], "task": "letters_0", "end": "error"}
    data = write_lines(tmp_path / "rows.jsonl", [*rows, *trained, spoiled])
    run_sft(settings(tiny_path, tmp_path / "run", data={"path": str(data)}, evaluate={"samples": 1}))
    told = capsys.readouterr().out
    assert "1 episodes; 3 left out: episodes of held-out tasks; 1 left out: episodes that ended in an error" in told
    assert "1 left out: score below data.min_score=1" in told

    again = episode_trajectory(Record("row", trained[0]), chat)
    system = f"<|im_start|>system\n{rows[0]['instruction']}<|im_end|>"
    assert str(chat.tokenizer.decode(again.tokens)).startswith(system)
    assert (again.episode.task, again.score, len(again.turns)) == ("letters_0", 1.0, 2)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", r"data\.path='.*' is empty"),
        ("{", "line 1 is not valid JSON"),
        ("[1]", "entry 1: '1' is no JSON object"),
        ('{"text": "a"}', "line 1 has text; accepted are messages, a list"),
        ('{"messages": [{"role": "tool", "content": "a"}]}', r"message 1: role 'tool' .* system, user and assistant"),
        ('{"messages": [{"role": "user", "content": "a"}]}', "line 1 has no assistant message that is trained on"),
        ('{"messages": [{"role": ["user"], "content": "a"}]}', r"message 1: role \['user'\] with content"),
        (
            '{"messages": [{"role": "user", "content": "\\ud800"}, {"role": "assistant", "content": "a"}]}',
            "line 1 holds half of a surrogate pair",
        ),
        (
            '{"messages": [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b", "train": "no"}]}',
            "message 2: 'no' does not say whether it is trained on; give true or false",
        ),
        (
            '{"messages": [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b", "train": 0}]}',
            "line 1 has no assistant message that is trained on",
        ),
        (
            '{"messages": [{"role": "assistant", "content": "a"}, {"role": "user", "content": "b"}]}',
            "the roles are assistant, user; accepted is a system message or none, then user and assistant in turn",
        ),
        ('{"turns": [], "prompt": "a", "end": ""}', "no episodes to train on; 1 left out: episodes that ended in an"),
        ('{"turns": [{"reply": "a"}], "prompt": "a"}', "line 1 is no whole episode of a run .*instruction"),
        ('{"turns": [{}], "prompt": "a", "task": ["a"]}', "line 1 is no whole episode of a run .*instruction"),
        ('{"turns": [{}], "prompt": "a", "trials": "2"}', "1 left out: episodes of several trials"),
        (
            '{"instruction": "a", "prompt": "a", "task": "a", "seed": 0, "sample": 0, "success": true, "score": NaN, '
            '"turns": [{"reply": "a", "observation": "b", "finish": "stop"}]}',
            "line 1 is no whole episode of a run .*score nan",
        ),
    ],
)
def test_files_that_cannot_be_learned_from_are_refused(
    text: str, message: str, tiny_path: Path, tmp_path: Path
) -> None:
    data = tmp_path / "data.jsonl"
    data.write_text(text)
    with pytest.raises(ConfigError, match=message):
        run_sft(sft_settings(tiny_path, tmp_path / "run", data))
    with pytest.raises(ConfigError, match="cannot be read"):
        run_sft(sft_settings(tiny_path, tmp_path / "run", tmp_path / "missing.jsonl"))


def test_an_adaptive_horizon_and_a_first_stage_that_is_too_short_are_refused(tiny_path: Path, tmp_path: Path) -> None:
    data = write_lines(tmp_path / "talks.jsonl", [talk("ooo")])
    adaptive = {"kind": "adaptive", "start": 1, "increment": 1, "cap": 3}
    with pytest.raises(ConfigError, match="an adaptive horizon follows the steps of `agentgym train`"):
        run_sft(sft_settings(tiny_path, tmp_path / "run", data, horizon=adaptive))
    staged = {"kind": "staged", "stages": [[0, 1], [0.5, 2]]}
    with pytest.raises(ConfigError, match="no example is so short at the first step; the shortest one has 2 turns"):
        run_sft(sft_settings(tiny_path, tmp_path / "run", data, horizon=staged))


def test_an_empty_system_message_is_none(chat: Chat) -> None:
    talk_only = [{"role": "user", "content": "write o"}, {"role": "assistant", "content": "ooo"}]
    with_system = [{"role": "system", "content": ""}, *talk_only]
    one, other = (
        write_down(messages_of(Record("here", {"messages": messages})), chat, "here")
        for messages in (talk_only, with_system)
    )
    assert one.tokens == other.tokens


def test_a_mark_of_the_byte_order_is_no_part_of_a_file(tmp_path: Path) -> None:
    file = tmp_path / "talks.jsonl"
    file.write_text(json.dumps({"text": "a"}), encoding="utf-8-sig")
    assert [record.data for record in read_records(str(file), "data.path")] == [{"text": "a"}]


def test_texts_may_hold_ends_of_lines_of_other_kinds(tmp_path: Path) -> None:
    file = tmp_path / "talks.jsonl"
    rows = [{"text": "a\u2028b\x85c"}, {"text": "d"}]
    file.write_text("\n".join(json.dumps(row, ensure_ascii=False) for row in rows), encoding="utf-8")
    assert [record.data for record in read_records(str(file), "data.path")] == rows


def test_an_episode_of_a_cut_reply_without_a_token_is_left_out(
    tiny_path: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    empty = {"reply": "", "observation": "cut", "finish": "length"}
    episode = {"task": "letters_0", "seed": 0, "sample": 0, "score": 1.0, "success": True, "end": "horizon"}
    file = tmp_path / "trajectories.jsonl"
    file.write_text(json.dumps({**episode, "instruction": "write", "prompt": "write\n\na", "turns": [empty]}))
    config = from_dict(settings(tiny_path, tmp_path / "run", data={"path": str(file)}), SFTConfig)
    with pytest.raises(ConfigError, match="1 left out: replies without a token"):
        drive(SFT, config, False, None)

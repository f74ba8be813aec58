"""Rollouts: what the engine sampled is what the trajectory holds, whatever the environments do."""

from itertools import groupby, pairwise
from pathlib import Path

import pytest
import torch
from transformers import PreTrainedModel

from agentgym_train.chat import Chat
from agentgym_train.engines.hf import HFEngine
from agentgym_train.trajectory import Episode, Trajectory
from agentgym_train.watchdog import Watchdog
from tests.train.letters_env import DeadlyEnv, FragileEnv, LettersEnv, SlowEnv
from tests.train.rollouts import RecordingEngine, Run


def episodes_of(*tasks: int, samples: int = 1, horizon: int = 4, seed: int = 7) -> list[Episode]:
    return [Episode(f"letters_{t}", seed + t, sample, horizon, "test") for t in tasks for sample in range(samples)]


def assert_sound(trajectory: Trajectory) -> None:
    """The parts of a trajectory fit together."""
    assert len(trajectory.tokens) == len(trajectory.mask) == len(trajectory.logprobs)
    spans = [(turn.start, turn.stop) for turn in trajectory.turns]
    assert all(start < stop for start, stop in spans)
    assert all(one[1] <= two[0] for one, two in pairwise(spans))
    inside = {k for start, stop in spans for k in range(start, stop)}
    assert {k for k, flag in enumerate(trajectory.mask) if flag} == inside
    assert all(trajectory.logprobs[k] < 0 for k in inside)
    assert not any(value for k, value in enumerate(trajectory.logprobs) if k not in inside)
    assert spans[0][0] == trajectory.prompt_length
    assert trajectory.reward == pytest.approx(sum(turn.reward for turn in trajectory.turns))


def test_a_trajectory_is_what_was_asked_and_what_was_sampled(
    recorder: RecordingEngine, chat: Chat, run_with: Run
) -> None:
    trajectories = run_with(recorder).run(episodes_of(0, 1, 2, samples=4), 1.0)
    merged = 0
    for trajectory in trajectories:
        assert_sound(trajectory)
        episode = trajectory.episode
        name = f"{episode.task}/{episode.seed}/{episode.sample}"
        calls = [(context, reply) for request, context, reply in recorder.calls if request.key == name]
        assert len(calls) == len(trajectory.turns)
        for (context, reply), turn in zip(calls, trajectory.turns, strict=True):
            assert trajectory.tokens[: turn.start] == context
            assert trajectory.tokens[turn.start : turn.stop] == reply.tokens
            assert trajectory.logprobs[turn.start : turn.stop] == reply.logprobs
            assert turn.finish == reply.finish
            assert turn.action == turn.reply.strip() or (turn.action == "" and not turn.valid)
            ended = reply.tokens[-1] in chat.stop_tokens
            merged += chat.reply(turn.reply) != reply.tokens + [chat.end_of_turn] * (not ended)
        # The whole is its parts in a row: prompt, reply, glue and observation, reply, ...
        expected = list(calls[0][0])
        for number, (_, reply) in enumerate(calls):
            expected += reply.tokens
            if number < len(calls) - 1:
                expected += chat.after_reply(trajectory.turns[number].observation, reply.finish == "stop")
        assert trajectory.tokens == expected
    assert merged > 5  # replies whose text would be tokenized otherwise
    seeds = [request.seed for request, _, _ in recorder.calls]
    assert len(set(seeds)) == len(seeds)


def test_members_of_a_group_start_alike_and_go_on_differently(engine: HFEngine, chat: Chat, run_with: Run) -> None:
    trajectories = run_with(engine).run(episodes_of(0, 1, 2, samples=4), 1.0)
    prompts: list[tuple[int, ...]] = []
    for _, group in groupby(trajectories, key=lambda trajectory: trajectory.group):
        members = list(group)
        assert len(members) == 4
        starts = {tuple(member.tokens[: member.prompt_length]) for member in members}
        assert len(starts) == 1
        assert len({tuple(member.tokens) for member in members}) == 4
        prompts += starts
    assert len(set(prompts)) == 3
    observation = trajectories[0].prompt.split("\n\n")[1]
    assert list(prompts[0]) == chat.prompt(LettersEnv().instruction, observation)


@pytest.mark.parametrize("deterministic", [True, False])
def test_any_number_of_environments_gives_the_same_trajectories(
    engine: HFEngine, run_with: Run, deterministic: bool
) -> None:
    episodes = episodes_of(0, 1, 2, samples=3)
    together = run_with(engine).run(episodes, 1.0)
    few = run_with(engine, max_parallel=2, deterministic=deterministic).run(episodes, 1.0)
    assert [trajectory.episode for trajectory in few] == episodes
    assert [trajectory.tokens for trajectory in few] == [trajectory.tokens for trajectory in together]


def test_a_slow_environment_holds_up_nobody(recorder: RecordingEngine, run_with: Run) -> None:
    done: list[str] = []
    runner = run_with(recorder, SlowEnv, max_parallel=4)
    trajectories = runner.run(episodes_of(0, 1, 2, 4, horizon=3), 1.0, lambda t: done.append(t.episode.task))
    assert all(trajectory.end in {"horizon", "success"} for trajectory in trajectories)
    assert done[-1] == "letters_0"
    order = [request.key.partition("/")[0] for request, _, _ in recorder.calls]
    assert max(k for k, name in enumerate(order) if name != "letters_0") < len(order) - 1 - order[::-1].index(
        "letters_0"
    )


def test_in_deterministic_mode_every_turn_waits_for_all(recorder: RecordingEngine, run_with: Run) -> None:
    run_with(recorder, SlowEnv, max_parallel=4, deterministic=True).run(episodes_of(0, 1, 2, 4, horizon=2), 1.0)
    order = [request.key.partition("/")[0] for request, _, _ in recorder.calls]
    assert sorted(order[:4]) == sorted(order[4:8]) == ["letters_0", "letters_1", "letters_2", "letters_4"]


def test_what_is_under_way_goes_on_in_the_next_call_with_other_weights(
    engine: HFEngine, model: PreTrainedModel, run_with: Run
) -> None:
    """A slow episode is left under way, the weights change, and it is finished beside new ones."""
    done: list[Trajectory] = []
    runner = run_with(engine, SlowEnv, max_parallel=4)
    first = runner.begin(episodes_of(0, 1, 2, 4, horizon=3), 1.0)
    runner.work(done.append, until=lambda: len(done) >= 3)
    assert [trajectory.end == "" for trajectory in first] == [True, False, False, False]
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(0.5)
    engine.update_weights(model)
    second = runner.begin(episodes_of(1, 2, horizon=3, seed=8), 0.0)
    runner.work(done.append)
    assert len(done) == 6
    for trajectory in [*first, *second]:
        assert trajectory.end in {"horizon", "success"}
        assert_sound(trajectory)
    assert done.index(first[0]) == 5  # the new ones did not wait for it


def test_a_stall_names_what_is_waited_for(engine: HFEngine, run_with: Run, tmp_path: Path) -> None:
    told: list[str] = []
    with Watchdog(0.4, told.append, tmp_path / "stalls.txt") as watchdog:
        run_with(engine, SlowEnv, max_parallel=4, watchdog=watchdog).run(episodes_of(0, 1, 2, horizon=2), 1.0)
    assert any("waiting for 1 environments: 0 (letters_0, turn " in line for line in told)


@pytest.mark.parametrize("horizon", [1, 3])
def test_the_horizon_is_obeyed(engine: HFEngine, run_with: Run, horizon: int) -> None:
    for trajectory in run_with(engine).run(episodes_of(0, 1, samples=4, horizon=horizon), 1.0):
        assert trajectory.end in {"horizon", "success"}
        assert (len(trajectory.turns) == horizon) or trajectory.success


def test_an_episode_without_room_ends_before_the_engine_is_asked(recorder: RecordingEngine, run_with: Run) -> None:
    runner = run_with(recorder, max_context=150)
    trajectories = runner.run(episodes_of(0, 1, 2, samples=2, horizon=50), 1.0)
    assert {trajectory.end for trajectory in trajectories} == {"context"}
    assert all(len(context) + 8 <= 150 for _, context, _ in recorder.calls)
    for trajectory in trajectories:
        assert len(trajectory.tokens) + 8 > 150
        assert trajectory.turns[-1].observation  # the last answer was given, nothing was cut off it
        assert trajectory.tokens[-3:] == trajectory.tokens[trajectory.prompt_length - 3 : trajectory.prompt_length]
        assert_sound(trajectory)


def test_a_prompt_without_room_is_an_error_that_says_so(recorder: RecordingEngine, run_with: Run) -> None:
    (trajectory,) = run_with(recorder, max_context=20).run(episodes_of(0), 1.0)
    assert trajectory.end == "error"
    assert "rollout.max_context=20; raise it" in trajectory.error
    assert trajectory.turns == []
    assert recorder.calls == []


def test_a_reply_that_was_cut_off_is_told_and_spends_its_turn(engine: HFEngine, chat: Chat, run_with: Run) -> None:
    trajectories = run_with(engine, max_reply_tokens=2).run(episodes_of(0, samples=8), 1.0)
    turns = [turn for trajectory in trajectories for turn in trajectory.turns]
    cut = [turn for turn in turns if turn.finish == "length"]
    assert 0 < len(cut) < len(turns)
    for turn in cut:
        assert "cut off after 2 tokens" in turn.observation
        assert (turn.valid, turn.reward) == (False, 0.0)
    assert all(len(trajectory.turns) == 4 for trajectory in trajectories)
    for trajectory in trajectories:
        for turn in trajectory.turns[:-1]:
            # The end of the turn that is missing is given, not trained on.
            given = trajectory.tokens[turn.stop] == chat.end_of_turn
            assert given == (turn.finish == "length")
            assert trajectory.mask[turn.stop] == 0


def test_an_environment_that_fails_costs_its_trajectory_only(engine: HFEngine, run_with: Run) -> None:
    episodes = episodes_of(0, 1, 2, 4, samples=2)
    sound = run_with(engine).run(episodes, 1.0)
    seen: list[Trajectory] = []
    runner = run_with(engine, FragileEnv)
    trajectories = runner.run(episodes, 1.0, seen.append)
    assert [trajectory.episode for trajectory in trajectories] == episodes
    assert sorted(map(id, seen)) == sorted(map(id, trajectories))
    for trajectory, expected in zip(trajectories, sound, strict=True):
        if trajectory.episode.task == "letters_0":
            assert trajectory.end == "error"
            assert "ZeroDivisionError: the simulator has lost its mind" in trajectory.error
        elif trajectory.episode.task == "letters_1":
            assert trajectory.end == "error"
            assert "environment fault (died): the simulator has died" in trajectory.error
        else:
            assert trajectory.tokens == expected.tokens
            assert trajectory.error == ""
    again = runner.run(episodes, 1.0)
    assert [trajectory.tokens for trajectory in again[4:]] == [trajectory.tokens for trajectory in sound[4:]]


def test_a_process_that_dies_costs_the_trajectory_that_was_stepping(engine: HFEngine, run_with: Run) -> None:
    episodes = episodes_of(0, 1, 2, 4, samples=2)
    sound = run_with(engine).run(episodes, 1.0)
    trajectories = run_with(engine, DeadlyEnv).run(episodes, 1.0)
    for trajectory, expected in zip(trajectories, sound, strict=True):
        if trajectory.episode.task == "letters_0":
            assert trajectory.end == "error"
            assert "environment fault (" in trajectory.error
            assert "was killed by SIGKILL" in trajectory.error
            assert "was killed by SIGKILL" in trajectory.error
        else:
            assert trajectory.tokens == expected.tokens


def test_a_task_that_cannot_be_reset_costs_its_trajectory_only(engine: HFEngine, run_with: Run) -> None:
    episodes = [*episodes_of(0, 1), Episode("letters_99", 7, 0, 4, "test"), *episodes_of(2)]
    trajectories = run_with(engine, max_parallel=2).run(episodes, 1.0)
    assert trajectories[2].end == "error"
    assert "there is no task 'letters_99'" in trajectories[2].error
    assert all(trajectories[k].end in {"horizon", "success"} for k in (0, 1, 3))


def test_after_a_stopped_rollout_the_next_one_is_whole(engine: HFEngine, run_with: Run) -> None:
    class Stop(Exception):
        pass

    stop_at = [2]

    def check() -> None:
        stop_at[0] -= 1
        if stop_at[0] == 0:
            raise Stop

    runner = run_with(engine, check=check)
    episodes = episodes_of(2, 4, samples=2)
    with pytest.raises(Stop):
        runner.run(episodes, 1.0)
    expected = run_with(engine).run(episodes, 1.0)
    assert [t.tokens for t in runner.run(episodes, 1.0)] == [t.tokens for t in expected]


def test_a_row_of_the_log_holds_the_readable_part(engine: HFEngine, run_with: Run) -> None:
    (trajectory,) = run_with(engine).run(episodes_of(0), 1.0)
    row = trajectory.to_row(step=3)
    assert row["step"] == 3
    assert row["prompt"].endswith("write a")
    assert [turn["reply"] for turn in row["turns"]] == [turn.reply for turn in trajectory.turns]
    assert "tokens" not in row

"""Rollouts: what the engine sampled is what the trajectory holds, whatever the environments do."""

from collections.abc import Callable, Sequence
from itertools import groupby, pairwise
from typing import Any

import pytest

from agentgym_envs import Fault
from agentgym_envs.core import Outcome
from agentgym_train.chat import Chat
from agentgym_train.engines import Completion, Request
from agentgym_train.engines.hf import HFEngine
from agentgym_train.rollout import Environment, RolloutRunner
from agentgym_train.trajectory import Episode, Trajectory
from agentgym_wrappers import ActionParser, HorizonCurriculum
from tests.train.letters_env import LettersEnv


class RecordingEngine(HFEngine):
    """Remembers what was asked and answered."""

    calls: list[tuple[Request, list[int], Completion]]

    def generate(self, requests: Sequence[Request], temperature: float) -> list[Completion]:
        contexts = [list(request.tokens) for request in requests]
        replies = super().generate(requests, temperature)
        self.calls += zip(requests, contexts, replies, strict=True)
        return replies


class FragileEnv(LettersEnv):
    """In some tasks an action after the first turn raises, and in one of them closing does then too."""

    deterministic = False  # a fault ends the episode
    broken = False
    closed = 0

    def _act(self, action: str) -> Outcome:
        if self._turn >= 1 and self._task.id == "letters_0":
            self.broken = True
            raise ZeroDivisionError("the simulator has lost its mind")
        if self._turn >= 1 and self._task.id == "letters_1":
            raise Fault("died", "the simulator has died")
        return super()._act(action)

    def close(self) -> None:
        self.closed += 1
        super().close()
        if self.broken:
            raise OSError("cannot be closed")


class Pool:
    """Makes environments and remembers them."""

    def __init__(self, kind: Callable[[], LettersEnv]) -> None:
        self.kind = kind
        self.made: list[Any] = []

    def __call__(self) -> Environment:
        self.made.append(self.kind())
        return HorizonCurriculum(ActionParser(self.made[-1]), 99)


@pytest.fixture
def recorder(engine: HFEngine) -> RecordingEngine:
    recording = RecordingEngine(engine.model, engine._stop)
    recording.calls = []
    return recording


def runner_with(
    engine: HFEngine, chat: Chat, pool: Pool | None = None, **options: int | Callable[[], None]
) -> RolloutRunner:
    settings: dict[str, object] = {"max_parallel": 16, "max_reply_tokens": 8, "max_context": 400, **options}
    return RolloutRunner(pool or Pool(LettersEnv), engine, chat, **settings)  # type: ignore[arg-type]


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


def test_a_trajectory_is_what_was_asked_and_what_was_sampled(recorder: RecordingEngine, chat: Chat) -> None:
    trajectories = runner_with(recorder, chat).run(episodes_of(0, 1, 2, samples=4), 1.0)
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


def test_members_of_a_group_start_alike_and_go_on_differently(engine: HFEngine, chat: Chat) -> None:
    trajectories = runner_with(engine, chat).run(episodes_of(0, 1, 2, samples=4), 1.0)
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


def test_waves_of_any_size_give_the_same_trajectories(engine: HFEngine, chat: Chat) -> None:
    episodes = episodes_of(0, 1, 2, samples=2)
    pool = Pool(LettersEnv)
    one_wave = runner_with(engine, chat).run(episodes, 1.0)
    waves = runner_with(engine, chat, pool, max_parallel=4).run(episodes, 1.0)
    assert [trajectory.episode for trajectory in waves] == episodes
    assert [trajectory.tokens for trajectory in waves] == [trajectory.tokens for trajectory in one_wave]
    assert len(pool.made) == 4


@pytest.mark.parametrize("horizon", [1, 3])
def test_the_horizon_is_obeyed(engine: HFEngine, chat: Chat, horizon: int) -> None:
    for trajectory in runner_with(engine, chat).run(episodes_of(0, 1, samples=4, horizon=horizon), 1.0):
        assert trajectory.end in {"horizon", "success"}
        assert (len(trajectory.turns) == horizon) or trajectory.success


def test_an_episode_without_room_ends_before_the_engine_is_asked(recorder: RecordingEngine, chat: Chat) -> None:
    runner = runner_with(recorder, chat, max_context=150)
    trajectories = runner.run(episodes_of(0, 1, 2, samples=2, horizon=50), 1.0)
    assert {trajectory.end for trajectory in trajectories} == {"context"}
    assert all(len(context) + 8 <= 150 for _, context, _ in recorder.calls)
    for trajectory in trajectories:
        assert len(trajectory.tokens) + 8 > 150
        assert trajectory.turns[-1].observation  # the last answer was given, nothing was cut off it
        assert trajectory.tokens[-3:] == trajectory.tokens[trajectory.prompt_length - 3 : trajectory.prompt_length]
        assert_sound(trajectory)


def test_a_prompt_without_room_is_an_error_that_says_so(recorder: RecordingEngine, chat: Chat) -> None:
    (trajectory,) = runner_with(recorder, chat, max_context=20).run(episodes_of(0), 1.0)
    assert trajectory.end == "error"
    assert "rollout.max_context=20; raise it" in trajectory.error
    assert trajectory.turns == []
    assert recorder.calls == []


def test_a_reply_that_was_cut_off_is_told_and_spends_its_turn(engine: HFEngine, chat: Chat) -> None:
    trajectories = runner_with(engine, chat, max_reply_tokens=2).run(episodes_of(0, samples=8), 1.0)
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


def test_an_environment_that_raises_costs_its_trajectory_only(engine: HFEngine, chat: Chat) -> None:
    episodes = episodes_of(0, 1, 2, 4, samples=2)
    sound = runner_with(engine, chat).run(episodes, 1.0)
    pool = Pool(FragileEnv)
    seen: list[Trajectory] = []
    runner = runner_with(engine, chat, pool)
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
    assert len(pool.made) == 8
    again = runner.run(episodes, 1.0)  # with new environments in place of the four that failed
    assert [trajectory.tokens for trajectory in again[4:]] == [trajectory.tokens for trajectory in sound[4:]]
    assert len(pool.made) == 12
    runner.close()
    assert all(env.closed == 1 for env in pool.made)


def test_a_stopped_rollout_closes_its_environments(engine: HFEngine, chat: Chat) -> None:
    class Stop(Exception):
        pass

    turns = iter(range(3))

    def check() -> None:
        if next(turns) == 2:
            raise Stop

    pool = Pool(FragileEnv)
    runner = runner_with(engine, chat, pool, check=check)
    with pytest.raises(Stop):
        runner.run(episodes_of(2, 4, samples=2), 1.0)
    runner.close()
    assert [env.closed for env in pool.made] == [1] * 4


def test_a_row_of_the_log_holds_the_readable_part(engine: HFEngine, chat: Chat) -> None:
    (trajectory,) = runner_with(engine, chat).run(episodes_of(0), 1.0)
    row = trajectory.to_row(step=3)
    assert row["step"] == 3
    assert row["prompt"].endswith("write a")
    assert [turn["reply"] for turn in row["turns"]] == [turn.reply for turn in trajectory.turns]
    assert "tokens" not in row

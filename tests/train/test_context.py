"""Prompts that show the last turns only: what is sampled is what is trained, and everything else is per trajectory."""

import pytest
import torch
from transformers import PreTrainedModel

from agentgym_train.agents import PlanThenAct
from agentgym_train.chat import Chat
from agentgym_train.config import AlgorithmConfig
from agentgym_train.engines.hf import HFEngine
from agentgym_train.estimators import choose, token_advantages
from agentgym_train.logprobs import token_logprobs
from agentgym_train.packing import Row, pack
from agentgym_train.trajectory import Episode, Segment, Trajectory, Turn
from tests.train.letters_env import LettersEnv
from tests.train.rollouts import RecordingEngine, Run, assert_token_exact


def episodes_of(*tasks: int, samples: int = 3, horizon: int = 4) -> list[Episode]:
    return [Episode(f"letters_{t}", 7 + t, sample, horizon, "test") for t in tasks for sample in range(samples)]


def by_place(pieces: list[torch.Tensor], rows: list[Row], owner: int) -> list[float]:
    """One trajectory's values in the order of its sampled tokens."""
    found = [
        (place, value)
        for piece, row in zip(pieces, rows, strict=True)
        for place, of, value in zip(row.places.tolist(), row.owners.tolist(), piece.tolist(), strict=True)
        if of == owner
    ]
    assert [place for place, _ in sorted(found)] == list(range(len(found)))
    return [value for _, value in sorted(found)]


@pytest.mark.parametrize("last_turns", [1, 2])
def test_each_prompt_is_the_task_and_the_last_turns(
    recorder: RecordingEngine, run_with: Run, chat: Chat, last_turns: int
) -> None:
    for trajectory in run_with(recorder, last_turns=last_turns).run(episodes_of(0, 1), 1.0):
        assert_token_exact(trajectory, recorder)
        statement = trajectory.prompt.removeprefix(f"{LettersEnv().instruction}\n\n")
        turns = trajectory.turns
        for number, (_, context, _) in enumerate(recorder.calls_of(trajectory)):
            left_out = max(0, number - last_turns)
            notes = ["", "\n\n(The first turn is not shown.)", "\n\n(The first 2 turns are not shown.)"]
            note = notes[left_out] if left_out < 3 else "\n\n(The first 3 turns are not shown.)"
            expected = chat.prompt(LettersEnv().instruction, statement + note)
            for turn in turns[left_out:number]:
                expected += trajectory.tokens[turn.start : turn.stop]
                expected += chat.after_reply(turn.observation, ended=turn.finish == "stop")
            assert context == expected
        assert len(trajectory.starts) == max(1, len(turns) - last_turns)


def test_enough_turns_are_the_whole_history(engine: HFEngine, run_with: Run) -> None:
    whole = run_with(engine).run(episodes_of(0, 1), 1.0)
    shown = run_with(engine, last_turns=3).run(episodes_of(0, 1), 1.0)  # the last reply of four follows three turns
    assert [trajectory.tokens for trajectory in shown] == [trajectory.tokens for trajectory in whole]
    assert {tuple(trajectory.starts) for trajectory in shown} == {(0,)}


def test_a_plan_stays_in_every_prompt(recorder: RecordingEngine, run_with: Run, chat: Chat) -> None:
    for trajectory in run_with(recorder, agent=PlanThenAct(), last_turns=1).run(episodes_of(0), 1.0):
        assert_token_exact(trajectory, recorder)
        plan, *actions = trajectory.turns
        head = trajectory.tokens[: plan.stop]
        for number, (_, context, _) in enumerate(recorder.calls_of(trajectory)[3:], start=2):
            assert context[: len(head)] == head
            said = f"{plan.observation}\n\n(The first {'turn is' if number == 2 else '2 turns are'} not shown.)"
            glue = chat.after_reply(said, ended=plan.finish == "stop")
            assert context[len(head) : len(head) + len(glue)] == glue
            shown = actions[number - 1]
            assert (
                context[len(head) + len(glue) :][: shown.stop - shown.start]
                == (trajectory.tokens[shown.start : shown.stop])
            )


def test_long_episodes_fit_into_a_short_context(recorder: RecordingEngine, run_with: Run) -> None:
    (cut,) = run_with(recorder, max_context=220).run(episodes_of(2, samples=1, horizon=20), 1.0)
    (whole,) = run_with(recorder, max_context=220, last_turns=1).run(episodes_of(2, samples=1, horizon=20), 1.0)
    assert cut.end == "context"
    assert whole.end in {"horizon", "success"}
    assert len(whole.turns) > len(cut.turns)
    assert max(len(context) + 8 for _, context, _ in recorder.calls) <= 220


@pytest.mark.parametrize("budget", [1, 150, 100_000])
def test_the_trainer_computes_what_the_engine_sampled_with(
    engine: HFEngine, run_with: Run, model: PreTrainedModel, budget: int
) -> None:
    batch = run_with(engine, last_turns=1).run(episodes_of(0, 1), 1.0)
    rows = pack(batch, budget)
    values = [token_logprobs(model, row, 1.0)[0] for row in rows]
    for owner, trajectory in enumerate(batch):
        sampled = [value for value, flag in zip(trajectory.logprobs, trajectory.mask, strict=True) if flag]
        assert by_place(values, rows, owner) == pytest.approx(sampled, abs=1e-4)
    assert sum(row.unpacked for row in rows) == sum(len(trajectory.tokens) for trajectory in batch)
    if budget > 10_000:  # the task statement is computed once for all turns of a group, not once for each
        (row,) = rows
        assert len(row.tokens) < 0.55 * row.unpacked


def test_the_gradient_does_not_depend_on_how_turns_are_packed(
    engine: HFEngine, run_with: Run, model: PreTrainedModel
) -> None:
    batch = run_with(engine, last_turns=1).run(episodes_of(0), 1.0)

    def gradient(rows: list[Row]) -> list[torch.Tensor]:
        model.zero_grad()
        for row in rows:
            weights = 1.0 + row.owners + 0.1 * row.places  # of its own for each token
            (weights * token_logprobs(model, row, 1.0)[0]).sum().backward()
        return [weight.grad.clone() for weight in model.parameters() if weight.grad is not None]

    expected = gradient(pack(batch, 1, share_prompts=False))
    assert len(pack(batch, 1, share_prompts=False)) == sum(len(trajectory.segments()) for trajectory in batch) > 3
    for budget in (120, 100_000):
        for one, other in zip(gradient(pack(batch, budget)), expected, strict=True):
            torch.testing.assert_close(one, other, atol=1e-4 * float(other.abs().max()), rtol=1e-4)


def hand_made(cut: bool, sample: int, rewards: list[float]) -> Trajectory:
    """Turns of two sampled tokens; with `cut` each follows a prompt of its own."""
    made = Trajectory(Episode("a", 0, sample, 9, ""), end="success", reward=sum(rewards))
    made.append_given([5, 6, 7])
    made.prompt_length = 3
    for number, reward in enumerate(rewards):
        if number and cut:
            made.begin_segment()
            made.append_given([5, 6, 8])
        made.append_given([9])
        start, stop = made.append_sampled([10 + number, 20 + sample], [-0.5, -1.0 - number])
        made.turns.append(Turn(start, stop, "", "", "", reward, True, "stop"))
    return made


@pytest.mark.parametrize("name", ["grpo", "rloo", "reinforce++", "ppo"])
@pytest.mark.parametrize("budget", [1, 1000])
def test_advantages_run_over_turns_as_if_they_stood_in_one_sequence(name: str, budget: int) -> None:
    rewards = [[0.0, 0.25, 1.0], [0.0, 0.0], [0.5, 0.0, 0.0, 0.125]]
    algorithm = AlgorithmConfig(name=name, kl_coef=0.1, discount=0.9, trace=0.8)  # type: ignore[arg-type]
    results = []
    for cut, size in ((False, 1000), (True, budget)):
        batch = [hand_made(cut, sample, own) for sample, own in enumerate(rewards)]
        rows = pack(batch, size)
        assert len(rows) == (9 if cut and budget == 1 else 1)
        # A value and a reference for each token that depend on the token alone.
        values = [row.targets.float() / 40 for row in rows] if name == "ppo" else None
        reference = [row.logprobs - row.targets.float() / 100 for row in rows]
        chosen = choose(batch, algorithm)
        pieces, targets = token_advantages(batch, chosen.values, rows, reference, values, algorithm)
        results.append([by_place(pieces, rows, k) + by_place(targets or pieces, rows, k) for k in range(3)])
    for one, other in zip(*results, strict=True):
        assert other == pytest.approx(one, abs=1e-6)
    if name == "ppo":  # what the critic learns of the last token: its reward less its cost
        assert results[1][2][-1] == pytest.approx(0.125 - 0.1 * 22 / 100, abs=1e-6)


def test_segments_without_a_reply_are_not_trained_on() -> None:
    made = hand_made(True, 0, [0.0, 1.0])
    made.begin_segment()
    made.append_given([5, 6, 8])
    assert made.segments() == [Segment(0, 4, 6), Segment(6, 10, 12)]
    (row,) = pack([made], 1000)
    assert row.tokens.tolist() == [5, 6, 7, 9, 10, 20, 8, 9, 11, 20]
    assert row.positions.tolist() == [0, 1, 2, 3, 4, 5, 2, 3, 4, 5]
    assert row.places.tolist() == [0, 1, 2, 3]

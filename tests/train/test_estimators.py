"""Advantages of tokens, against numbers computed by hand, and the critic on real batches."""

import math

import pytest
import torch
from transformers import PreTrainedModel

from agentgym_train.advantages import (
    generalised_advantages,
    group_advantages,
    returns_to_go,
    token_rewards,
    whitened,
)
from agentgym_train.checks import check_config
from agentgym_train.config import AlgorithmConfig, ConfigError, OptimiserConfig, from_dict
from agentgym_train.critic import Critic, estimates, update_critic
from agentgym_train.estimators import choose, token_advantages
from agentgym_train.packing import Row, pack
from agentgym_train.trajectory import Episode, Trajectory, Turn
from agentgym_train.update import make_optimiser

FLOAT32 = OptimiserConfig(lr=1e-2, precision="float32")


def trajectory(task: str, sample: int, rewards: list[float], end: str = "success") -> Trajectory:
    """Turns of two sampled tokens, with two given tokens before each."""
    made = Trajectory(Episode(task, 0, sample, 9, ""), end=end)
    for turn, reward in enumerate(rewards):
        made.append_given([5 + turn, 6])
        made.prompt_length = made.prompt_length or len(made.tokens)
        start, stop = made.append_sampled([10 + sample, 11], [-0.5, -1.0])
        made.turns.append(Turn(start, stop, "", "", "", reward, True, "stop"))
    made.reward = sum(rewards)
    return made


@pytest.fixture
def batch() -> list[Trajectory]:
    return [trajectory("a", 0, [0.0, 1.0]), trajectory("a", 1, [0.0, 0.0]), trajectory("b", 0, [0.25])]


def flat(pieces: list[torch.Tensor], rows: list[Row], owner: int) -> list[float]:
    return [float(v) for piece, row in zip(pieces, rows, strict=True) for v in piece[row.owners == owner]]


def test_each_is_compared_with_the_mean_of_the_others() -> None:
    result = group_advantages([1.0, 0.0, 0.5, 0.0], ["g"] * 4, [True, True, True, False], leave_one_out=True)
    assert result.values == pytest.approx([0.75, -0.75, 0.0, 0.0])
    assert result.trained == [True, True, True, False]


def test_the_reward_of_a_turn_stands_at_its_last_token(batch: list[Trajectory]) -> None:
    assert token_rewards(batch[0]).tolist() == [0.0, 0.0, 0.0, 1.0]
    assert token_rewards(batch[2]).tolist() == [0.0, 0.25]
    assert returns_to_go(torch.tensor([1.0, 0.0, 2.0])).tolist() == [3.0, 2.0, 2.0]


def test_generalised_advantages_by_hand() -> None:
    rewards, values = torch.tensor([0.0, 1.0]), torch.tensor([0.5, 0.2])
    advantages, targets = generalised_advantages(rewards, values, discount=0.9, trace=0.5)
    # delta_1 = 1 - 0.2 = 0.8; delta_0 = 0.9 * 0.2 - 0.5 = -0.32; A_0 = -0.32 + 0.9 * 0.5 * 0.8 = 0.04
    assert advantages.tolist() == pytest.approx([0.04, 0.8])
    assert targets.tolist() == pytest.approx([0.54, 1.0])
    # Lambda 1 and no discount: what is to come minus the estimate.
    advantages, targets = generalised_advantages(rewards, values, discount=1.0, trace=1.0)
    assert advantages.tolist() == pytest.approx([0.5, 0.8])
    assert targets.tolist() == pytest.approx([1.0, 1.0])


def test_whitening_is_over_all_tokens_together() -> None:
    pieces = whitened([torch.tensor([1.0, 1.0, 1.0]), torch.tensor([5.0])])
    assert torch.cat(pieces).mean().item() == pytest.approx(0.0, abs=1e-6)
    assert pieces[1].item() == pytest.approx(3 / math.sqrt(3))
    assert [p.tolist() for p in whitened([torch.tensor([2.0, 2.0])])] == [[0.0, 0.0]]
    assert whitened([]) == []


def test_whitening_leaves_nothing_of_equal_values_that_cannot_be_told_exactly() -> None:
    (piece,) = whitened([torch.full((1000,), 0.1)])
    assert piece.abs().max().item() < 1e-6


@pytest.mark.parametrize("name", ["reinforce++", "ppo"])
def test_algorithms_without_groups_take_a_single_sample_of_a_task(name: str) -> None:
    plain = {"rollout": {"samples_per_task": 1}, "algorithm": {"name": name}}
    check_config(from_dict(plain))
    with pytest.raises(ConfigError, match="RLOO compares"):
        check_config(from_dict({**plain, "algorithm": {"name": "rloo"}}))


@pytest.mark.parametrize("budget", [1, 1000])
def test_reinforce_plus_plus_by_hand(batch: list[Trajectory], budget: int) -> None:
    algorithm = AlgorithmConfig(name="reinforce++", kl_coef=0.1)
    rows = pack(batch, budget)
    # The reference finds every token one nat less likely than the engine did: each costs 0.1.
    reference = [row.logprobs - 1.0 for row in rows]
    pieces, targets = token_advantages(batch, [0.0] * 3, rows, reference, None, algorithm)
    raw = [[0.6, 0.7, 0.8, 0.9], [-0.4, -0.3, -0.2, -0.1], [0.05, 0.15]]
    together = torch.tensor([value for values in raw for value in values])
    mean, std = together.mean(), together.std(unbiased=False)
    for owner, values in enumerate(raw):
        assert flat(pieces, rows, owner) == pytest.approx([float((v - mean) / std) for v in values], abs=1e-5)
    assert targets == []


@pytest.mark.parametrize("name", ["grpo", "rloo"])
def test_group_relative_algorithms_give_every_token_of_a_trajectory_the_same(
    batch: list[Trajectory], name: str
) -> None:
    algorithm = AlgorithmConfig(name=name)  # type: ignore[arg-type]
    chosen = choose(batch, algorithm)
    assert chosen.trained == [True, True, False]  # a group of one has nothing to be compared with
    rows = pack(batch[:2], 1000)
    pieces, _ = token_advantages(batch[:2], chosen.values[:2], rows, None, None, algorithm)
    expected = 1.0 if name == "rloo" else 0.5 / math.sqrt(0.5)
    assert flat(pieces, rows, 0) == pytest.approx([expected] * 4)
    assert flat(pieces, rows, 1) == pytest.approx([-expected] * 4)


@pytest.mark.parametrize("name", ["reinforce++", "ppo"])
def test_algorithms_without_groups_train_on_all_but_errors(batch: list[Trajectory], name: str) -> None:
    broken = trajectory("b", 1, [9.0], end="error")
    chosen = choose([*batch, broken], AlgorithmConfig(name=name))  # type: ignore[arg-type]
    assert chosen.trained == [True, True, True, False]


def test_the_critic_does_not_depend_on_packing_and_learns(model: PreTrainedModel, batch: list[Trajectory]) -> None:
    torch.manual_seed(0)
    critic = Critic(model)
    assert all(float(v.abs().max()) == 0.0 for v in estimates(critic, model, pack(batch, 1000), "float32"))
    torch.nn.init.normal_(critic.head.weight)
    one, many = pack(batch, 1000), pack(batch, 1)
    assert (len(one), len(many)) == (1, 3)
    values = {len(rows): estimates(critic, model, rows, "float32") for rows in (one, many)}
    for owner in range(3):
        assert flat(values[1], one, owner) == pytest.approx(flat(values[3], many, owner), abs=1e-5)

    critic = Critic(model)
    algorithm = AlgorithmConfig(name="ppo", trace=1.0)
    optimiser = make_optimiser(critic, FLOAT32)
    first: dict[str, float] = {}
    for _ in range(150):
        now = estimates(critic, model, one, "float32")
        _, targets = token_advantages(batch, [0.0] * 3, one, None, now, algorithm)
        metrics = update_critic(critic, model, optimiser, one, targets, 3e-3, FLOAT32, lambda: None)
        first = first or metrics
    # The same tokens come before the first reply of all three, and before more of it in two: 0.61 is the most.
    assert 0.62 > metrics["critic/explained"] > 0.58 > first["critic/explained"]
    # With lambda 1 the targets are the rewards to come: 1 for the first trajectory, 0 for the second.
    now = estimates(critic, model, one, "float32")
    assert flat(now, one, 0)[-1] == pytest.approx(1.0, abs=0.2)
    assert flat(now, one, 1)[-1] == pytest.approx(0.0, abs=0.2)
    assert flat(now, one, 0)[0] == pytest.approx(1.25 / 3, abs=0.2)


def test_an_estimate_sees_nothing_of_what_comes_later(model: PreTrainedModel) -> None:
    critic = Critic(model)
    torch.nn.init.normal_(critic.head.weight)
    short, long = trajectory("a", 0, [0.0]), trajectory("a", 0, [0.0, 1.0])
    (alone,) = estimates(critic, model, pack([short], 1000), "float32")
    (longer,) = estimates(critic, model, pack([long], 1000), "float32")
    assert longer[: len(alone)].tolist() == pytest.approx(alone.tolist(), abs=1e-5)

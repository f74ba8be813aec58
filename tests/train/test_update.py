"""Gradient steps on real batches of the tiny model."""

import copy
import math
from collections.abc import Callable

import pytest
import torch
from transformers import PreTrainedModel

from agentgym_train.chat import Chat
from agentgym_train.config import AlgorithmConfig, OptimiserConfig
from agentgym_train.engines import Request
from agentgym_train.engines.hf import HFEngine
from agentgym_train.packing import pack
from agentgym_train.trajectory import Episode, Trajectory
from agentgym_train.update import (
    NumericsError,
    learning_rate,
    make_optimiser,
    reference_logprobs,
    update_policy,
    update_supervised,
)

FLOAT32 = OptimiserConfig(lr=1e-3, precision="float32")
TEMPERATURE = 0.7
ADVANTAGES = [1.0, -0.5, 2.0, -1.5, 0.25, -0.25]


class Stop(Exception):
    pass


@pytest.fixture
def batch(engine: HFEngine, chat: Chat) -> list[Trajectory]:
    """Two groups of three, sampled by the engine over two turns."""
    trajectories = []
    for prompt in ("write e", "xyz: write t t t t"):
        for sample in range(3):
            trajectory = Trajectory(Episode(prompt, 0, sample, 2, ""))
            trajectory.append_given(chat.prompt("Reply.", prompt))
            trajectory.prompt_length = len(trajectory.tokens)
            trajectories.append(trajectory)
    for turn in range(2):
        requests = [Request(f"{i}", t.tokens, 8, f"{turn}/{i}") for i, t in enumerate(trajectories)]
        for trajectory, reply in zip(trajectories, engine.generate(requests, TEMPERATURE), strict=True):
            trajectory.append_sampled(reply.tokens, reply.logprobs)
            trajectory.append_given(chat.after_reply("1 of 10", ended=reply.finish == "stop"))
    return trajectories


def weights_of(model: PreTrainedModel) -> list[torch.Tensor]:
    return [parameter.detach().clone() for parameter in model.parameters()]


def move(model: PreTrainedModel, size: float) -> None:
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(size * torch.randn(parameter.shape, generator=generator))


def same(one: list[torch.Tensor], two: list[torch.Tensor]) -> bool:
    return all(torch.equal(a, b) for a, b in zip(one, two, strict=True))


def update(
    model: PreTrainedModel,
    batch: list[Trajectory],
    algorithm: AlgorithmConfig,
    *,
    reference: PreTrainedModel | None = None,
    budget: int = 100_000,
    config: OptimiserConfig = FLOAT32,
    lr: float = 1e-3,
    check: Callable[[], None] = lambda: None,
) -> dict[str, float]:
    rows = pack(batch, budget)
    return update_policy(
        model,
        make_optimiser(model, config),
        rows,
        [torch.tensor(ADVANTAGES)[row.owners] for row in rows],
        [trajectory.sampled for trajectory in batch],
        None if reference is None else reference_logprobs(reference, rows, TEMPERATURE, "float32", check),
        TEMPERATURE,
        lr,
        algorithm,
        config,
        check,
    )


def test_the_first_pass_starts_at_the_policy_that_sampled(model: PreTrainedModel, batch: list[Trajectory]) -> None:
    metrics = update(model, batch, AlgorithmConfig(), reference=copy.deepcopy(model))
    assert metrics["ratio"] == pytest.approx(1.0, abs=1e-6)
    assert metrics["clip_fraction"] == 0.0
    assert metrics["engine_difference"] < 1e-4  # the engine's values are those at the sampling temperature
    assert metrics["importance"] == pytest.approx(1.0, abs=1e-4)
    assert metrics["kl"] == pytest.approx(0.0, abs=1e-9)
    lengths = [trajectory.sampled for trajectory in batch]
    mean = sum(a * n for a, n in zip(ADVANTAGES, lengths, strict=True)) / sum(lengths)
    assert metrics["loss"] == pytest.approx(-mean, abs=1e-4)
    assert 0 < metrics["entropy"] < math.log(512)


@pytest.mark.parametrize("aggregation", ["token", "sequence"])
def test_the_step_does_not_depend_on_how_the_batch_is_split(
    model: PreTrainedModel, batch: list[Trajectory], aggregation: str
) -> None:
    algorithm = AlgorithmConfig(aggregation=aggregation)  # type: ignore[arg-type]
    twin, reference = copy.deepcopy(model), copy.deepcopy(model)
    move(reference, 0.02)  # so that the divergence is not 0
    one = update(model, batch, algorithm, reference=reference)
    two = update(twin, batch, algorithm, reference=reference, budget=1)
    assert one["kl"] > 1e-4
    assert one == pytest.approx(two, rel=1e-4, abs=1e-6)
    for mine, other in zip(model.parameters(), twin.parameters(), strict=True):
        # the two gradients differ by rounding; the optimiser's first step is lr * g / (|g| + 1e-8)
        torch.testing.assert_close(mine.grad, other.grad, atol=1e-6, rtol=1e-3)


def test_aggregations_weight_long_trajectories_differently(model: PreTrainedModel, batch: list[Trajectory]) -> None:
    lengths = [trajectory.sampled for trajectory in batch]
    assert len(set(lengths)) > 1
    by_token = update(copy.deepcopy(model), batch, AlgorithmConfig(aggregation="token"))["loss"]
    by_sequence = update(model, batch, AlgorithmConfig(aggregation="sequence"))["loss"]
    assert by_sequence == pytest.approx(-sum(ADVANTAGES) / 6, abs=1e-4)
    assert abs(by_token - by_sequence) > 1e-2


def test_more_passes_move_the_ratio(model: PreTrainedModel, batch: list[Trajectory]) -> None:
    metrics = update(model, batch, AlgorithmConfig(epochs=3, clip_low=0.01, clip_high=0.01), lr=1e-2)
    assert metrics["clip_fraction"] > 0.1
    assert abs(metrics["ratio"] - 1) > 1e-3


def test_a_step_raises_what_was_better_and_lowers_what_was_worse(
    model: PreTrainedModel, batch: list[Trajectory]
) -> None:
    rows = pack(batch, 100_000)
    before = reference_logprobs(model, rows, TEMPERATURE, "float32", lambda: None)[0]
    update(model, batch, AlgorithmConfig(kl_coef=0.0), lr=1e-3)
    after = reference_logprobs(model, rows, TEMPERATURE, "float32", lambda: None)[0]
    change = torch.zeros(6).index_add(0, rows[0].owners, after - before)
    assert float((change * torch.tensor(ADVANTAGES)).sum()) > 0
    assert change[2] > 0 > change[3]  # the largest advantages on either side


def test_the_divergence_pulls_back_to_the_reference(model: PreTrainedModel, batch: list[Trajectory]) -> None:
    reference = copy.deepcopy(model)
    move(model, 0.02)
    divergences = [
        update(model, batch, AlgorithmConfig(kl_coef=100.0), reference=reference, lr=5e-4)["kl"] for _ in range(8)
    ]
    assert 0 < divergences[-1] < divergences[0] / 2


def test_the_gradient_is_clipped_and_its_norm_reported(model: PreTrainedModel, batch: list[Trajectory]) -> None:
    config = OptimiserConfig(lr=1e-3, precision="float32", max_grad_norm=1e-3)
    free = update(copy.deepcopy(model), batch, AlgorithmConfig())["grad_norm"]
    norm = update(model, batch, AlgorithmConfig(), config=config)["grad_norm"]
    assert norm == pytest.approx(free)
    assert norm > 1e-2
    squares = sum(float(p.grad.square().sum()) for p in model.parameters() if p.grad is not None)
    assert math.sqrt(squares) == pytest.approx(1e-3, rel=1e-2)


def test_mixed_precision_stays_close(model: PreTrainedModel, batch: list[Trajectory]) -> None:
    exact = update(copy.deepcopy(model), batch, AlgorithmConfig())
    mixed = update(model, batch, AlgorithmConfig(), config=OptimiserConfig(precision="bfloat16"))
    assert mixed["loss"] == pytest.approx(exact["loss"], abs=2e-2)
    assert mixed["grad_norm"] == pytest.approx(exact["grad_norm"], rel=0.1)
    assert 0 < mixed["engine_difference"] < 0.05
    assert {parameter.dtype for parameter in model.parameters()} == {torch.float32}


def test_a_step_that_is_stopped_leaves_no_trace(model: PreTrainedModel, batch: list[Trajectory]) -> None:
    before, calls = weights_of(model), iter(range(100))

    def check() -> None:
        if next(calls) == 3:
            raise Stop

    with pytest.raises(Stop):
        update(model, batch, AlgorithmConfig(epochs=2), budget=1, check=check)
    assert same(weights_of(model), before)


def test_a_step_whose_first_pass_is_done_is_not_stopped(model: PreTrainedModel, batch: list[Trajectory]) -> None:
    calls = iter(range(100))

    def check() -> None:
        if next(calls) == len(batch):
            raise Stop

    update(model, batch, AlgorithmConfig(epochs=2), budget=1, check=check)  # else half a step would be kept


@pytest.mark.parametrize(("where", "problem"), [("engine", "the loss is nan"), ("weights", "the loss is nan")])
def test_numbers_that_are_not_finite_stop_the_step(
    model: PreTrainedModel, batch: list[Trajectory], where: str, problem: str
) -> None:
    if where == "engine":
        batch[2].logprobs[batch[2].prompt_length] = math.nan
    else:
        with torch.no_grad():
            next(iter(model.parameters())).fill_(math.nan)
    before = weights_of(model)
    with pytest.raises(NumericsError, match=problem):
        update(model, batch, AlgorithmConfig())
    if where == "engine":
        assert same(weights_of(model), before)
    with pytest.raises(NumericsError, match=problem):
        update(model, batch, AlgorithmConfig(epochs=2), budget=1)


def test_a_gradient_that_is_not_finite_stops_the_step(model: PreTrainedModel, batch: list[Trajectory]) -> None:
    before = weights_of(model)
    parameter = next(iter(model.parameters()))
    parameter.register_hook(lambda gradient: gradient * math.inf)
    with pytest.raises(NumericsError, match=r"the gradient's norm is (inf|nan)"):
        update(model, batch, AlgorithmConfig())
    assert same(weights_of(model), before)


def test_supervised_steps_minimise_the_mean_over_trained_tokens(
    model: PreTrainedModel, batch: list[Trajectory]
) -> None:
    tokens = sum(trajectory.sampled for trajectory in batch)
    expected = 0.0
    for trajectory in batch:
        with torch.no_grad():
            logits = model(input_ids=torch.tensor([trajectory.tokens])).logits[0, :-1]
        labels = torch.where(torch.tensor(trajectory.mask[1:]) > 0, torch.tensor(trajectory.tokens[1:]), -100)
        expected += float(torch.nn.functional.cross_entropy(logits, labels, reduction="sum")) / tokens
    optimiser = make_optimiser(model, FLOAT32)
    losses = []
    for budget in (1, 100, 100_000):
        metrics = update_supervised(model, optimiser, pack(batch, budget), 3e-3, FLOAT32, lambda: None)
        assert metrics["tokens"] == tokens
        losses.append(metrics["loss"])
    assert losses[0] == pytest.approx(expected, rel=1e-5)
    assert losses[2] < losses[1] < losses[0]


def test_the_learning_rate_warms_up_linearly() -> None:
    assert [learning_rate(step, 8.0, 4) for step in range(6)] == [2.0, 4.0, 6.0, 8.0, 8.0, 8.0]
    assert learning_rate(0, 8.0, 0) == 8.0


def test_the_optimiser_takes_its_settings(model: PreTrainedModel, batch: list[Trajectory]) -> None:
    config = OptimiserConfig(lr=1.0, betas=(0.5, 0.6), weight_decay=0.1, precision="float32")
    (group,) = make_optimiser(model, config).param_groups
    assert (group["betas"], group["weight_decay"]) == ((0.5, 0.6), 0.1)
    before = weights_of(model)
    update(model, batch, AlgorithmConfig(), config=OptimiserConfig(precision="float32"), lr=1e-4)
    largest = max(float((a - b).abs().max()) for a, b in zip(weights_of(model), before, strict=True))
    assert largest == pytest.approx(1e-4, rel=0.05)  # AdamW's first step is lr in every entry with a gradient


def test_an_engine_that_differs_too_much_stops_the_step(model: PreTrainedModel, batch: list[Trajectory]) -> None:
    for trajectory in batch:  # as an engine would tell them that ignores the temperature
        trajectory.logprobs = [0.5 * value for value in trajectory.logprobs]
    before, rows = weights_of(model), pack(batch, 100_000)

    def take_step(tolerance: float) -> dict[str, float]:
        return update_policy(
            model,
            make_optimiser(model, FLOAT32),
            rows,
            [torch.tensor(ADVANTAGES)[row.owners] for row in rows],
            [trajectory.sampled for trajectory in batch],
            None,
            TEMPERATURE,
            1e-3,
            AlgorithmConfig(epochs=2),
            FLOAT32,
            lambda: None,
            engine_tolerance=tolerance,
        )

    with pytest.raises(NumericsError, match=r"differ from the trainer's by \d\.\d+ nats a token .*tolerance=0.1"):
        take_step(0.1)
    assert same(weights_of(model), before)
    assert 0.1 < take_step(10.0)["engine_difference"] < 10.0
    assert not same(weights_of(model), before)

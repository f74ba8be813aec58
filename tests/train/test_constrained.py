"""Replies chosen from lists: the engine's distribution, the trainer's, and learning from random weights."""

import math
from functools import partial
from pathlib import Path
from typing import Any, cast

import gymnasium
import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedModel, PreTrainedTokenizerBase

from agentgym_envs import TextEnv
from agentgym_train.agents import PlanThenAct, ReAct
from agentgym_train.chat import Chat
from agentgym_train.config import AlgorithmConfig, ConfigError, OptimiserConfig, from_dict
from agentgym_train.engines import Completion, EngineError, Request, refuse_choices
from agentgym_train.engines.hf import HFEngine
from agentgym_train.estimators import choose, token_advantages
from agentgym_train.logprobs import token_logprobs
from agentgym_train.loop import train
from agentgym_train.models import load_model
from agentgym_train.packing import pack
from agentgym_train.rollout import RolloutRunner
from agentgym_train.trajectory import Episode, Trajectory
from agentgym_train.update import make_optimiser, reference_logprobs, update_policy
from agentgym_wrappers import ActionParser, HorizonCurriculum, ListedActions, SubprocVectorEnv, restore, snapshot
from tests.train.letters_env import LETTERS_ID
from tests.train.listing_env import ListingEnv
from tests.train.rollouts import RecordingEngine, Run, assert_token_exact

ACTIONS = ["get 1 oak log", "get 1 oak planks", "get 12 stick", "inventory", "see tree"]
FLOAT32 = OptimiserConfig(lr=4e-3, precision="float32", token_budget=4096)


def plain_logprobs(model: PreTrainedModel, context: list[int], reply: Completion, temperature: float) -> list[float]:
    """Log-probability of each token among those that were allowed, from a forward over the whole sequence."""
    with torch.no_grad():
        logits = model(input_ids=torch.tensor([[*context, *reply.tokens]]), use_cache=False).logits[0].float()
    return [
        float((logits[len(context) + k - 1, list(allowed)] / temperature).log_softmax(0)[allowed.index(token)])
        for k, (token, allowed) in enumerate(zip(reply.tokens, reply.allowed, strict=True))
    ]


@pytest.mark.parametrize("temperature", [0.7, 1.0])
def test_replies_are_drawn_from_the_renormalised_distribution(engine: HFEngine, chat: Chat, temperature: float) -> None:
    count, context = 600, chat.prompt("Reply.", "write e")
    choices = [chat.reply(action) for action in ACTIONS]
    requests = [Request(str(i), context, 32, f"draw {i}", choices) for i in range(count)]
    replies = engine.generate(requests, temperature)
    expected: dict[tuple[int, ...], float] = {}
    for reply in replies:
        assert reply.finish == "stop"
        assert reply.tokens in choices
        for k, allowed in enumerate(reply.allowed):
            alike = {choice[k] for choice in choices if choice[:k] == reply.tokens[:k]}
            assert set(allowed) == alike
        if tuple(reply.tokens) not in expected:
            own = plain_logprobs(engine.model, context, reply, temperature)
            assert reply.logprobs == pytest.approx(own, abs=1e-4)
            expected[tuple(reply.tokens)] = math.exp(sum(own))
        # A token without an alternative is certain.
        certain = [logprob for logprob, allowed in zip(reply.logprobs, reply.allowed, strict=True) if len(allowed) == 1]
        assert set(certain) == {0.0}
    assert sum(expected.values()) == pytest.approx(1.0, abs=1e-3)
    for tokens, probability in expected.items():
        share = sum(tuple(reply.tokens) == tokens for reply in replies) / count
        assert abs(share - probability) < 4 * math.sqrt(probability * (1 - probability) / count) + 1e-9


def test_temperature_0_takes_the_most_probable_branch(engine: HFEngine, chat: Chat) -> None:
    context, choices = chat.prompt("Reply.", "write e"), [chat.reply(action) for action in ACTIONS]
    one, two = engine.generate([Request(name, context, 32, name, choices) for name in "ab"], 0.0)
    assert one == two
    for logprob, allowed in zip(one.logprobs, one.allowed, strict=True):
        assert logprob >= math.log(1 / len(allowed)) - 1e-6


def test_other_requests_of_the_same_call_are_free(engine: HFEngine, chat: Chat) -> None:
    context, choices = chat.prompt("Reply.", "write e"), [chat.reply(action) for action in ACTIONS]
    free = [Request(f"free {i}", context, 12, f"free {i}") for i in range(4)]
    bound = [Request(f"bound {i}", context, 32, f"bound {i}", choices) for i in range(4)]
    alone = [engine.generate([request], 1.0)[0] for request in [*free, *bound]]
    engine.release()
    together = engine.generate([request for pair in zip(free, bound, strict=True) for request in pair], 1.0)
    assert [reply.tokens for reply in [*together[::2], *together[1::2]]] == [reply.tokens for reply in alone]
    for reply in together[::2]:
        assert reply.allowed == []
    # What was certain was fed in one go; the next turn goes on from there.
    longer = [*context, *together[1].tokens, *chat.after_reply("ok", ended=True)]
    (after,) = engine.generate([Request("bound 0", longer, 32, "next", choices)], 1.0)
    assert after.logprobs == pytest.approx(plain_logprobs(engine.model, longer, after, 1.0), abs=1e-4)


def test_lists_that_cannot_be_sampled_from_are_errors(engine: HFEngine, chat: Chat) -> None:
    context = chat.prompt("Reply.", "write e")
    unended = chat.reply("no")[:-1]
    for choices, message in [
        ([], "the list of replies to choose from is empty"),
        ([chat.reply("a"), unended], r"does not hold one stop token, at its end"),
        ([[chat.end_of_turn, *chat.reply("a")]], r"does not hold one stop token, at its end"),
    ]:
        with pytest.raises(EngineError, match=message):
            engine.generate([Request("a", context, 8, "a", choices)], 1.0)
    refuse_choices([Request("a", context, 8, "a")], "vllm")
    with pytest.raises(
        EngineError, match=r"the engine vllm cannot choose .* \(agent.constrained=true\); the engine hf"
    ):
        refuse_choices([Request("a", context, 8, "a", [chat.reply("a")])], "vllm")


def rollouts(run_with: Run, engine: HFEngine, **options: Any) -> list[Trajectory]:
    episodes = [Episode(f"letters_{task}", 7 + task, sample, 3, "test") for task in (0, 1) for sample in range(4)]
    runner = run_with(engine, ListingEnv, constrained=True, **{"max_reply_tokens": 16, **options})
    return runner.run(episodes, 0.8)


def test_every_action_is_one_of_those_listed_then(recorder: RecordingEngine, run_with: Run) -> None:
    trajectories = rollouts(run_with, recorder)
    seen = set()
    for trajectory in trajectories:
        assert_token_exact(trajectory, recorder)
        letter = trajectory.goal[-1]
        before = [0, *(int(turn.observation.split()[0]) for turn in trajectory.turns)]
        for turn, count in zip(trajectory.turns, before, strict=False):
            listed = {letter * 10, "see tree"} | ({"see log", "no"} if count == 0 else set())
            assert turn.action in listed
            assert turn.action == turn.reply
            assert turn.valid
            seen.add(turn.action)
    assert len(seen) > 2


def test_plans_are_free_and_the_actions_after_them_are_not(recorder: RecordingEngine, run_with: Run) -> None:
    for trajectory in rollouts(run_with, recorder, agent=PlanThenAct(), last_turns=1):
        assert_token_exact(trajectory, recorder)
        plan, *actions = trajectory.turns
        assert set(trajectory.allowed[plan.start : plan.stop]) == {()}
        assert all(turn.valid for turn in actions)
        assert all(trajectory.allowed[k] for turn in actions for k in range(turn.start, turn.stop))


def test_actions_are_written_as_the_agent_writes_them(engine: HFEngine, run_with: Run) -> None:
    for trajectory in rollouts(run_with, engine, agent=ReAct(), formats=ReAct.formats, max_reply_tokens=24):
        assert all(turn.reply == f"Action: {turn.action}" and turn.valid for turn in trajectory.turns)


def test_an_action_that_is_too_long_says_so(engine: HFEngine, run_with: Run) -> None:
    for trajectory in rollouts(run_with, engine, max_reply_tokens=3):
        assert trajectory.end == "error"
        assert "more than rollout.max_reply_tokens=3; raise it" in trajectory.error


@pytest.mark.parametrize("budget", [1, 100_000])
def test_the_first_update_starts_at_the_distribution_that_was_sampled_from(
    engine: HFEngine, run_with: Run, model: PreTrainedModel, budget: int
) -> None:
    # Plans are free and actions are not: both kinds stand in the same rows.
    batch = rollouts(run_with, engine, agent=PlanThenAct())
    rows = pack(batch, budget)
    metrics = update_policy(
        model,
        make_optimiser(model, FLOAT32),
        rows,
        [torch.ones(len(row.owners)) for row in rows],
        [trajectory.sampled for trajectory in batch],
        reference_logprobs(model, rows, 0.8, "float32", lambda: None),
        0.8,
        1e-3,
        AlgorithmConfig(kl_coef=0.1),
        FLOAT32,
        lambda: None,
    )
    assert metrics["engine_difference"] < 1e-5
    assert metrics["ratio"] == pytest.approx(1.0, abs=1e-6)
    assert metrics["importance"] == pytest.approx(1.0, abs=1e-4)
    assert metrics["kl"] == pytest.approx(0.0, abs=1e-9)
    assert 0 < metrics["entropy"] < math.log(512)


def test_a_certain_token_has_no_gradient(model: PreTrainedModel, chat: Chat) -> None:
    made = Trajectory(Episode("a", 0, 0, 1, ""))
    made.append_given(chat.prompt("Reply.", "write e"))
    reply = chat.reply("see log")
    made.append_sampled(reply, [0.0] * len(reply), [(token,) for token in reply])
    (row,) = pack([made], 1000)
    logprobs, entropy = token_logprobs(model, row, 1.0)
    logprobs.sum().backward()
    assert logprobs.tolist() == [0.0] * len(reply)
    assert entropy.tolist() == pytest.approx([0.0] * len(reply), abs=1e-6)
    assert all(float(w.grad.abs().max()) == 0.0 for w in model.parameters() if w.grad is not None)


# ---- the lists ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["AgentGym/TextCraft-v0", "AgentGym/BabyAI-v0"])
def test_lists_come_with_every_observation(name: str) -> None:
    env = ListedActions(gymnasium.make(name))
    base = cast(TextEnv, env.unwrapped)
    _, info = env.reset(seed=3)
    ended, saved = False, b""
    while not ended:
        assert info["available_actions"].splitlines() == base.available_actions()
        saved, told = snapshot(env), info
        action = base.oracle_action()
        assert action in info["available_actions"].splitlines()
        _, _, terminated, truncated, info = env.step(cast(str, action))
        ended = terminated or truncated
    assert "available_actions" not in info
    other = ListedActions(gymnasium.make(name))
    _, restored = restore(other, saved)
    assert restored["available_actions"] == told["available_actions"]
    env.close()
    other.close()


def test_a_scenario_that_cannot_list_is_refused() -> None:
    env = gymnasium.make("AgentGym/DeepSearch-v0")
    with pytest.raises(ValueError, match="DeepSearch: the actions cannot be listed"):
        ListedActions(env)
    env.close()
    with pytest.raises(ValueError, match=r"ListedActions wraps agentgym_envs.TextEnv environments"):
        ListedActions(gymnasium.make("CartPole-v1"))


def test_a_run_on_a_scenario_that_cannot_list_is_refused_at_start(tiny_path: Path, tmp_path: Path) -> None:
    config = from_dict(
        {
            "run_dir": str(tmp_path / "run"),
            "env": {"id": f"tests.train.letters_env:{LETTERS_ID}"},
            "model": {"path": str(tiny_path), "device": "cpu"},
            "agent": {"constrained": True},
            "warm_start": {"kind": "none"},
            "evaluate": {"tasks": 1},
        }
    )
    with pytest.raises(ConfigError, match=r"agent.constrained=true: .*Letters: the actions cannot be listed"):
        train(config)


# ---- learning -----------------------------------------------------------------------------------------------------


def test_a_run_with_everything_at_once(tiny_path: Path, tmp_path: Path) -> None:
    config = from_dict(
        {
            "run_dir": str(tmp_path / "run"),
            "steps": 2,
            "horizon": 3,
            "env": {"id": "AgentGym/TextCraft-v0", "subsets": ["Depth1"]},
            "model": {"path": str(tiny_path), "device": "cpu"},
            "agent": {"name": "plan-then-act", "last_turns": 1, "constrained": True},
            "warm_start": {"tasks": 2, "batch_size": 1},
            "rollout": {
                "tasks_per_step": 2,
                "samples_per_task": 4,
                "max_reply_tokens": 48,
                "precision": "float32",
                "deterministic": True,
            },
            "algorithm": {"name": "ppo"},
            "optimiser": {"precision": "float32"},
            "evaluate": {"tasks": 2, "samples": 2, "horizon": 3},
        }
    )
    summary = train(config)
    assert summary["status"] == "finished"
    assert 0 <= summary["after"] <= 1


def test_a_model_with_random_weights_learns_from_reward_alone(
    tokenizer: PreTrainedTokenizerBase, tmp_path: Path
) -> None:
    """TextCraft on four goals: between two and seven actions to choose from at each turn."""
    torch.manual_seed(0)
    shape = LlamaConfig(
        vocab_size=len(tokenizer),
        hidden_size=64,
        intermediate_size=128,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=4096,
    )
    LlamaForCausalLM(shape).save_pretrained(tmp_path)
    model, chat = load_model(str(tmp_path)), Chat(tokenizer)
    engine = HFEngine(load_model(str(tmp_path)), chat.stop_tokens)
    tasks = [f"textcraft_{index}" for index in (56, 65, 8, 12)]
    vec = SubprocVectorEnv.make(
        "AgentGym/TextCraft-v0",
        32,
        env_wrappers=[ListedActions, ActionParser, partial(HorizonCurriculum, schedule=3)],
        workers=1,
        autoreset_mode="Disabled",
    )
    algorithm = AlgorithmConfig(kl_coef=0.0)
    optimiser = make_optimiser(model, FLOAT32)
    success = []
    try:
        runner = RolloutRunner(
            vec, engine, chat, max_reply_tokens=64, max_context=2000, constrained=True, deterministic=True
        )
        for step in range(14):
            episodes = [Episode(task, 7, sample, 3, f"scratch/{step}") for task in tasks for sample in range(8)]
            trajectories = runner.run(episodes, 1.0)
            assert all(turn.valid for trajectory in trajectories for turn in trajectory.turns)
            success.append(sum(trajectory.success for trajectory in trajectories) / 32)
            chosen = choose(trajectories, algorithm)
            batch = [trajectory for trajectory, kept in zip(trajectories, chosen.trained, strict=True) if kept]
            own = [value for value, kept in zip(chosen.values, chosen.trained, strict=True) if kept]
            rows = pack(batch, FLOAT32.token_budget)
            advantages, _ = token_advantages(batch, own, rows, None, None, algorithm)
            metrics = update_policy(
                model,
                optimiser,
                rows,
                advantages,
                [trajectory.sampled for trajectory in batch],
                None,
                1.0,
                FLOAT32.lr,
                algorithm,
                FLOAT32,
                lambda: None,
            )
            assert metrics["engine_difference"] < 1e-5
            engine.update_weights(model)
    finally:
        vec.close()
    assert sum(success[:2]) / 2 < 0.45
    assert sum(success[-3:]) / 3 > 0.75

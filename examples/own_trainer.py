"""A training loop of your own: your reward and your advantage, on the parts of the trainer.

python examples/own_trainer.py --model smollm2-135m-instruct --steps 2 --turns 4

What is here in one screen is what `agentgym train` does, less checkpoints, evaluation, curriculum and logs.
"""

from __future__ import annotations

import argparse
import random
from functools import partial

import torch

from agentgym_train.advantages import group_advantages
from agentgym_train.chat import Chat
from agentgym_train.config import AlgorithmConfig, OptimiserConfig
from agentgym_train.engines.hf import HFEngine, copy_for_sampling
from agentgym_train.models import load_model, load_tokenizer, stop_tokens
from agentgym_train.packing import pack
from agentgym_train.rollout import RolloutRunner
from agentgym_train.trajectory import Episode, Trajectory
from agentgym_train.update import make_optimiser, update_policy
from agentgym_wrappers import ActionParser, FixedHorizon, HorizonCurriculum, SubprocVectorEnv


def reward(trajectory: Trajectory) -> float:
    """What is reinforced: the environment's reward, a little less for each character of a reply."""
    return trajectory.reward - 0.001 * sum(len(turn.reply) for turn in trajectory.turns)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="smollm2-135m-instruct", help="folder or id of a causal language model")
    parser.add_argument("--env", default="AgentGym/TextCraft-Depth1-v0", help="id of any of the environments")
    parser.add_argument("--steps", type=int, default=2)
    parser.add_argument("--groups", type=int, default=2, help="tasks of a step")
    parser.add_argument("--samples", type=int, default=4, help="episodes of each task")
    parser.add_argument("--turns", type=int, default=4, help="horizon")
    parser.add_argument("--out", help="folder for the trained model")
    arguments = parser.parse_args()

    vec = SubprocVectorEnv.make(
        arguments.env,
        num_envs=arguments.groups * arguments.samples,
        split="train",
        env_wrappers=[ActionParser, partial(HorizonCurriculum, schedule=FixedHorizon(arguments.turns))],
        autoreset_mode="Disabled",
    )
    tasks = [task.id for task in vec.get_attr("tasks")[0]]
    model, tokenizer = load_model(arguments.model), load_tokenizer(arguments.model)
    chat = Chat(tokenizer, stop_tokens(model))
    engine = HFEngine(copy_for_sampling(model, "bfloat16"), chat.stop_tokens)
    runner = RolloutRunner(vec, engine, chat, max_reply_tokens=32, max_context=2048)
    algorithm, settings = AlgorithmConfig(kl_coef=0.0), OptimiserConfig(lr=1e-6)
    optimiser = make_optimiser(model, settings)

    for step in range(arguments.steps):
        chosen = random.Random(step).sample(tasks, arguments.groups)
        members = [(task, sample) for task in chosen for sample in range(arguments.samples)]
        played = runner.run([Episode(task, step, sample, arguments.turns, "own") for task, sample in members], 1.0)

        sound = [trajectory.end != "error" for trajectory in played]
        groups = group_advantages([reward(one) for one in played], [one.group for one in played], sound)
        batch = [one for one, kept in zip(played, groups.trained, strict=True) if kept]
        values = torch.tensor([value for value, kept in zip(groups.values, groups.trained, strict=True) if kept])
        told = "no group whose rewards differ"
        if batch:
            rows = pack(batch, settings.token_budget)
            advantages = [values[row.owners] for row in rows]  # one for each sampled token
            lengths = [one.sampled for one in batch]
            numbers = update_policy(
                model,
                optimiser,
                rows,
                advantages,
                lengths,
                reference=None,
                temperature=1.0,
                lr=settings.lr,
                algorithm=algorithm,
                optimiser_config=settings,
                check=lambda: None,
            )
            engine.update_weights(model)
            told = f"{sum(lengths)} tokens, entropy {numbers['entropy']:.3f}, gradient {numbers['grad_norm']:.3f}"
        success = sum(one.success for one in played) / len(played)
        print(f"step {step + 1}: success {success:.2f}, {told}", flush=True)

    vec.close()
    if arguments.out:
        model.save_pretrained(arguments.out)
        tokenizer.save_pretrained(arguments.out)


if __name__ == "__main__":
    main()

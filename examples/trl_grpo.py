"""Train with TRL's own SFTTrainer and GRPOTrainer on TextCraft, token for token.

python examples/trl_grpo.py --demonstrations 40 --steps 8            # SmolLM2-135M on the CPU (`make demo-model`)

The episodes are rolled out by this suite's `RolloutRunner`, so what TRL trains on are the very tokens that were
sampled, and none that the environment wrote. TRL does the rest: advantages, loss, optimiser, logging.
"""

from __future__ import annotations

import argparse
import json
import os
from collections import Counter
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from agentgym_wrappers.requirements import need

need("trl", trl=(1, 16), datasets=(4, 7))
os.environ.setdefault("TRL_EXPERIMENTAL_SILENCE", "1")  # rollout_func is experimental, and says so each time

import gymnasium
import torch
from datasets import Dataset
from transformers import TrainerCallback
from trl import GRPOConfig, GRPOTrainer, SFTConfig, SFTTrainer

from agentgym_train.chat import Chat
from agentgym_train.demonstrations import oracle_trajectories
from agentgym_train.engines.hf import HFEngine
from agentgym_train.models import load_model, load_tokenizer, stop_tokens
from agentgym_train.rollout import RolloutRunner
from agentgym_train.trajectory import Episode, Trajectory
from agentgym_wrappers import ActionParser, FixedHorizon, HorizonCurriculum, SubprocVectorEnv

ENV_ID = "AgentGym/TextCraft-Depth1-v0"
WITHOUT_FILES = {"save_strategy": "no", "report_to": [], "use_cpu": not torch.cuda.is_available(), "bf16": False}


def make_rollout_func(runner: RolloutRunner, engine: HFEngine, turns: int) -> Callable[..., dict[str, Any]]:
    """What `GRPOTrainer(rollout_func=...)` takes. A prompt of its dataset is a task id."""

    def rollout_func(prompts: list[str], trainer: GRPOTrainer) -> dict[str, Any]:
        engine.update_weights(trainer.accelerator.unwrap_model(trainer.model))
        step = trainer.state.global_step
        samples: Counter[str] = Counter()
        episodes = []
        for task in prompts:  # TRL has repeated each as often as its group has members
            episodes.append(Episode(task, step, samples[task], turns, f"{trainer.args.seed}/{step}"))
            samples[task] += 1
        return columns(runner.run(episodes, temperature=trainer.temperature))

    return rollout_func


def columns(trajectories: list[Trajectory]) -> dict[str, Any]:
    """Trajectories as TRL wants them. A failed one has no reward: TRL leaves it out of the group's statistics."""
    for trajectory in trajectories:
        if not trajectory.turns:
            raise RuntimeError(f"{trajectory.episode.task} ended before the first reply: {trajectory.error}")
    starts = [trajectory.prompt_length for trajectory in trajectories]
    each = list(zip(trajectories, starts, strict=True))
    return {
        "prompt_ids": [trajectory.tokens[:start] for trajectory, start in each],
        "completion_ids": [trajectory.tokens[start:] for trajectory, start in each],
        "logprobs": [trajectory.logprobs[start:] for trajectory, start in each],
        "env_mask": [trajectory.mask[start:] for trajectory, start in each],
        "score": [None if trajectory.error else trajectory.reward for trajectory in trajectories],
        "success": [trajectory.success for trajectory in trajectories],
    }


def score(score: list[float | None], success: list[bool], log_metric: Callable[..., None], **_: Any) -> Any:
    """A reward function: TRL gives it the columns that the rollout added."""
    log_metric("success", sum(success) / len(success))
    return score


class Log(TrainerCallback):
    """Adds what TRL logs to a JSON lines file."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def on_log(self, args, state, control, logs=None, **kwargs) -> None:
        self.add({"step": state.global_step, **(logs or {})})

    def add(self, row: dict[str, Any]) -> None:
        with self.path.open("a") as file:
            file.write(json.dumps(row) + "\n")


def held_out_success(runner: RolloutRunner, goals: list[str], turns: int, samples: int) -> dict[str, Any]:
    """Success on goals of the test split: the same episodes with the same sampling seeds at each call."""
    episodes = [Episode(goal, 0, sample, turns, "evaluation") for goal in goals for sample in range(samples)]
    played = runner.run(episodes, temperature=1.0)
    return {"episodes": len(played), "held_out_success": sum(each.success for each in played) / len(played)}


def warm_start(model, tokenizer, chat: Chat, tasks: list[str], folder: Path, log: Log) -> None:
    """One pass of TRL's SFTTrainer over oracle episodes; a small model makes no valid command without it."""
    env = HorizonCurriculum(ActionParser(gymnasium.make(ENV_ID)), FixedHorizon(100))
    shown = oracle_trajectories(env, chat, tasks, list(range(len(tasks))))
    env.close()
    rows = [
        {
            "input_ids": trajectory.tokens,
            "labels": [token if mask else -100 for token, mask in zip(trajectory.tokens, trajectory.mask, strict=True)],
        }
        for trajectory in shown
    ]
    settings = SFTConfig(
        str(folder), num_train_epochs=1, per_device_train_batch_size=4, learning_rate=5e-5, logging_steps=1,
        max_length=None, gradient_checkpointing=False, **WITHOUT_FILES,
    )  # fmt: skip
    SFTTrainer(
        model, settings, train_dataset=Dataset.from_list(rows), processing_class=tokenizer, callbacks=[log]
    ).train()


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="smollm2-135m-instruct", help="folder or id of a causal language model")
    parser.add_argument("--demonstrations", type=int, default=40, help="oracle episodes of the warm start; 0: none")
    parser.add_argument("--steps", type=int, default=8)
    parser.add_argument("--groups", type=int, default=4, help="tasks a step")
    parser.add_argument("--generations", type=int, default=8, help="episodes of a group")
    parser.add_argument("--turns", type=int, default=4)
    parser.add_argument("--evaluate", type=int, default=2, help="episodes of each goal of the test split; 0: none")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--folder", type=Path, default=Path("runs/trl"), help="for the log and the trained model")
    options = parser.parse_args(arguments)

    options.folder.mkdir(parents=True, exist_ok=True)
    log = Log(options.folder / "log.jsonl")
    log.path.unlink(missing_ok=True)
    torch.manual_seed(options.seed)
    model, tokenizer = load_model(options.model), load_tokenizer(options.model)
    chat = Chat(tokenizer, stop_tokens(model))
    curriculum = partial(HorizonCurriculum, schedule=FixedHorizon(options.turns))
    vec = SubprocVectorEnv.make(
        ENV_ID, options.groups * options.generations, env_wrappers=[ActionParser, curriculum], autoreset_mode="Disabled"
    )
    try:
        tasks = [task.id for task in vec.get_attr("tasks")[0]]  # of the training split
        with gymnasium.make(ENV_ID, split="test") as env:
            held_out = [task.id for task in env.get_wrapper_attr("tasks")]
        shown, unseen = tasks[: options.demonstrations], tasks[options.demonstrations :]
        if shown:
            warm_start(model, tokenizer, chat, shown, options.folder, log)
        engine = HFEngine(load_model(options.model), chat.stop_tokens)  # gets the trained weights at each step
        engine.update_weights(model)
        runner = RolloutRunner(vec, engine, chat, max_reply_tokens=32, max_context=2048)
        evaluate = partial(held_out_success, runner, held_out, options.turns, options.evaluate)
        if options.evaluate:
            log.add({"when": "before", **evaluate()})
        settings = GRPOConfig(
            str(options.folder), max_steps=options.steps, num_generations=options.generations,
            per_device_train_batch_size=options.generations, gradient_accumulation_steps=options.groups,
            learning_rate=2e-5, lr_scheduler_type="constant", temperature=1.0, max_completion_length=1024,
            gradient_checkpointing=False, logging_steps=1, seed=options.seed, **WITHOUT_FILES,
        )  # fmt: skip
        trainer = GRPOTrainer(
            model,
            reward_funcs=score,
            args=settings,
            train_dataset=Dataset.from_list([{"prompt": task} for task in unseen]),
            processing_class=tokenizer,
            rollout_func=make_rollout_func(runner, engine, options.turns),
            callbacks=[log],
        )
        trainer.train()
        if options.evaluate:
            engine.update_weights(trainer.accelerator.unwrap_model(trainer.model))
            log.add({"when": "after", **evaluate()})
    finally:
        vec.close()
    trainer.save_model(str(options.folder / "model"))
    for line in log.path.read_text().splitlines():
        row = json.loads(line)
        if "reward" in row:
            told = f"reward {row['reward']:.3f}, success {row['success']:.2f}, loss {row['loss']:.4f}"
            print(f"step {row['step']}: {told}")
        elif "when" in row:
            print(f"{row['when']}: success {row['held_out_success']:.3f} in {row['episodes']} episodes of other goals")


if __name__ == "__main__":
    main()

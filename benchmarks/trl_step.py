"""One GRPO step of this trainer beside one of TRL's `GRPOTrainer`, in one process and in turns.

`python -m benchmarks.trl_step` prints the seconds of each, rollout and update apart. TRL's `rollout_func` is written
the plain way of its docs: the conversation is a list of messages, and each turn it is rendered, tokenized and
continued with `model.generate`. In its OpenEnv examples one episode is played after another (`--together 1`); by
default all episodes of the step are generated together here, which is faster. Both sides play the same tasks for the
same number of turns and sample the same number of tokens each turn, with the same model in float32 and the same
threads.
"""

from __future__ import annotations

import argparse
import os
import statistics
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

os.environ.setdefault("TRL_EXPERIMENTAL_SILENCE", "1")  # rollout_func is experimental, and says so each time

import gymnasium
import torch
import trl
from datasets import Dataset
from transformers import PreTrainedModel, TrainerCallback
from trl.trainer.grpo_config import GRPOConfig
from trl.trainer.grpo_trainer import GRPOTrainer

from agentgym_train.chat import Chat
from agentgym_train.compact import compact_path
from agentgym_train.config import AlgorithmConfig, OptimiserConfig
from agentgym_train.engines.hf import HFEngine, copy_for_sampling
from agentgym_train.estimators import choose, token_advantages
from agentgym_train.models import demo_model_path, load_model, load_tokenizer
from agentgym_train.packing import pack
from agentgym_train.rollout import RolloutRunner
from agentgym_train.trajectory import Episode
from agentgym_train.update import make_optimiser, update_policy
from agentgym_wrappers import ActionParser, FixedHorizon, HorizonCurriculum, SubprocVectorEnv
from benchmarks.algorithms import MODEL

ENV_ID = "AgentGym/TextCraft-Depth1-v0"
MAX_CONTEXT = 2048
LR = 1e-6


@dataclass
class Seconds:
    """What the steps of one side took; the first is left out, since it makes the optimiser's state."""

    rollout: list[float] = field(default_factory=list)
    update: list[float] = field(default_factory=list)

    def line(self, name: str) -> str:
        rollout, update, step = self.medians()
        return f"{name:10} {rollout:8.2f} {update:8.2f} {step:8.2f}"

    def medians(self) -> tuple[float, float, float]:
        """Of rollout, update and whole step."""
        pairs = list(zip(self.rollout, self.update, strict=True))[1:]
        rollout, update = (statistics.median(column) for column in zip(*pairs, strict=True))
        return rollout, update, statistics.median(map(sum, pairs))


@dataclass
class Size:
    """What one step is: groups x samples episodes of turns x tokens."""

    groups: int
    samples: int
    turns: int
    tokens: int


def reward_of(tokens: Sequence[int]) -> float:
    """A reward that differs within groups: without variance either side could leave out its update."""
    return sum(tokens) % 97 / 97


class OurStep:
    """Rolls out, updates, and gives the engine its weights, as `agentgym_train.loop` does."""

    def __init__(self, path: str, size: Size, vec: SubprocVectorEnv, tasks: Sequence[str]) -> None:
        self.model: PreTrainedModel = load_model(path)
        self.optimiser_config = OptimiserConfig(lr=LR, precision="float32")
        self.optimiser = make_optimiser(self.model, self.optimiser_config)
        self.engine = HFEngine(copy_for_sampling(self.model, "float32"), frozenset())
        chat = Chat(load_tokenizer(path))
        self.runner = RolloutRunner(vec, self.engine, chat, max_reply_tokens=size.tokens, max_context=MAX_CONTEXT)
        self.size, self.tasks = size, tasks
        self.seconds = Seconds()

    def __call__(self, step: int) -> None:
        began = time.perf_counter()
        trajectories = self.runner.run(
            [
                Episode(task, step, sample, self.size.turns, f"{step}")
                for task in self.tasks
                for sample in range(self.size.samples)
            ],
            1.0,
        )
        rolled_out = time.perf_counter()
        for trajectory in trajectories:
            trajectory.reward = reward_of(trajectory.tokens)
        algorithm = AlgorithmConfig(kl_coef=0.0)
        chosen = choose(trajectories, algorithm)
        batch = [trajectory for trajectory, kept in zip(trajectories, chosen.trained, strict=True) if kept]
        own = [value for value, kept in zip(chosen.values, chosen.trained, strict=True) if kept]
        rows = pack(batch, self.optimiser_config.token_budget)
        advantages, _ = token_advantages(batch, own, rows, None, None, algorithm)
        lengths = [trajectory.sampled for trajectory in batch]
        update_policy(
            self.model,
            self.optimiser,
            rows,
            advantages,
            lengths,
            None,
            1.0,
            LR,
            algorithm,
            self.optimiser_config,
            lambda: None,
        )
        self.engine.update_weights(self.model)
        self.seconds.rollout.append(rolled_out - began)
        self.seconds.update.append(time.perf_counter() - rolled_out)
        expected = self.size.groups * self.size.samples * self.size.turns * self.size.tokens
        if sum(lengths) != expected:
            raise RuntimeError(f"{sum(lengths)} tokens were trained on instead of {expected}.")


class PlainRollout:
    """What `GRPOTrainer(rollout_func=...)` takes. A prompt of its dataset is a task id."""

    def __init__(self, size: Size, together: int, envs: Sequence[gymnasium.Env[str, str]], chat: Chat) -> None:
        self.size, self.together, self.envs, self.chat = size, together, envs, chat
        self.seconds = 0.0  # of the step under way

    def __call__(self, prompts: list[str], trainer: GRPOTrainer) -> dict[str, list[Any]]:
        began = time.perf_counter()
        columns: dict[str, list[Any]] = {"prompt_ids": [], "completion_ids": [], "logprobs": [], "env_mask": []}
        model = trainer.accelerator.unwrap_model(trainer.model)
        model.eval()
        for start in range(0, len(prompts), self.together):
            for name, values in self._play(prompts[start : start + self.together], model).items():
                columns[name] += values
        model.train()
        self.seconds += time.perf_counter() - began
        return columns

    @torch.no_grad()
    def _play(self, tasks: Sequence[str], model: Any) -> dict[str, list[Any]]:
        tokenizer = self.chat.tokenizer
        envs = self.envs[: len(tasks)]
        conversations = []
        for env, task in zip(envs, tasks, strict=True):
            observation, info = env.reset(seed=0, options={"task": task, "horizon": self.size.turns})
            conversations.append(
                [{"role": "system", "content": info["instruction"]}, {"role": "user", "content": observation}]
            )
        first: list[list[int]] = []
        sampled: list[list[list[int]]] = [[] for _ in tasks]
        answers: list[list[list[int]]] = [[] for _ in tasks]
        for turn in range(self.size.turns):
            texts = [
                tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
                for messages in conversations
            ]
            inputs = tokenizer(
                texts, return_tensors="pt", padding=True, padding_side="left", add_special_tokens=False
            ).to(model.device)
            if turn == 0:
                kept = inputs["attention_mask"].bool()
                first = [row[own].tolist() for row, own in zip(inputs["input_ids"], kept, strict=True)]
            output = model.generate(
                **inputs,
                do_sample=True,
                temperature=1.0,
                top_k=0,
                top_p=1.0,
                min_new_tokens=self.size.tokens,
                max_new_tokens=self.size.tokens,
                pad_token_id=tokenizer.pad_token_id,
            )
            for place, reply in enumerate(output[:, inputs["input_ids"].shape[1] :].tolist()):
                text = self.chat.decode(reply)
                observation = envs[place].step(text)[0]
                conversations[place] += [
                    {"role": "assistant", "content": text},
                    {"role": "user", "content": observation},
                ]
                sampled[place].append(reply)
                answers[place].append(self.chat.after_reply(observation, ended=False))
        columns: dict[str, list[Any]] = {"prompt_ids": first, "completion_ids": [], "logprobs": [], "env_mask": []}
        for replies, given in zip(sampled, answers, strict=True):
            given[-1] = []
            pieces = [piece for pair in zip(replies, given, strict=True) for piece in pair]
            tokens = [token for piece in pieces for token in piece]
            columns["completion_ids"].append(tokens)
            columns["env_mask"].append([1 - number % 2 for number, piece in enumerate(pieces) for _ in piece])
            columns["logprobs"].append([0.0] * len(tokens))  # TRL takes them from vLLM only
        return columns


class InTurns(TrainerCallback):
    """Times TRL's steps, and takes one of ours after each."""

    def __init__(self, rollout: PlainRollout, ours: OurStep) -> None:
        self.rollout, self.ours = rollout, ours
        self.seconds = Seconds()
        self.began = 0.0

    def on_step_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self.rollout.seconds, self.began = 0.0, time.perf_counter()

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        whole = time.perf_counter() - self.began
        self.seconds.rollout.append(self.rollout.seconds)
        self.seconds.update.append(whole - self.rollout.seconds)
        self.ours(state.global_step)
        for name, own in (("TRL", self.seconds), ("ours", self.ours.seconds)):
            print(f"step {state.global_step} {name}: {own.rollout[-1]:.2f} + {own.update[-1]:.2f} s", flush=True)


def score(completion_ids: list[list[int]], **_: Any) -> list[float | None]:
    """A reward function for TRL."""
    return [reward_of(tokens) for tokens in completion_ids]


def compare(path: str, size: Size, steps: int, together: int, folder: Path) -> tuple[Seconds, Seconds]:
    """Seconds of TRL's steps and of ours, after one of each that is not counted."""
    count = size.groups * size.samples
    curriculum = partial(HorizonCurriculum, schedule=FixedHorizon(size.turns))
    vec = SubprocVectorEnv.make(ENV_ID, count, env_wrappers=[ActionParser, curriculum], autoreset_mode="Disabled")
    envs = [curriculum(ActionParser(gymnasium.make(ENV_ID))) for _ in range(together)]
    try:
        tasks = [task.id for task in vec.get_attr("tasks")[0][: size.groups]]
        ours = OurStep(path, size, vec, tasks)
        rollout = PlainRollout(size, together, envs, Chat(load_tokenizer(path)))
        in_turns = InTurns(rollout, ours)
        settings = GRPOConfig(
            str(folder),
            max_steps=steps + 1,
            num_generations=size.samples,
            per_device_train_batch_size=size.samples,
            gradient_accumulation_steps=size.groups,
            max_completion_length=MAX_CONTEXT,
            learning_rate=LR,
            lr_scheduler_type="constant",
            temperature=1.0,
            beta=0.0,
            gradient_checkpointing=False,
            bf16=False,
            shuffle_dataset=False,
            use_cpu=True,
            save_strategy="no",
            report_to=[],
            disable_tqdm=True,
        )
        GRPOTrainer(
            load_model(path),
            reward_funcs=score,
            args=settings,
            train_dataset=Dataset.from_list([{"prompt": task} for task in tasks]),
            processing_class=load_tokenizer(path),
            rollout_func=rollout,
            callbacks=[in_turns],
        ).train()
    finally:
        vec.close()
        for env in envs:
            env.close()
    return in_turns.seconds, ours.seconds


def main(arguments: Sequence[str] | None = None) -> None:
    """Print the comparison."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.trl_step", description=__doc__)
    parser.add_argument("--compact", action="store_true", help="the compact model instead of the demo's")
    parser.add_argument("--groups", type=int, default=2, help="tasks a step")
    parser.add_argument("--samples", type=int, default=4, help="episodes of a group")
    parser.add_argument("--turns", type=int, default=4)
    parser.add_argument("--tokens", type=int, default=16, help="sampled tokens a turn")
    parser.add_argument("--steps", type=int, default=2, help="steps of each side, after one that is not counted")
    parser.add_argument("--together", type=int, default=0, help="episodes that TRL's side generates together; 0: all")
    parser.add_argument("--threads", type=int, default=1)
    options = parser.parse_args(arguments)
    torch.set_num_threads(options.threads)
    size = Size(options.groups, options.samples, options.turns, options.tokens)
    path = str(compact_path(MODEL) if options.compact else demo_model_path())
    together = options.together or size.groups * size.samples
    with tempfile.TemporaryDirectory() as folder:
        theirs, ours = compare(path, size, options.steps, together, Path(folder))
    print(f"\nTRL {trl.__version__}, PyTorch {torch.__version__}, {options.threads} thread(s); {size}")
    print(f"TRL's side generates {together} episode(s) together; medians of {options.steps} steps, seconds")
    print(f"{'':10} {'rollout':>8} {'update':>8} {'step':>8}")
    print(theirs.line(f"TRL {trl.__version__}"))
    print(ours.line("ours"))
    ratios = [a / b for a, b in zip(theirs.medians(), ours.medians(), strict=True)]
    print(f"{'times':10} " + " ".join(f"{ratio:8.2f}" for ratio in ratios))


if __name__ == "__main__":
    main()

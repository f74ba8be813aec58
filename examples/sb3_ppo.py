"""Train MaskablePPO (sb3-contrib) or PPO (Stable-Baselines3) on levels of BabyAI and goals of TextCraft.

python examples/sb3_ppo.py --task GoToLocal --seed 0
python examples/sb3_ppo.py --task GoToRedBallGrey --primitive --steps 100000   # PPO without a mask

The policy is SB3's MLP. It sees which groups of words occur in the observation and in the goal, hashed, and chooses
among the actions that the environment lists. Nothing here knows what the words mean.
"""

from __future__ import annotations

import argparse
import json
import time
from functools import partial
from pathlib import Path
from typing import Any

from agentgym_wrappers.requirements import need

need("sb3", stable_baselines3=(2, 9), sb3_contrib=(2, 9))

import gymnasium
import numpy as np
import torch
from sb3_contrib import MaskablePPO
from stable_baselines3 import PPO
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.env_util import make_vec_env
from stable_baselines3.common.vec_env import DummyVecEnv, SubprocVecEnv

import agentgym_envs  # noqa: F401  (registers the ids)
from agentgym_wrappers import FixedHorizon, HorizonCurriculum
from agentgym_wrappers.encoders import NgramHash
from agentgym_wrappers.numeric import DiscreteActions, EncodeObservation

BABYAI = ("GoToRedBallGrey", "GoToObj", "GoToLocal")
PRIMITIVE = ("turn left", "turn right", "move forward")
FIRST_TRAINING_SEED = 1_000  # of BabyAI's levels; those below are for evaluation
TEXTCRAFT_GOALS = 16
# Turns of an episode: what the environments' own planners need, and one or two more.
TURNS = {"GoToRedBallGrey": 6, "GoToObj": 6, "GoToLocal": 6, "TextCraft": 5}
PRIMITIVE_TURNS = 64


class Levels(gymnasium.Wrapper):
    """Draws the seed of each episode's BabyAI level; `options={"level_seed": n}` names it."""

    def __init__(self, env: gymnasium.Env, level: str) -> None:
        super().__init__(env)
        self.level = level
        self.draw = np.random.default_rng(0)

    def reset(self, *, seed=None, options=None):
        if seed is not None:
            self.draw = np.random.default_rng(seed)
        number = (options or {}).get("level_seed", self.draw.integers(FIRST_TRAINING_SEED, 2**31))
        return self.env.reset(seed=seed, options={"init": {"level": self.level, "seed": int(number)}})


def make(task: str, primitive: bool = False, order: int = 0) -> gymnasium.Env:
    if task in BABYAI:
        env = Levels(gymnasium.make("AgentGym/BabyAI-v0"), task)
    else:
        env = gymnasium.make("AgentGym/TextCraft-v0", tasks=list(range(TEXTCRAFT_GOALS)))
    env = EncodeObservation(env, NgramHash(size=2048, goal_size=256, order=4))
    env = DiscreteActions(env, actions=PRIMITIVE if primitive else None, order=order)
    return HorizonCurriculum(env, FixedHorizon(PRIMITIVE_TURNS if primitive else TURNS[task]))


def evaluate(env: gymnasium.Env, choose, task: str, episodes: int) -> float:
    """Success over the same episodes for every policy: level seeds 0, 1, ... or the goals in turn."""
    successes = 0
    for number in range(episodes):
        options = {"level_seed": number} if task in BABYAI else {"task": number % TEXTCRAFT_GOALS}
        observation, info = env.reset(seed=number, options=options)
        done = False
        while not done:
            observation, _, terminated, truncated, info = env.step(choose(observation, info["action_mask"]))
            done = terminated or truncated
        successes += info["success"]
    return successes / episodes


class Curve(BaseCallback):
    """The success of the training episodes; stops the training when the processor time is up."""

    def __init__(self, every: int, seconds: float) -> None:
        super().__init__()
        self.every, self.seconds = every, seconds
        self.points: list[tuple[int, float]] = []
        self.recent: list[bool] = []
        self.begun = time.process_time()

    def _on_step(self) -> bool:
        ended = zip(self.locals["infos"], self.locals["dones"], strict=True)
        self.recent += [bool(info["success"]) for info, done in ended if done]
        if self.num_timesteps >= self.every * (len(self.points) + 1) and self.recent:
            self.points.append((self.num_timesteps, float(np.mean(self.recent))))
            print(f"{self.num_timesteps:>9,} steps: success {self.points[-1][1]:.2f} in {len(self.recent)} episodes")
            self.recent = []
        return time.process_time() - self.begun < self.seconds


def train(options: argparse.Namespace) -> dict[str, Any]:
    torch.set_num_threads(1)
    make_one = partial(make, options.task, options.primitive, options.order)
    kind = SubprocVecEnv if options.processes else DummyVecEnv
    vec = make_vec_env(make_one, options.envs, seed=1_000_000 * (options.seed + 1), vec_env_cls=kind)
    algorithm = PPO if options.primitive else MaskablePPO
    settings = {"n_steps": 128, "batch_size": 256, "n_epochs": 4, "learning_rate": 1e-3, "gamma": 0.95}
    model = algorithm("MlpPolicy", vec, ent_coef=0.01, seed=options.seed, device="cpu", **settings)
    curve = Curve(max(options.steps // 20, 1), options.seconds)
    model.learn(options.steps, callback=curve)
    seconds = time.process_time() - curve.begun
    vec.close()

    def chosen(observation, mask) -> int:
        masks = {} if options.primitive else {"action_masks": mask.astype(bool)}
        return int(model.predict(observation, **masks)[0])

    env = make_one()
    rng = np.random.default_rng(options.seed)
    random = evaluate(env, lambda _, mask: rng.choice(np.flatnonzero(mask)), options.task, options.episodes)
    trained = evaluate(env, chosen, options.task, options.episodes)
    env.close()
    print(f"{options.task}, success on {options.episodes} episodes: random {random:.3f}, trained {trained:.3f}")
    print(f"{model.num_timesteps:,} steps, {seconds:.0f} s of processor time")
    asked = {name: getattr(options, name) for name in ("task", "primitive", "order", "seed", "episodes")}
    result = {"steps": model.num_timesteps, "seconds": round(seconds, 1), "random": random, "trained": trained}
    return {**asked, **result, "curve": curve.points}


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--task", choices=[*BABYAI, "TextCraft"], default="GoToRedBallGrey")
    parser.add_argument("--primitive", action="store_true", help="BabyAI: turn and move only, PPO without a mask")
    parser.add_argument("--steps", type=int, default=15_000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--order", type=int, default=0, help="another order of the actions' numbers")
    parser.add_argument("--episodes", type=int, default=200, help="episodes of the evaluations")
    parser.add_argument("--envs", type=int, default=8)
    parser.add_argument("--processes", action="store_true", help="SubprocVecEnv rather than DummyVecEnv")
    parser.add_argument("--seconds", type=float, default=600, help="processor time after which training stops")
    parser.add_argument("--out", type=Path, help="JSON lines file to which the result is added")
    options = parser.parse_args(arguments)
    if options.primitive and options.task not in BABYAI:
        parser.error("--primitive is for BabyAI's levels.")
    result = train(options)
    if options.out:
        with options.out.open("a") as file:
            file.write(json.dumps(result) + "\n")


if __name__ == "__main__":
    main()

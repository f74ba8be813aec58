"""PPO in one file, in CleanRL's style, over `SubprocVectorEnv` with Gymnasium's next-step autoreset.

python examples/cleanrl_ppo.py --total-timesteps 20000

With next-step autoreset the step after an episode's end ignores its action and returns the next episode's first
observation. Two things follow, marked [autoreset] below: that step is no experience and stays out of the loss, and
the observation before it is the ended episode's last, whose value is what a truncated episode is worth.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple

from agentgym_wrappers.requirements import need

need("train", torch=(2, 9))

import numpy as np
import torch
import tyro
from torch import Tensor, nn
from torch.distributions import Categorical

from agentgym_wrappers import FixedHorizon, HorizonCurriculum, SubprocVectorEnv
from agentgym_wrappers.encoders import NgramHash
from agentgym_wrappers.numeric import DiscreteActions, EncodeObservation


@dataclass
class Args:
    env_id: str = "AgentGym/TextCraft-v0"
    """An environment that lists its actions."""
    tasks: int = 16
    """How many of the environment's tasks are trained on, from the first."""
    turns: int = 5
    """Turns after which an episode is truncated."""
    seed: int = 0
    total_timesteps: int = 20_000
    learning_rate: float = 1e-3
    num_envs: int = 16
    workers: int = 2
    """Processes that the environments are divided among."""
    num_steps: int = 64
    """Steps of each environment between two updates."""
    gamma: float = 0.95
    gae_lambda: float = 0.95
    minibatch_size: int = 256
    update_epochs: int = 4
    clip_coef: float = 0.2
    ent_coef: float = 0.01
    vf_coef: float = 0.5
    max_grad_norm: float = 0.5


class Batch(NamedTuple):
    """What `num_steps` steps of all environments left, [num_steps, num_envs, ...]."""

    observations: Tensor
    masks: Tensor
    actions: Tensor
    logprobs: Tensor
    values: Tensor
    rewards: Tensor
    terminated: Tensor
    done: Tensor
    real: Tensor  # False for the step that was a reset


class Agent(nn.Module):
    def __init__(self, inputs: int, actions: int) -> None:
        super().__init__()
        self.critic = nn.Sequential(nn.Linear(inputs, 64), nn.Tanh(), nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, 1))
        self.actor = nn.Sequential(nn.Linear(inputs, 64), nn.Tanh(), nn.Linear(64, 64), nn.Tanh())
        self.head = nn.Linear(64, actions)
        nn.init.orthogonal_(self.head.weight, 0.01)

    def value(self, observations: Tensor) -> Tensor:
        return self.critic(observations).squeeze(-1)

    def policy(self, observations: Tensor, masks: Tensor) -> Categorical:
        logits = self.head(self.actor(observations))
        return Categorical(logits=logits.masked_fill(~masks, -1e9))


class Collector:
    """Steps the environments, and keeps where they stand between two batches."""

    def __init__(self, envs: SubprocVectorEnv, agent: Agent, args: Args) -> None:
        self.envs, self.agent, self.args = envs, agent, args
        observations, infos = envs.reset(seed=args.seed * args.num_envs)
        self.observations = torch.as_tensor(observations)
        self.masks = torch.as_tensor(infos["action_mask"]).bool()
        self.done = torch.zeros(args.num_envs, dtype=torch.bool)
        self.successes: list[bool] = []  # of the ended episodes

    @torch.no_grad()
    def collect(self) -> Batch:
        rows = []
        for _ in range(self.args.num_steps):
            policy = self.agent.policy(self.observations, self.masks)
            actions = policy.sample()
            value = self.agent.value(self.observations)
            before = self.observations, self.masks, actions, policy.log_prob(actions), value
            real = ~self.done  # [autoreset] where the last step ended an episode, this one only resets
            observations, rewards, terminated, truncated, infos = self.envs.step(actions.numpy())
            done = terminated | truncated
            self.successes += infos["success"][done].tolist()
            self.observations = torch.as_tensor(observations)
            self.masks = torch.as_tensor(infos["action_mask"]).bool()
            self.done = torch.as_tensor(done)
            after = torch.as_tensor(rewards, dtype=torch.float32), torch.as_tensor(terminated), self.done, real
            rows.append((*before, *after))
        return Batch(*(torch.stack(column) for column in zip(*rows, strict=True)))


def advantages(batch: Batch, last_value: Tensor, gamma: float, gae_lambda: float) -> Tensor:
    """Generalised advantage estimates, [num_steps, num_envs].

    [autoreset] The value after step t is that of the observation at t + 1 also where the episode ended at t: it is
    the ended episode's last observation. A terminated episode is worth nothing from there, a truncated one is.
    """
    next_values = torch.cat([batch.values[1:], last_value[None]])
    deltas = batch.rewards + gamma * next_values * ~batch.terminated - batch.values
    estimates = torch.zeros_like(deltas)
    following = torch.zeros_like(last_value)
    for t in reversed(range(len(deltas))):
        following = deltas[t] + gamma * gae_lambda * ~batch.done[t] * following
        estimates[t] = following
    return estimates


def update(agent: Agent, optimizer: torch.optim.Optimizer, batch: Batch, estimates: Tensor, args: Args) -> None:
    real = batch.real  # [autoreset] steps that were resets stay out of the loss
    observations, masks, actions = batch.observations[real], batch.masks[real], batch.actions[real]
    logprobs, estimates = batch.logprobs[real], estimates[real]
    returns = estimates + batch.values[real]
    for _ in range(args.update_epochs):
        for rows in torch.randperm(len(actions)).split(args.minibatch_size):
            policy = agent.policy(observations[rows], masks[rows])
            ratio = (policy.log_prob(actions[rows]) - logprobs[rows]).exp()
            weight = estimates[rows]
            weight = (weight - weight.mean()) / (weight.std(correction=0) + 1e-8)
            clipped = ratio.clamp(1 - args.clip_coef, 1 + args.clip_coef)
            policy_loss = -torch.min(ratio * weight, clipped * weight).mean()
            value_loss = 0.5 * (agent.value(observations[rows]) - returns[rows]).square().mean()
            loss = policy_loss - args.ent_coef * policy.entropy().mean() + args.vf_coef * value_loss
            optimizer.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(agent.parameters(), args.max_grad_norm)
            optimizer.step()


def make_envs(args: Args) -> SubprocVectorEnv:
    wrappers = [
        partial(EncodeObservation, encoder=NgramHash(size=1024, goal_size=256)),
        DiscreteActions,
        partial(HorizonCurriculum, schedule=FixedHorizon(args.turns)),
    ]
    tasks = list(range(args.tasks))
    return SubprocVectorEnv.make(args.env_id, args.num_envs, workers=args.workers, env_wrappers=wrappers, tasks=tasks)


def main(args: Args) -> None:
    torch.manual_seed(args.seed)
    torch.set_num_threads(1)
    begun = time.process_time()
    with make_envs(args) as envs:
        agent = Agent(envs.single_observation_space.shape[0], int(envs.single_action_space.n))
        optimizer = torch.optim.Adam(agent.parameters(), lr=args.learning_rate, eps=1e-5)
        collector = Collector(envs, agent, args)
        steps = 0
        for iteration in range(1, args.total_timesteps // (args.num_envs * args.num_steps) + 1):
            batch = collector.collect()
            with torch.no_grad():
                last_value = agent.value(collector.observations)
            estimates = advantages(batch, last_value, args.gamma, args.gae_lambda)
            update(agent, optimizer, batch, estimates, args)
            steps += int(batch.real.sum())
            recent, collector.successes = collector.successes, []
            print(f"update {iteration}: {steps} steps, success {np.mean(recent):.2f} in {len(recent)} episodes")
    print(f"{time.process_time() - begun:.0f} s of processor time in the main process")


if __name__ == "__main__":
    main(tyro.cli(Args))

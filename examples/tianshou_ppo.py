"""Train Tianshou's PPO on BabyAI's GoTo levels, with its own collectors and vector environments.

pip install 'agentgym-suite[babyai,tianshou]'    # in an environment of its own: it holds pandas below 3
python examples/tianshou_ppo.py --steps 40000
"""

from __future__ import annotations

import argparse

from agentgym_wrappers.requirements import need

need("tianshou", tianshou=(2, 0))

import gymnasium
import torch
from tianshou.algorithm import PPO
from tianshou.algorithm.modelfree.reinforce import DiscreteActorPolicy
from tianshou.algorithm.optim import AdamOptimizerFactory
from tianshou.data import Collector, VectorReplayBuffer
from tianshou.env import SubprocVectorEnv
from tianshou.trainer import OnPolicyTrainerParams
from tianshou.utils.net.common import Net
from tianshou.utils.net.discrete import DiscreteActor, DiscreteCritic

import agentgym_envs  # noqa: F401  (registers the ids)
from agentgym_wrappers.encoders import NgramHash
from agentgym_wrappers.numeric import DiscreteActions, EncodeObservation

PRIMITIVE = ("turn left", "turn right", "move forward", "pick up", "drop", "toggle")


def make() -> gymnasium.Env:

    env = EncodeObservation(gymnasium.make("AgentGym/BabyAI-GoTo-v0"), NgramHash(size=1024, goal_size=256))
    return DiscreteActions(env, actions=PRIMITIVE)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=40_000)
    parser.add_argument("--envs", type=int, default=8)
    parser.add_argument("--episodes", type=int, default=50, help="episodes of the evaluation")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()

    torch.manual_seed(options.seed)
    torch.set_num_threads(1)
    training, testing = (SubprocVectorEnv([make] * options.envs) for _ in range(2))
    training.seed(options.seed)
    testing.seed(1_000 + options.seed)
    with make() as env:
        observations, actions = env.observation_space, env.action_space
    body = Net(state_shape=observations.shape, hidden_sizes=[64, 64])
    algorithm = PPO(
        policy=DiscreteActorPolicy(
            actor=DiscreteActor(preprocess_net=body, action_shape=actions.n, softmax_output=False),
            action_space=actions,
            observation_space=observations,
        ),
        critic=DiscreteCritic(preprocess_net=body),
        optim=AdamOptimizerFactory(lr=1e-3),
        gamma=0.95,
    )
    steps = min(1024, options.steps)
    collector = Collector(algorithm, training, VectorReplayBuffer(2 * steps, options.envs))
    result = algorithm.run_training(
        OnPolicyTrainerParams(
            training_collector=collector,
            test_collector=Collector(algorithm, testing),
            max_epochs=max(options.steps // (4 * steps), 1),
            epoch_num_steps=min(4 * steps, options.steps),
            collection_step_num_env_steps=steps,
            test_step_num_episodes=options.episodes,
            batch_size=256,
            update_step_num_repetitions=4,
            show_progress=False,
        )
    )
    training.close()
    testing.close()
    print(f"mean return of {options.episodes} test episodes at the best epoch: {result.best_score:.3f}")


if __name__ == "__main__":
    main()

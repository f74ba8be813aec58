"""Play TextCraft in the terminal, or watch the oracle: python examples/play_textcraft.py [--oracle] [--seed 7]."""

from __future__ import annotations

import argparse

import gymnasium

import agentgym_envs  # noqa: F401  (registers the ids)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--oracle", action="store_true", help="let the environment's own planner play")
    parser.add_argument("--seed", type=int, default=7, help="which episode")
    parser.add_argument("--id", default="AgentGym/TextCraft-Depth2-v0", help="environment id")
    arguments = parser.parse_args()

    env = gymnasium.make(arguments.id)
    observation, info = env.reset(seed=arguments.seed)
    print(info["instruction"], observation, sep="\n\n")
    done = False
    while not done:
        action = env.unwrapped.oracle_action() if arguments.oracle else input("\n> ")
        if arguments.oracle:
            print(f"\n> {action}")
        observation, _, terminated, truncated, info = env.step(action)
        print(observation)
        done = terminated or truncated
    print(f"\n{info.get('end', 'turn limit')}: score {info['score']:g} after {info['turn']} turns")
    env.close()


if __name__ == "__main__":
    main()

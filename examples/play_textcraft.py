"""Play TextCraft in the terminal, or watch the oracle: python examples/play_textcraft.py [--oracle] [--seed 7]."""

from __future__ import annotations

import argparse

import gymnasium

import agentgym_envs  # noqa: F401  (registers the ids)


def typed(prompt: str) -> str | None:
    """One line from the keyboard or a pipe; None after Ctrl-D, Ctrl-C or the pipe's end."""
    try:
        return input(prompt)
    except (EOFError, KeyboardInterrupt):
        print()
        return None


def main() -> None:
    ids = [name for name in gymnasium.registry if name.startswith("AgentGym/TextCraft-")]
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--oracle", action="store_true", help="let the environment's own planner play")
    parser.add_argument("--seed", type=int, default=7, help="which episode")
    parser.add_argument("--id", choices=ids, default="AgentGym/TextCraft-Depth2-v0", metavar="ID", help=", ".join(ids))
    arguments = parser.parse_args()

    with gymnasium.make(arguments.id) as env:
        limit = env.spec.max_episode_steps
        observation, info = env.reset(seed=arguments.seed)
        print(info["instruction"], observation, sep="\n\n")
        ended = ""
        while not ended:
            prompt = f"\n[{limit - info['turn']} turns left] > "
            if arguments.oracle:
                action = env.unwrapped.oracle_action()
                print(prompt, action, sep="")
            else:
                action = typed(prompt)
            if action is None:
                ended = "stopped"
                break
            observation, _, terminated, truncated, info = env.step(action)
            print(observation)
            if terminated or truncated:
                ended = info.get("end", "turn limit")
        print(f"\n{ended}: score {info['score']:g} after {info['turn']} turns")


if __name__ == "__main__":
    main()

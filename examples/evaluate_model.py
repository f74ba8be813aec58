"""Evaluate any Hugging Face chat model on TextCraft with a few lines of your own code.

python examples/evaluate_model.py --model smollm2-135m-instruct --tasks 4
"""

from __future__ import annotations

import argparse
from functools import partial

from agentgym_train.chat import Chat
from agentgym_train.engines.hf import HFEngine
from agentgym_train.models import load_model, load_tokenizer, stop_tokens
from agentgym_train.rollout import RolloutRunner
from agentgym_train.trajectory import Episode
from agentgym_wrappers import ActionParser, FixedHorizon, HorizonCurriculum, SubprocVectorEnv


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", default="smollm2-135m-instruct", help="folder or id of a causal language model")
    parser.add_argument("--tasks", type=int, default=4, help="number of test tasks")
    parser.add_argument("--turns", type=int, default=8, help="horizon")
    arguments = parser.parse_args()

    vec = SubprocVectorEnv.make(
        "AgentGym/TextCraft-Depth1-v0",
        num_envs=16,
        split="test",
        env_wrappers=[ActionParser, partial(HorizonCurriculum, schedule=FixedHorizon(arguments.turns))],
        autoreset_mode="Disabled",
    )
    tasks = [task.id for task in vec.get_attr("tasks")[0][: arguments.tasks]]

    model = load_model(arguments.model)
    chat = Chat(load_tokenizer(arguments.model), stop_tokens(model))
    engine = HFEngine(model, chat.stop_tokens)
    runner = RolloutRunner(vec, engine, chat, max_reply_tokens=32, max_context=2048)
    trajectories = runner.run([Episode(task, 0, 0, arguments.turns, "example") for task in tasks], temperature=1.0)
    vec.close()

    for trajectory in trajectories:
        print(f"{trajectory.goal}: {trajectory.end}, {len(trajectory.turns)} turns")
    success = sum(trajectory.success for trajectory in trajectories) / len(trajectories)
    print(f"success {success:.2f} on {len(trajectories)} tasks")


if __name__ == "__main__":
    main()

"""TRL's GRPOTrainer with `environment_factory`: the model acts by calling tools, one for each verb of the scenario.

python examples/trl_tools.py --model path/to/a/model/that/calls/tools --steps 50

SmolLM2-135M, the default, makes no such call by itself: it shows the wiring, not progress.
"""

from __future__ import annotations

import argparse
import os
from pathlib import Path

from agentgym_wrappers.requirements import need

need("trl", trl=(1, 16), datasets=(4, 7))
os.environ.setdefault("TRL_EXPERIMENTAL_SILENCE", "1")  # environment_factory is experimental, and says so each time

import torch
from datasets import Dataset
from trl import GRPOConfig, GRPOTrainer

from agentgym_train.models import load_model, load_tokenizer
from agentgym_wrappers.trl import CHATML_TOOLS, CHATML_TOOLS_RESPONSE, make_trl_environment

PROMPT = [{"role": "user", "content": "Craft the goal with the tools, one call a turn."}]


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="smollm2-135m-instruct", help="folder or id of a causal language model")
    parser.add_argument("--own-template", action="store_true", help="keep the model's chat template: it knows tools")
    parser.add_argument("--steps", type=int, default=1)
    parser.add_argument("--generations", type=int, default=4, help="episodes of a group")
    parser.add_argument("--tokens", type=int, default=512, help="of an episode, without its prompt")
    parser.add_argument("--folder", type=Path, default=Path("runs/trl-tools"))
    options = parser.parse_args(arguments)

    tokenizer = load_tokenizer(options.model)
    if not options.own_template:
        tokenizer.chat_template = CHATML_TOOLS
        tokenizer.response_template = CHATML_TOOLS_RESPONSE
    # Each row needs a seed or a task, so that the members of a group play the same episode.
    rows = [{"prompt": PROMPT, "task": f"textcraft_{number}", "seed": 0} for number in range(32)]
    settings = GRPOConfig(
        str(options.folder),
        max_steps=options.steps,
        num_generations=options.generations,
        per_device_train_batch_size=options.generations,
        max_completion_length=options.tokens,
        use_cpu=not torch.cuda.is_available(),
        bf16=False,
        gradient_checkpointing=False,
        save_strategy="no",
        report_to=[],
        logging_steps=1,
    )
    trainer = GRPOTrainer(
        load_model(options.model),
        args=settings,
        train_dataset=Dataset.from_list(rows),
        processing_class=tokenizer,
        environment_factory=make_trl_environment("AgentGym/TextCraft-v0", turns=8),
    )
    print("tools:", ", ".join(tool.__name__ for tool in trainer.tools))
    trainer.train()
    for row in trainer.state.log_history:
        if "reward" in row:
            calls = row["tools/call_frequency"]
            print(f"step {row['step']}: reward {row['reward']:.2f}, {calls:.1f} tool calls an episode")


if __name__ == "__main__":
    main()

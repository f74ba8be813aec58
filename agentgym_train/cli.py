"""The `agentgym` command."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Sequence

# Top-level modules that the extra `train` brings. Parts of other extras name theirs themselves.
_EXTRA = {"jinja2", "matplotlib", "tensorboard", "torch", "transformers", "yaml"}

USAGE = """usage: agentgym COMMAND [options]

  demo     train SmolLM2-135M on TextCraft, evaluate it and write a report (--quick: about ten minutes)
  train    train a language model: agentgym train --recipe textcraft-scaling --model.path FOLDER
  sft      fine-tune on the oracle's episodes, on conversations, or on a run's own successes
  dpo      prefer better episodes to worse ones of the same task (multi-turn DPO)
  evol     AgentEvol: rounds of exploring, keeping what succeeded, and fine-tuning on it
  eval     evaluate any model on held-out tasks: agentgym eval --model.path FOLDER --evaluate.horizon 20
  plan-horizon
           show a horizon schedule before it is used: agentgym plan-horizon --recipe textcraft-scaling
  compact  make a small model for tests and studies, taught by a scenario's oracle
  report   write report.html for a run folder: agentgym report runs/textcraft-demo
  results  write a page that compares runs with different seeds: agentgym results RUN RUN RUN --out page.md
  doctor   show versions, and for each scenario and engine whether it can run here
  data     put a scenario's real data into the cache: agentgym data deepsearch
  serve-retriever
           serve DeepSearch's retriever to other processes, in Search-R1's protocol

Each command explains itself: agentgym COMMAND --help"""


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command.

    Args:
        argv: Arguments; those of the process by default.

    Returns:
        Exit code: 0 done, 1 failed, 2 unknown command or option, 128 + n stopped by signal n.
    """
    # PyTorch's threads spin while they wait. On a machine that has other work they then take each other's cores:
    # ten times slower was measured with one busy neighbour on two cores. Read when PyTorch is imported.
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    arguments = list(sys.argv[1:] if argv is None else argv)
    commands: dict[str, Callable[[list[str]], int]] = {
        "demo": _demo,
        "train": _train,
        "sft": _sft,
        "dpo": _dpo,
        "evol": _evol,
        "eval": _eval,
        "plan-horizon": _plan_horizon,
        "compact": _compact,
        "report": _report,
        "results": _results,
        "doctor": _doctor,
        "data": _data,
        "serve-retriever": _serve_retriever,
    }
    if not arguments or arguments[0] in ("-h", "--help"):
        print(USAGE)
        return 0
    command = commands.get(arguments[0])
    if command is None:
        print(
            f"error: unknown command {arguments[0]!r}; accepted are {', '.join(commands)}.\n\n{USAGE}",
            file=sys.stderr,
        )
        return 2
    try:
        return command(arguments[1:])
    except KeyboardInterrupt:  # before or after what a command stops cleanly, as while PyTorch is imported
        print("stopped", file=sys.stderr)
        return 130
    except ModuleNotFoundError as error:
        if error.name is None or error.name.partition(".")[0] not in _EXTRA:
            raise
        print(
            f"error: `agentgym {arguments[0]}` needs the package {error.name}, which is not installed; run: "
            "pip install 'agentgym-suite[train]' (in a checkout: make install)",
            file=sys.stderr,
        )
        return 1


def _doctor(arguments: list[str]) -> int:
    if arguments:
        print("usage: agentgym doctor\n\nShow versions, and what can run here.")
        return 0 if arguments[0] in ("-h", "--help") else 2
    from agentgym_train.doctor import run_doctor

    return run_doctor()


def _train(arguments: list[str]) -> int:
    from agentgym_train.commands import train_command

    return train_command(arguments)


def _sft(arguments: list[str]) -> int:
    from agentgym_train.commands import sft_command

    return sft_command(arguments)


def _dpo(arguments: list[str]) -> int:
    from agentgym_train.commands import dpo_command

    return dpo_command(arguments)


def _evol(arguments: list[str]) -> int:
    from agentgym_train.commands import evol_command

    return evol_command(arguments)


def _eval(arguments: list[str]) -> int:
    from agentgym_train.commands import eval_command

    return eval_command(arguments)


def _plan_horizon(arguments: list[str]) -> int:
    from agentgym_train.plan_horizon import plan_horizon_command

    return plan_horizon_command(arguments)


def _compact(arguments: list[str]) -> int:
    from agentgym_train.compact import compact_command

    return compact_command(arguments)


def _demo(arguments: list[str]) -> int:
    from agentgym_train.commands import demo_command

    return demo_command(arguments)


def _data(arguments: list[str]) -> int:
    from agentgym_envs.deepsearch.commands import data_command

    return data_command(arguments)


def _serve_retriever(arguments: list[str]) -> int:
    from agentgym_envs.deepsearch.commands import serve_command

    return serve_command(arguments)


def _results(arguments: list[str]) -> int:
    from agentgym_train.commands import results_command

    return results_command(arguments)


def _report(arguments: list[str]) -> int:
    from agentgym_train.commands import report_command

    return report_command(arguments)


if __name__ == "__main__":
    sys.exit(main())

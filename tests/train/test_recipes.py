"""Every recipe: its configuration, its schedule at the stated steps, and its environments and tasks."""

from typing import Any

import gymnasium
import pytest

from agentgym_train.checks import check_config, make_schedule
from agentgym_train.config import (
    ConfigError,
    RunConfig,
    TrainingConfig,
    from_dict,
    load_recipe,
    recipe_data,
    recipe_names,
)
from agentgym_train.config_kinds import KINDS
from agentgym_train.task_pools import task_pools
from agentgym_wrappers import parse_reply

# Turns of the released stages and the steps at which each begins; the fixed horizon; the paper's rate and group size.
PAPER: dict[str, tuple[dict[int, int], int, float, int]] = {
    "textcraft": ({0: 10, 99: 10, 100: 20, 200: 30, 299: 30}, 20, 1e-6, 8),
    "babyai": ({0: 6, 99: 6, 100: 13, 200: 20, 299: 20}, 20, 1e-6, 8),
    "sciworld": ({0: 10, 99: 10, 100: 20, 200: 30, 299: 30}, 20, 1e-6, 8),
    "deepsearch": ({0: 5, 99: 5, 100: 8, 200: 10, 299: 10}, 4, 1e-6, 8),
    "webarena": ({0: 8, 79: 8, 80: 12, 160: 15, 239: 15}, 15, 5e-7, 4),
}


def load(name: str) -> RunConfig:
    return load_recipe(name, KINDS[recipe_data(name)["command"]])


@pytest.mark.parametrize("name", recipe_names())
def test_a_recipe_is_accepted_and_its_environments_and_tasks_exist(name: str) -> None:
    config = load(name)
    check_config(config)
    assert from_dict(config.to_dict(), type(config)) == config
    assert config.run_dir == f"runs/{name}"
    for spec in config.scenarios:
        pools = task_pools(config, spec)
        assert len(pools.test) == config.evaluate.tasks
        assert len(pools.train) >= config.groups[0]
        env: gymnasium.Env[str, str] = gymnasium.make(spec.id, **spec.options)
        scenario = type(env.unwrapped).scenario  # type: ignore[attr-defined]
        env.close()
        assert spec.id.startswith(f"AgentGym/{scenario}")
        if spec.reply_instruction:  # the example is an action that the parser finds
            example = spec.reply_instruction.rsplit("'", 2)[1]
            assert parse_reply(f"I think so.\n{example}", spec.formats) == example.removeprefix("Action: ")


@pytest.mark.parametrize("scenario", PAPER)
def test_the_papers_settings(scenario: str) -> None:
    stages, turns, lr, samples = PAPER[scenario]
    scaling, fixed = (load_recipe(f"{scenario}-{kind}") for kind in ("scaling", "fixed"))
    assert {step: make_schedule(scaling).horizon_at(step) for step in stages} == stages
    assert {make_schedule(fixed).horizon_at(step) for step in (0, fixed.steps - 1)} == {turns}
    for config in (scaling, fixed):
        assert config.steps == max(stages) + 1
        assert (config.algorithm.kl_coef, config.rollout.temperature) == (1e-3, 1.0)
        assert (config.optimiser.lr, config.rollout.samples_per_task) == (lr, samples)
        assert config.warm_start.kind == "none"
    # They differ in nothing but the horizon.
    differing = {"run_dir", "horizon"}
    assert {key: value for key, value in scaling.to_dict().items() if key not in differing} == {
        key: value for key, value in fixed.to_dict().items() if key not in differing
    }


def test_the_mixed_recipe_gives_each_scenario_its_own_stages() -> None:
    config = load_recipe("mixed-scaling")
    assert [spec.title for spec in config.tasks] == ["TextCraft", "BabyAI", "SciWorld", "DeepSearch"]
    for spec in config.tasks:
        stages = PAPER[spec.title.lower()][0]
        schedule = make_schedule(config, spec, "tasks")
        assert {step: schedule.horizon_at(step) for step in stages} == stages


def test_each_command_names_its_own_recipes() -> None:
    by_command = {command: recipe_names(command) for command in KINDS}
    assert sorted(name for names in by_command.values() for name in names) == recipe_names()
    assert by_command["sft"] == ["textcraft-sft"]
    assert by_command["evol"] == ["textcraft-evol"]
    assert by_command["dpo"] == ["textcraft-dpo"]
    with pytest.raises(ConfigError, match="command: 'sft' is for `agentgym sft`, not for `agentgym train`"):
        load_recipe("textcraft-sft")


def test_a_dpo_recipe_follows_from_an_evol_recipe() -> None:
    evol: Any = load("textcraft-evol")
    dpo: Any = load("textcraft-dpo")
    assert dpo.pairs.path == f"{evol.run_dir}/trajectories.jsonl"
    assert (dpo.env, dpo.evaluate.horizon) == (evol.env, evol.evaluate.horizon)
    assert isinstance(dpo, TrainingConfig)

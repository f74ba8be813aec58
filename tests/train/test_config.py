"""The configuration is checked key by key, and is the same as YAML, as an object and on the command line."""

from pathlib import Path
from typing import Any

import pytest
import yaml

from agentgym_train.config import Config, ConfigError, RunConfig, adopt, from_dict, load_recipe, stored_config
from agentgym_train.config_kinds import KINDS, EvalConfig, SFTConfig


def test_round_trip() -> None:
    config = Config(
        steps=7,
        horizon={"kind": "staged", "stages": [[0.0, 4], [0.5, 8]]},
    )
    config.env.subsets = ("Depth1", "Depth2")
    config.env.options = {"reward": "outcome"}
    config.optimiser.betas = (0.8, 0.99)
    config.algorithm.kl_estimator = "k1"
    text = yaml.safe_dump(config.to_dict())
    assert from_dict(yaml.safe_load(text)) == config


def test_nothing_given_is_the_default() -> None:
    assert from_dict({}) == Config()


@pytest.mark.parametrize("kind", KINDS.values())
def test_each_kind_survives_being_stored_and_is_refused_as_another(kind: type[RunConfig], tmp_path: Path) -> None:
    config = kind(seed=3)
    (tmp_path / "config.yaml").write_text(yaml.safe_dump(config.to_dict()))
    assert stored_config(tmp_path, kind) == config
    for other in KINDS.values():
        if other is not kind:
            told = rf"a run of `agentgym {kind.command}`; continue it with: agentgym {kind.command} --resume"
            with pytest.raises(ConfigError, match=told):
                stored_config(tmp_path, other)


def test_a_configuration_without_a_command_is_for_the_command_that_reads_it(tmp_path: Path) -> None:
    assert from_dict({"epochs": 3}, SFTConfig).epochs == 3
    (tmp_path / "config.yaml").write_text("steps: 3")  # in a run's folder, `agentgym train` wrote it
    assert stored_config(tmp_path, Config).steps == 3


def test_a_section_keeps_the_defaults_of_its_kind() -> None:
    assert from_dict({"optimiser": {"weight_decay": 0.1}}, SFTConfig).optimiser.lr == SFTConfig().optimiser.lr
    assert from_dict({"optimiser": {"weight_decay": 0.1}}).optimiser.lr == Config().optimiser.lr


def test_an_evaluation_takes_over_what_it_has_in_common_with_a_training() -> None:
    config = Config(seed=4, steps=7)
    config.env.subsets, config.evaluate.horizon, config.rollout.max_context = ("Depth1",), 9, 999
    config.evaluate.every = 5
    taken = adopt(config.to_dict(), EvalConfig)
    assert (taken.seed, taken.env, taken.model) == (4, config.env, config.model)
    assert (taken.evaluate.horizon, taken.rollout.max_context) == (9, 999)


def test_a_recipe_may_be_a_file(tmp_path: Path) -> None:
    file = tmp_path / "mine.yaml"
    file.write_text("steps: 3\noptimiser: {lr: 5e-5}\n")  # YAML reads 5e-5 as a string
    config = load_recipe(str(file))
    assert (config.steps, config.optimiser.lr) == (3, 5e-5)
    file.write_text("")
    assert load_recipe(str(file)) == Config()


@pytest.mark.parametrize(
    ("data", "message"),
    [
        ({"step": 3}, r"unknown key step; accepted are run_dir, .*\. Did you mean steps\?"),
        ({"rollout": {"temprature": 1.0}}, r"unknown key rollout\.temprature; .* Did you mean rollout\.temperature\?"),
        ({"rollout": {"zzz": 1}}, r"unknown key rollout\.zzz; accepted are max_reply_tokens, [^?]*$"),
        ({"rollout": 3}, "rollout must be a mapping, not 3"),
        ({"steps": "many"}, "steps='many' is not accepted; give int"),
        ({"steps": 2.5}, "steps=2.5 is not accepted; give int"),
        ({"steps": True}, "steps=True is not accepted; give int"),
        ({"steps": None}, "steps=None is not accepted; give int"),
        ({"optimiser": {"lr": "fast"}}, r"optimiser\.lr='fast' is not accepted; give float"),
        ({"optimiser": {"lr": True}}, r"optimiser\.lr=True is not accepted; give float"),
        ({"optimiser": {"betas": [0.9]}}, r"optimiser\.betas takes 2 values, not \[0\.9\]"),
        ({"env": {"subsets": "Depth1"}}, r"env\.subsets='Depth1' is not accepted"),
        ({"env": {"subsets": [1]}}, r"env\.subsets=1 is not accepted; give str"),
        ({"env": {"options": []}}, r"env\.options=\[\] is not accepted"),
        ({"horizon": "long"}, "horizon='long' is not accepted; give one of: int or dict"),
        ({"evaluate": {"at_start": 1}}, r"evaluate\.at_start=1 is not accepted; give bool"),
        ({"warm_start": {"kind": "magic"}}, r"warm_start\.kind='magic' is not accepted; give one of: oracle, none"),
        ({"algorithm": {"kl_estimator": "k4"}}, r"kl_estimator='k4' is not accepted; give one of: k1, k2, k3"),
    ],
)
def test_what_is_wrong_is_named_with_what_is_accepted(data: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        from_dict(data)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (b"steps: [", "is not valid YAML"),
        (b"- steps", "must be a mapping, not ..steps"),
        (b"run_dir: caf\xe9", "is not UTF-8 text"),
        (b"env: {options: {day: 2001-13-45}}", "is not valid YAML: month must be"),
        (b"env: {options: &own {again: *own}}", "more than 32 levels, or an anchor that holds itself"),
        (b"horizon: {stages: " + 40 * b"[" + 40 * b"]" + b"}", "more than 32 levels"),
        (b"horizon: " + 5000 * b"[", "more than 32 levels"),
    ],
)
def test_a_file_that_is_no_configuration_is_refused(tmp_path: Path, text: bytes, message: str) -> None:
    file = tmp_path / "bad.yaml"
    file.write_bytes(text)
    with pytest.raises(ConfigError, match=message) as refused:
        load_recipe(str(file))
    assert "\n" not in str(refused.value)

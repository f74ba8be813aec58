"""The command line: help that teaches, and bad input that stops at start with one line and a remedy."""

import dataclasses
import json
import re
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

import pytest
from transformers import AutoModelForCausalLM, MistralConfig, MistralForCausalLM

from agentgym_train.cli import main
from agentgym_train.config import Config, load_recipe, recipe_names
from agentgym_train.models import load_tokenizer
from tests.train.conftest import CHATML
from tests.train.letters_env import LETTERS_ID
from tests.train.test_chat import NO_SYSTEM, STRIPS_THOUGHTS

SMALL = {
    "steps": 1,
    "horizon": 2,
    "env": {"id": LETTERS_ID},
    "warm_start": {"tasks": 2, "batch_size": 2},
    "rollout": {"tasks_per_step": 2, "samples_per_task": 4, "max_reply_tokens": 8},
    "evaluate": {"tasks": 2, "samples": 2, "horizon": 2},
}


@pytest.fixture
def recipe(tmp_path: Path, tiny_path: Path) -> Path:
    """A run of a second."""
    file = tmp_path / "small.json"  # JSON is YAML
    file.write_text(json.dumps({**SMALL, "run_dir": str(tmp_path / "run"), "model": {"path": str(tiny_path)}}))
    return file


def refused(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> str:
    """Runs a command that must fail; returns its one-line message."""
    capsys.readouterr()
    assert main(arguments) == 1
    captured = capsys.readouterr()
    assert "Traceback" not in captured.out + captured.err
    (line,) = [line for line in captured.err.splitlines() if not line.startswith(("Loading weights", "Writing model"))]
    assert line.startswith("error: ")
    return line


def option_names(section: Any = Config, prefix: str = "") -> Iterator[str]:
    for entry in dataclasses.fields(section):
        name = f"{prefix}{entry.name.replace('_', '-')}"
        if dataclasses.is_dataclass(kind := cast(Any, entry.default_factory)):
            yield from option_names(kind, f"{name}.")
        else:
            yield name


def test_help_explains_every_option(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as done:
        main(["train", "--help"])
    assert done.value.code == 0
    text = capsys.readouterr().out
    for name in recipe_names():
        assert name in text
    assert "agentgym train --resume RUN_DIR" in text
    lines = [line.strip("\u2502 ") for line in text.splitlines()]
    for name in option_names():
        (number,) = [n for n, line in enumerate(lines) if re.match(rf"--{re.escape(name)}\b(?![.-])", line)]
        assert re.match(r"[A-Za-z]\w+", lines[number + 1]), f"--{name} is not explained"


def test_the_command_alone_lists_the_commands(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([]) == 0
    assert main(["--help"]) == 0
    usage = capsys.readouterr().out
    assert all(name in usage for name in ("demo", "train", "report", "doctor"))
    assert main(["trian"]) == 2
    assert "unknown command 'trian'; accepted are demo, train, report, results, doctor" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--nope", "1"], "--nope"),
        (["--rollout.tasks-per-stp", "1"], "--rollout.tasks-per-step"),
        (["--steps", "many"], "many"),
        (["--algorithm.kl-estimator", "k4"], "k3"),
        (["--horizon", "{"], "horizon"),
    ],
)
def test_wrong_usage_exits_with_2(arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as done:
        main(["train", *arguments])
    assert done.value.code == 2
    assert message in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ("--env.id AgentGym/TextCraf-v0", r"env\.id='AgentGym/TextCraf-v0': .*Known here: AgentGym/TextCraft-"),
        ("--env.id nowhere:Toy-v0", r"env\.id='nowhere:Toy-v0': No module named 'nowhere'.*Known here"),
        ("--env.id CartPole-v1", r"env\.id='CartPole-v1' is no text environment"),
        ("--env.options '{colour: red}'", r"env\.options=\{'colour': 'red'\}: .*colour"),
        ("--env.options '{tasks: [letters_99]}'", r"no task 'letters_99'; accepted are 'letters_0' to 'letters_11'"),
        ("--env.options '{tasks: []}'", r"holds no tasks; give at least one id"),
        ("--env.subsets Vowel", r"env\.subsets: Letters: unknown subset 'Vowel'; accepted are Vowels, Consonants"),
        ("--env.formats xml", r"env\.formats=\['xml'\]: unknown action format 'xml'; accepted are tags, react"),
        ("--warm-start.tasks 500", r"9 training tasks .*warm_start\.tasks=500 leaves 0 .*Lower one of them"),
        ("--evaluate.tasks 50", r"evaluate\.tasks=50, but Toy/Letters-v0 has 3 test tasks"),
        ("--evaluate.tasks 0", r"evaluate\.tasks=0 is not accepted; give at least 1"),
        ("--steps 0", r"steps=0 is not accepted; give at least 1"),
        ("--rollout.samples-per-task 1", r"samples_per_task=1 is not accepted: GRPO compares .* at least 2"),
        ("--rollout.temperature 0", r"rollout\.temperature=0\.0 is not accepted; .* above 0"),
        ("--rollout.temperature nan", r"rollout\.temperature=nan is not accepted"),
        ("--evaluate.temperature -1", r"evaluate\.temperature=-1\.0 is not accepted; give at least 0"),
        ("--optimiser.lr -1", r"optimiser\.lr=-1\.0 is not accepted; give more than 0"),
        ("--optimiser.lr nan", r"optimiser\.lr=nan is not accepted; give more than 0"),
        ("--optimiser.betas 0.9 1", r"optimiser\.betas\[1\]=1\.0 is not accepted"),
        ("--algorithm.clip-low 2", r"algorithm\.clip_low=2\.0 is not accepted; give more than 0 and at most 1"),
        ("--algorithm.kl-coef -0.1", r"algorithm\.kl_coef=-0\.1 is not accepted; give at least 0"),
        ("--max-error-share 2", r"max_error_share=2\.0 is not accepted; give at least 0 and at most 1"),
        ("--horizon 0", r"horizon=0: .*at least 1"),
        ("--horizon long", r"horizon='long': "),
        ("--horizon '{kind: linaer}'", r"kind 'linaer' is unknown; accepted are fixed, linear, staged.*'linear'"),
        ("--model.device banana", r"model\.device='banana' cannot be used here .*give auto, cpu"),
        ("--model.path ./missing", r"model\.path='\./missing' is no model folder .*give the folder of a Hugging Face"),
        ("--model.path someone/something", r"model\.path='someone/something' holds no tokenizer that can be loaded"),
        ("--model.path smollm2-135m-instruct", r"the demo's model is not at .* run: make demo-model"),
        ("--model.chat-template missing.jinja", r"model\.chat_template='missing\.jinja' is no file"),
    ],
)
def test_bad_input_stops_at_start(
    arguments: str,
    message: str,
    recipe: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("AGENTGYM_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    assert re.search(message, refused(["train", "--recipe", str(recipe), *shlex.split(arguments)], capsys))
    assert not (tmp_path / "run" / "config.yaml").exists()  # the corrected command may use the folder


@pytest.mark.parametrize(
    ("template", "message"),
    [
        (None, "has no chat template, .* model.chat_template"),
        (STRIPS_THOUGHTS, "rewrites earlier turns .* model.chat_template"),
        (NO_SYSTEM, "System role not supported.* model.chat_template"),
    ],
)
def test_a_model_whose_template_cannot_be_used_is_refused(
    template: str | None,
    message: str,
    recipe: Path,
    tiny_path: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    path = tmp_path / "model"
    AutoModelForCausalLM.from_pretrained(tiny_path).save_pretrained(path)
    tokenizer = load_tokenizer(str(tiny_path))
    tokenizer.chat_template = template
    tokenizer.save_pretrained(path)
    start = ["train", "--recipe", str(recipe), "--model.path", str(path)]
    assert re.search(message, refused(start, capsys))
    # The remedy that the message names helps, in the same run folder.
    file = tmp_path / "chatml.jinja"
    file.write_text(CHATML)
    assert main([*start, "--model.chat-template", str(file)]) == 0


def test_model_folders_that_are_not_whole_are_refused(
    recipe: Path, tiny_path: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    start = ["train", "--recipe", str(recipe), "--model.path", str(tmp_path / "model")]
    load_tokenizer(str(tiny_path)).save_pretrained(tmp_path / "model")
    assert "is no model folder (it has no config.json)" in refused(start, capsys)
    AutoModelForCausalLM.from_pretrained(tiny_path).config.save_pretrained(tmp_path / "model")
    assert "cannot be loaded as a causal language model" in refused(start, capsys)


def test_a_model_that_the_engine_cannot_sample_with_is_refused(
    recipe: Path, tiny_path: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    shape = {"hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2}
    config = MistralConfig(vocab_size=512, num_key_value_heads=1, sliding_window=8, **shape)  # type: ignore[arg-type]
    MistralForCausalLM(config).save_pretrained(tmp_path / "model")
    load_tokenizer(str(tiny_path)).save_pretrained(tmp_path / "model")
    message = refused(["train", "--recipe", str(recipe), "--model.path", str(tmp_path / "model")], capsys)
    assert re.search(r"model\.path=.*sliding_attention.* full attention only", message)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--recipe", "textcraft-dmeo"], "--recipe 'textcraft-dmeo' is neither a recipe of the package"),
        (["--recipe"], "--recipe needs a value"),
        (["--recipe", "--steps"], "--recipe needs a value"),
        (["--resume", "nowhere"], "there is no run to resume in nowhere"),
        (["--resume", "nowhere", "--steps", "3"], "--resume continues a run with its own configuration; --steps 3"),
        (["--resume=nowhere", "--recipe=textcraft-demo"], "--resume continues a run with its own configuration"),
    ],
)
def test_recipes_and_runs_that_do_not_exist(
    arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert message in refused(["train", *arguments], capsys)


def test_a_folder_that_holds_a_run_is_not_overwritten(recipe: Path, capsys: pytest.CaptureFixture[str]) -> None:
    command = ["train", "--recipe", str(recipe)]
    assert main(command) == 0
    run = Path(load_recipe(str(recipe)).run_dir)
    before = (run / "metrics.jsonl").read_bytes()
    capsys.readouterr()
    assert re.search(r"already holds a run\. Continue it with: agentgym train --resume", refused(command, capsys))
    # A finished run has nothing left to do, and nothing is done twice.
    assert main(["train", "--resume", str(run)]) == 0
    assert (run / "metrics.jsonl").read_bytes() == before


def test_the_command_line_overrides_the_recipe(recipe: Path, tmp_path: Path) -> None:
    run = tmp_path / "other"
    given = ["--run-dir", str(run), "--steps", "2", "--env.subsets", "Vowels", "--horizon", "{kind: fixed, turns: 3}"]
    assert main(["train", f"--recipe={recipe}", *given, "--warm-start.tasks", "1", "--evaluate.tasks", "1"]) == 0
    config = load_recipe(str(run / "config.yaml"))
    assert (config.steps, config.env.subsets, config.horizon) == (2, ("Vowels",), {"kind": "fixed", "turns": 3})
    assert config.rollout.samples_per_task == 4


def test_the_report_command(recipe: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert "is not a run folder" in refused(["report", str(tmp_path / "run")], capsys)
    assert main(["train", "--recipe", str(recipe)]) == 0
    (tmp_path / "run" / "report.html").unlink()
    assert main(["report", str(tmp_path / "run")]) == 0
    assert (tmp_path / "run" / "report.html").is_file()

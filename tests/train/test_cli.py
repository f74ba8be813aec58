"""The command line: help that teaches, and bad input that stops at start with one line and a remedy."""

import dataclasses
import json
import re
import shlex
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from transformers import AutoModelForCausalLM, MistralConfig, MistralForCausalLM

from agentgym_train.cli import main
from agentgym_train.config import load_recipe, recipe_names
from agentgym_train.config_kinds import KINDS
from agentgym_train.models import load_tokenizer
from agentgym_train.terminal import Terminal
from tests.train.conftest import CHATML
from tests.train.letters_env import BLOCKED_ID, LETTERS_ID
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


def option_names(section: Any, prefix: str = "") -> Iterator[str]:
    for entry in dataclasses.fields(section):
        name = f"{prefix}{entry.name.replace('_', '-')}"
        if dataclasses.is_dataclass(value := getattr(section(), entry.name)):
            yield from option_names(type(value), f"{name}.")
        else:
            yield name


@pytest.mark.parametrize("command", KINDS)
def test_help_explains_every_option(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as done:
        main([command, "--help"])
    assert done.value.code == 0
    text = capsys.readouterr().out
    for name in recipe_names(command):
        assert name in text
    taught = "agentgym eval --run RUN_DIR" if command == "eval" else f"agentgym {command} --resume RUN_DIR"
    assert taught in text
    lines = [line.strip("\u2502 ") for line in text.splitlines()]
    for name in option_names(KINDS[command]):
        (number,) = [n for n, line in enumerate(lines) if re.match(rf"--{re.escape(name)}\b(?![.-])", line)]
        beside = re.search(r"\s{2,}[A-Z]\w+", lines[number])  # there is room for a short one
        assert beside or re.match(r"[A-Za-z]\w+", lines[number + 1]), f"--{name} is not explained"


def test_the_command_alone_lists_the_commands(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([]) == 0
    assert main(["--help"]) == 0
    usage = capsys.readouterr().out
    commands = ("demo", "train", "sft", "dpo", "evol", "eval", "plan-horizon", "compact", "report", "results", "doctor")
    assert all(f"\n  {name} " in usage or f"\n  {name}\n" in usage for name in commands)
    assert main(["trian"]) == 2
    assert f"unknown command 'trian'; accepted are {', '.join(commands)}" in capsys.readouterr().err


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
        ("--env.id AgentGym/TextCraf-v0", r"env\.id='AgentGym/TextCraf-v0': .*Known here: .*AgentGym/TextCraft-"),
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
        ("--rollout.temperature 0", r"rollout\.temperature=0\.0 is not accepted; give more than 0"),
        ("--rollout.temperature nan", r"rollout\.temperature=nan is not accepted"),
        ("--evaluate.temperature -1", r"evaluate\.temperature=-1\.0 is not accepted; give at least 0"),
        ("--optimiser.lr -1", r"optimiser\.lr=-1\.0 is not accepted; give more than 0"),
        ("--optimiser.lr nan", r"optimiser\.lr=nan is not accepted; give more than 0"),
        ("--optimiser.lr inf", r"optimiser\.lr=inf is not accepted; give more than 0, but finite"),
        ("--rollout.temperature inf", r"rollout\.temperature=inf is not accepted; give more than 0, but finite"),
        (
            f"--env.id {BLOCKED_ID}",
            r"env: Toy/BlockedLetters-v0 cannot begin its task letters_\d+: LookupError: .*gone out",
        ),
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
    assert re.search(r"engine\.kind=hf: .*sliding_attention.* full attention only", message)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--recipe", "textcraft-dmeo"], "--recipe 'textcraft-dmeo' is neither a recipe of the package"),
        (["--recipe"], "--recipe needs a value"),
        (["--recipe", "--steps"], "--recipe needs a value"),
        (["--recipe="], "--recipe needs a value"),
        (["--resume", ""], "--resume needs a value"),
        (["--resume", "nowhere", "--steps="], "--steps needs a value"),
        (["--recipe", "x" * 300], "is neither a recipe of the package"),
        (["--resume", "nowhere"], "there is no run in nowhere"),
        (["--resume", "nowhere", "--seed", "3"], "--resume continues a run with its own configuration; --seed 3"),
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


@pytest.mark.parametrize(
    "left", ["checkpoints/step-000001-train/", "reference/", "metrics.jsonl", "trajectories.jsonl"]
)
def test_what_is_left_of_a_run_is_not_continued_unasked(
    left: str, recipe: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "run" / left
    path.parent.mkdir(parents=True)
    if left.endswith("/"):
        path.mkdir()
    else:
        path.write_text("{}\n")
    message = refused(["train", "--recipe", str(recipe)], capsys)
    assert f"holds {left.split('/')[0]} of another run" in message
    assert path.is_dir() or path.read_text() == "{}\n"
    assert not (tmp_path / "run" / "config.yaml").exists()


@pytest.mark.parametrize("place", ["file", "file/run", "/proc/run", "x" * 300])
def test_a_folder_that_cannot_be_written_to_is_refused(
    place: str, recipe: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "file").write_text("mine")
    message = refused(["train", "--recipe", str(recipe), "--run-dir", str(tmp_path / place)], capsys)
    assert "cannot be used" in message
    assert (tmp_path / "file").read_text() == "mine"


def test_a_start_that_fails_leaves_no_run_behind(
    recipe: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "tensorboard").write_text("")
    assert "cannot be used" in refused(["train", "--recipe", str(recipe)], capsys)
    (tmp_path / "run" / "tensorboard").unlink()
    assert main(["train", "--recipe", str(recipe)]) == 0


def test_an_empty_folder_name_is_refused(
    recipe: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    here = tmp_path / "here"
    here.mkdir()
    monkeypatch.chdir(here)
    for command in (["train", "--recipe", str(recipe)], ["demo", "--quick"]):
        assert "run_dir='' is not accepted" in refused([*command, "--run-dir", ""], capsys)
    assert not list(here.iterdir())


def test_brackets_and_colons_in_a_path_are_no_markup(
    recipe: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = tmp_path / "a[/b]c:smile:"
    assert main(["train", "--recipe", str(recipe), "--run-dir", str(run)]) == 0
    assert f"run folder: {run}\n" in capsys.readouterr().out


def test_a_stored_configuration_that_is_damaged_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for text, message in ((b"steps: [", "is not valid YAML"), (b"", "must be a mapping"), (b"\xff\xfe", "not UTF-8")):
        (tmp_path / "config.yaml").write_bytes(text)
        assert message in refused(["train", "--resume", str(tmp_path)], capsys)


def test_the_demo_never_touches_an_earlier_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("AGENTGYM_CACHE", str(tmp_path / "cache"))  # without the model: each demo ends at once
    run = Path(load_recipe("textcraft-demo-quick").run_dir)
    run.mkdir(parents=True)
    (run / "config.yaml").write_text("mine")
    for number in (2, 3):
        assert main(["demo", "--quick"]) == 1
        captured = capsys.readouterr()
        assert f"run folder: {run}-{number}\n" in captured.out
        assert "make demo-model" in captured.err
    assert "already holds a run" in refused(["demo", "--quick", "--run-dir", str(run)], capsys)
    assert (run / "config.yaml").read_text() == "mine"


def test_ctrl_c_while_the_report_is_written(
    recipe: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("agentgym_train.curves.plot_seconds", lambda _: signal.raise_signal(signal.SIGINT))
    assert main(["train", "--recipe", str(recipe)]) == 130
    captured = capsys.readouterr()
    assert "held-out success" in captured.out
    assert f"the run is finished. Write its report with: agentgym report {tmp_path / 'run'}" in captured.err
    assert json.loads((tmp_path / "run" / "summary.json").read_text())["status"] == "finished"


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


def test_ctrl_c_while_pytorch_is_imported_is_one_line(tmp_path: Path) -> None:
    program = f"""
import signal, sys
from agentgym_train.cli import main

class Finder:
    def find_spec(self, name, path=None, target=None):
        if name == "torch":
            signal.raise_signal(signal.SIGINT)

signal.signal(signal.SIGINT, signal.default_int_handler)
sys.meta_path.insert(0, Finder())
sys.exit(main(["train", "--run-dir", {str(tmp_path / "run")!r}]))
"""
    ended = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=120)
    assert (ended.returncode, ended.stderr) == (130, "stopped\n")
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(("wait", "lines"), [(0.0, ["evaluation: 1 of 3", "evaluation: 2 of 3"]), (3600.0, [])])
def test_a_log_tells_now_and_then_how_far_long_work_is(
    wait: float, lines: list[str], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("agentgym_train.terminal._TELL_EVERY_S", wait)
    with Terminal().bar("evaluation", 3) as advance:
        for _ in range(3):
            advance()
    assert [line.partition(" after ")[0] for line in capsys.readouterr().out.splitlines()] == lines

"""TRL's own trainers on the environments: what it is given is exact, and its tools reach the environment."""

from __future__ import annotations

import importlib.util
import inspect
import json
import os
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import torch

os.environ["TRL_EXPERIMENTAL_SILENCE"] = "1"
pytest.importorskip("trl", reason="pip install 'agentgym-suite[trl]'")
pytestmark = pytest.mark.filterwarnings("ignore")  # TRL warns of other libraries' versions and deprecations
ROOT = Path(__file__).parents[2]


def load(name: str, folder: str = "examples") -> ModuleType:
    spec = importlib.util.spec_from_file_location(name, ROOT / folder / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def example() -> ModuleType:
    return load("trl_grpo")


def test_grpo_and_sft_run_by_trl_end_to_end(
    example: ModuleType, tiny_path: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    sizes = "--demonstrations 2 --steps 2 --groups 1 --generations 2 --turns 2 --evaluate 1".split()
    example.main(["--model", str(tiny_path), "--folder", str(tmp_path), *sizes])
    assert "step 2: reward" in capsys.readouterr().out
    rows = [json.loads(line) for line in (tmp_path / "log.jsonl").read_text().splitlines()]
    assert [row["step"] for row in rows if "reward" in row] == [1, 2]
    assert (tmp_path / "model" / "config.json").is_file()
    held_out = [row for row in rows if "when" in row]
    assert [(row["when"], row["episodes"]) for row in held_out] == [("before", 38), ("after", 38)]  # the test split
    assert all(0 <= row["held_out_success"] <= 1 for row in held_out)
    page = load("trl_results", "scripts").page(rows)
    last = [row for row in rows if "reward" in row][-1]
    assert f"| 2 | {last['reward']:.3f} | {last['success']:.3f} | {last['loss']:.3f} |" in page
    assert f"**{held_out[1]['held_out_success']:.3f}** after GRPO" in page


def test_what_trl_is_given_is_what_was_sampled(example: ModuleType, tiny_path: Path) -> None:
    """The model's own log-probability of each sampled token, in its place, is the one that the engine reported."""
    from functools import partial

    from agentgym_train.chat import Chat
    from agentgym_train.engines.hf import HFEngine
    from agentgym_train.models import load_model, load_tokenizer, stop_tokens
    from agentgym_train.rollout import RolloutRunner
    from agentgym_wrappers import ActionParser, FixedHorizon, HorizonCurriculum, SubprocVectorEnv

    model, tokenizer = load_model(str(tiny_path)), load_tokenizer(str(tiny_path))
    chat = Chat(tokenizer, stop_tokens(model))
    engine = HFEngine(load_model(str(tiny_path)), chat.stop_tokens)
    wrappers: list[Any] = [ActionParser, partial(HorizonCurriculum, schedule=FixedHorizon(3))]
    trainer: Any = SimpleNamespace(
        accelerator=SimpleNamespace(unwrap_model=lambda model: model),
        model=model,
        state=SimpleNamespace(global_step=0),
        args=SimpleNamespace(seed=0),
        temperature=1.0,
    )
    with SubprocVectorEnv.make(example.ENV_ID, 4, env_wrappers=wrappers, autoreset_mode="Disabled") as vec:
        runner = RolloutRunner(vec, engine, chat, max_reply_tokens=8, max_context=2048)
        rollout_func = example.make_rollout_func(runner, engine, turns=3)
        given = rollout_func(["textcraft_0", "textcraft_0", "textcraft_1", "textcraft_1"], trainer)
    assert given["prompt_ids"][0] == given["prompt_ids"][1] != given["prompt_ids"][2]
    for prompt, completion, mask, logprobs in zip(
        given["prompt_ids"], given["completion_ids"], given["env_mask"], given["logprobs"], strict=True
    ):
        assert len(completion) == len(mask) == len(logprobs)
        assert mask[0] == 1  # the prompt ends where the first reply begins
        assert 0 in mask  # the environment's answers are in between
        with torch.no_grad():
            logits = model(torch.tensor([[*prompt, *completion]])).logits[0, len(prompt) - 1 : -1]
        own = logits.log_softmax(-1)[torch.arange(len(completion)), torch.tensor(completion)]
        sampled = torch.tensor(mask, dtype=torch.bool)
        torch.testing.assert_close(own[sampled], torch.tensor(logprobs)[sampled], atol=1e-4, rtol=0.0)


def test_trl_plays_an_episode_by_tool_calls(tiny_path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """TRL's loop with replies that call tools: what it sees is the environment's text, what it pays is its reward."""
    import datasets
    import trl

    from agentgym_train.models import load_model, load_tokenizer
    from agentgym_wrappers.trl import CHATML_TOOLS, CHATML_TOOLS_RESPONSE, make_trl_environment

    tokenizer = load_tokenizer(str(tiny_path))
    tokenizer.chat_template = CHATML_TOOLS
    tokenizer.response_template = CHATML_TOOLS_RESPONSE
    settings = trl.GRPOConfig(  # type: ignore[attr-defined]  # trl imports lazily
        str(tmp_path),
        max_steps=1,
        num_generations=2,
        per_device_train_batch_size=2,
        max_completion_length=1024,
        gradient_checkpointing=False,
        save_strategy="no",
        report_to=[],
        use_cpu=True,
        bf16=False,
    )
    environment = make_trl_environment("AgentGym/TextCraft-v0", turns=4)
    prompt = [{"role": "user", "content": "Craft the goal."}]
    trainer = trl.GRPOTrainer(  # type: ignore[attr-defined]
        load_model(str(tiny_path)),
        args=settings,
        train_dataset=datasets.Dataset.from_list([{"prompt": prompt, "task": "textcraft_0", "seed": 0}]),
        processing_class=tokenizer,
        environment_factory=environment,
    )
    assert sorted(tool.__name__ for tool in trainer.tools) == ["craft", "get", "inventory"]
    calls = [
        '{"name": "get", "arguments": {"count": 1, "item": "acacia logs"}}',
        '{"name": "craft", "arguments": {"count": 4, "item": "acacia planks", "ingredients": "1 acacia logs"}}',
    ]
    replies = [tokenizer.encode(f"<tool_call>{call}</tool_call><|im_end|>") for call in calls]
    replies.append(tokenizer.encode("Done.<|im_end|>"))
    seen: list[str] = []

    def generate(prompt_ids: list[list[int]], *_: Any, **__: Any) -> tuple[list[list[int]], None]:
        turn = len(seen)
        seen.append(str(tokenizer.decode(prompt_ids[0])))
        return [list(replies[turn]) for _ in prompt_ids], None

    monkeypatch.setattr(trainer, "_generate_single_turn", generate)
    trainer.train()
    assert "Goal: craft acacia planks." in seen[0]
    assert "<tool_response>Got 1 acacia logs</tool_response>" in seen[1]
    assert "<tool_response>Crafted 4 minecraft:acacia_planks</tool_response>" in seen[2]
    assert trainer.state.log_history[0]["reward"] == 1.0
    assert trainer.state.log_history[0]["tools/failure_frequency"] == 0.0


def test_the_example_with_tools_runs(tiny_path: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    sizes = ["--steps", "1", "--generations", "2", "--tokens", "24", "--folder", str(tmp_path)]
    load("trl_tools").main(["--model", str(tiny_path), *sizes])
    printed = capsys.readouterr().out
    assert "tools: craft, get, inventory" in printed
    assert "step 1: reward 0.00" in printed


def test_tools_are_the_scenarios_verbs() -> None:
    """For every scenario, since a schema is made of each docstring."""
    from transformers.utils.chat_template_utils import get_json_schema

    from agentgym_wrappers.trl import make_trl_environment

    for name in ("TextCraft", "BabyAI", "DeepSearch"):
        kind = make_trl_environment(f"AgentGym/{name}-v0")
        environment = kind()
        tools = [
            getattr(environment, method)
            for method, _ in inspect.getmembers(kind, predicate=inspect.isfunction)
            if method not in ("reset", "get_reward") and not method.startswith("_")
        ]
        verbs = environment._env.unwrapped.verbs
        assert {tool.__name__ for tool in tools} == {verb.__name__ for verb in verbs}
        for tool in tools:
            schema = get_json_schema(tool)["function"]
            assert "Examples" not in json.dumps(schema)
            assert list(schema["parameters"]["properties"]) == list(inspect.signature(tool).parameters)


def test_tool_calls_that_are_wrong_spend_turns_and_the_end_is_said() -> None:
    from agentgym_wrappers.trl import make_trl_environment

    environment = make_trl_environment("AgentGym/TextCraft-Depth1-v0", turns=3)()
    with pytest.raises(ValueError, match="no episode was begun"):
        environment.inventory()
    with pytest.raises(ValueError, match="neither a 'seed' nor a 'task'"):
        environment.reset(prompt="x")
    environment.reset(task=0, seed=None, prompt="x")
    assert "missing a required argument: 'item'" in environment.get(count=1)
    assert "Could not execute get two" in environment.get(count="two", item="acacia logs")
    assert environment.get(count=1, item="acacia logs") == "Got 1 acacia logs"
    with pytest.raises(ValueError, match=r"Game over: the episode has ended \(horizon\)"):
        environment.inventory()
    assert environment.get_reward() == 0.0
    environment.reset(seed=1, horizon=1)
    environment.inventory()
    with pytest.raises(ValueError, match="Game over"):
        environment.inventory()


def test_environments_of_others_are_refused() -> None:
    from agentgym_wrappers.trl import make_trl_environment

    with pytest.raises(ValueError, match="CartPole"):
        make_trl_environment("CartPole-v1")

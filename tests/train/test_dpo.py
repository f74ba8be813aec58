"""Direct preference optimisation: the loss by hand, the gradient for any packing, the pairs, and whole runs."""

import json
import math
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import PreTrainedModel

from agentgym_train.chat import Chat
from agentgym_train.cli import main
from agentgym_train.config import ConfigError, OptimiserConfig, from_dict
from agentgym_train.config_kinds import DPOConfig
from agentgym_train.dpo import DPO, preference_loss, sequence_logprobs, update_preferences
from agentgym_train.packing import pack
from agentgym_train.preferences import pair_up, read_pairs
from agentgym_train.run import drive
from agentgym_train.training_data import Record, messages_of, write_down
from agentgym_train.trajectory import Episode, Trajectory
from agentgym_train.update import make_optimiser
from tests.train.small_runs import assert_same_run, press_ctrl_c, rows_of, settings
from tests.train.test_sft import talk, write_lines

FLOAT32 = OptimiserConfig(lr=1e-3, precision="float32", max_grad_norm=1e9)


def pair(better: str, worse: str, number: int = 0) -> dict[str, Any]:
    chosen, rejected = talk(better, number)["messages"], talk(worse, number)["messages"]
    return {"prompt": chosen[:2], "chosen": chosen[2:], "rejected": rejected[2:]}


def dpo_settings(tiny_path: Path, run: Path, data: Path, **changes: Any) -> dict[str, Any]:
    plain = settings(tiny_path, run, env={"subsets": ["Vowels"]}, evaluate={"tasks": 1, "samples": 8}, batch_size=4)
    return {**plain, "pairs": {"path": str(data)}, "optimiser": {**plain["optimiser"], "lr": 1e-3}, **changes}


def run_dpo(plain: dict[str, Any]) -> dict[str, Any]:
    return drive(DPO, from_dict(plain, DPOConfig), False, None)


def test_the_loss_by_hand() -> None:
    logprobs = torch.tensor([[-10.0, -12.0], [-5.0, -5.0]])
    reference = torch.tensor([[-11.0, -11.0], [-5.0, -5.0]])
    losses, rewards = preference_loss(logprobs, reference, beta=0.5)
    # Pair 1: 0.5 ((-10 + 11) - (-12 + 11)) = 1, so -log(1 / (1 + e^-1)). Pair 2: nothing has moved, so log 2.
    assert losses.tolist() == pytest.approx([math.log(1 + math.exp(-1)), math.log(2)])
    assert rewards.tolist() == [[0.5, -0.5], [0.0, 0.0]]


@pytest.mark.parametrize("token_budget", [1, 200, 4096])
@pytest.mark.parametrize("share_prompts", [True, False])
def test_the_gradient_is_that_of_the_formula_for_any_packing(
    model: PreTrainedModel, chat: Chat, token_budget: int, share_prompts: bool
) -> None:
    talks = [[talk(reply, number) for number, reply in enumerate(side)] for side in (("ooo", "oi"), ("ae", "iiii"))]
    both = [write_down(messages_of(Record("t", one)), chat, "t") for side in talks for one in side]
    reference = torch.tensor([[-40.0, -38.0], [-30.0, -33.0]])
    lengths = torch.tensor([trajectory.sampled for trajectory in both]).view(2, 2).T

    sums = []
    for trajectory in both:  # one by one, with an ordinary forward pass
        tokens = torch.tensor([trajectory.tokens])
        logprobs = model(tokens).logits[0, :-1].log_softmax(-1).gather(-1, tokens[0, 1:, None])[:, 0]
        sums.append((logprobs * torch.tensor(trajectory.mask[1:])).sum())
    lp = torch.stack(sums).view(2, 2).T / lengths
    ref = reference / lengths
    margins = 2.0 * ((lp[:, 0] - ref[:, 0]) - (lp[:, 1] - ref[:, 1]))
    (-torch.nn.functional.logsigmoid(margins)).mean().backward()
    expected = {
        name: parameter.grad.clone() for name, parameter in model.named_parameters() if parameter.grad is not None
    }

    rows = pack(both, token_budget, share_prompts)
    metrics = update_preferences(
        model, make_optimiser(model, FLOAT32), rows, reference, lengths, 2.0, 0.0, FLOAT32, lambda: None
    )
    margins = margins.detach()
    assert metrics["loss"] == pytest.approx(float((-torch.nn.functional.logsigmoid(margins)).mean()), rel=1e-5)
    assert metrics["accuracy"] == pytest.approx(float((margins > 0).float().mean()))
    for name, parameter in model.named_parameters():
        assert parameter.grad is not None
        assert torch.allclose(parameter.grad, expected[name], atol=1e-5), name


def test_what_the_environment_wrote_has_no_part_in_a_log_probability(model: PreTrainedModel, chat: Chat) -> None:
    trajectory = write_down(messages_of(Record("t", talk("ooo"))), chat, "t")
    (total,) = sequence_logprobs(model, pack([trajectory], 4096), 1, "float32", lambda: None)
    tokens = torch.tensor([trajectory.tokens])
    logprobs = model(tokens).logits[0, :-1].log_softmax(-1).gather(-1, tokens[0, 1:, None])[:, 0]
    replies = [k for k, mask in enumerate(trajectory.mask) if mask]
    assert float(total) == pytest.approx(sum(float(logprobs[k - 1].detach()) for k in replies), rel=1e-5)
    assert len(replies) < len(trajectory.tokens) / 3


def test_it_learns_to_prefer_what_solves_a_held_out_task(tiny_path: Path, tmp_path: Path) -> None:
    data = write_lines(tmp_path / "pairs.jsonl", [pair("ooooo", "iiii", number) for number in range(4)])
    summary = run_dpo(dpo_settings(tiny_path, tmp_path / "run", data, epochs=12, checkpoint_every=0))
    rows = rows_of(tmp_path / "run", "dpo")
    assert len(rows) == summary["steps"] == 12
    assert rows[0]["loss"] == pytest.approx(math.log(2), abs=1e-4)  # the policy is the reference
    assert rows[0]["margin"] == pytest.approx(0, abs=1e-4)
    assert rows[-1]["accuracy"] == 1.0
    assert rows[-1]["margin"] > 1
    assert rows[-1]["loss"] < 0.4
    assert rows[-1]["reward/rejected"] < 0
    assert [row["name"] for row in rows_of(tmp_path / "run", "eval")] == ["before", "after"]


def test_a_run_that_is_stopped_goes_on_exactly_with_its_reference(
    tiny_path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    data = write_lines(
        tmp_path / "pairs.jsonl", [pair("ooo", "iii"), pair("o", "aa"), pair("oo", "ii"), pair("a", "i")]
    )
    changes: dict[str, Any] = {"batch_size": 2, "epochs": 2, "evaluate": {"tasks": 1, "samples": 1, "horizon": 1}}
    run_dpo(dpo_settings(tiny_path, tmp_path / "straight", data, **changes))
    run, recipe = tmp_path / "run", tmp_path / "recipe.json"
    recipe.write_text(json.dumps(dpo_settings(tiny_path, run, data, **changes)))
    with monkeypatch.context() as patch:
        press_ctrl_c(patch, after=3)
        assert main(["dpo", "--recipe", str(recipe)]) == 130
    assert f"agentgym dpo --resume {run}" in capsys.readouterr().out
    assert main(["dpo", "--resume", str(run)]) == 0
    assert_same_run(run, tmp_path / "straight")


def episode(task: str, sample: int, score: float) -> Trajectory:
    return Trajectory(Episode(task, 0, sample, 1, ""), score=score, tokens=[sample], mask=[1])


def test_the_best_is_paired_with_the_worst() -> None:
    group = [episode("t", sample, score) for sample, score in enumerate((0.5, 1.0, 0.0, 0.5, 0.2))]
    assert [(a.score, b.score) for a, b in pair_up(group)] == [(1.0, 0.0), (0.5, 0.2)]
    assert pair_up([episode("t", 0, 1.0), episode("t", 1, 1.0)]) == []
    assert pair_up(group[:1]) == []


def test_pairs_are_made_of_a_runs_episodes_of_one_task(chat: Chat, tmp_path: Path) -> None:
    def row(task: str, seed: int, sample: int, score: float, reply: str, **changes: Any) -> dict[str, Any]:
        turn = {"reply": reply, "finish": "stop", "observation": "ok"}
        identity = {"task": task, "seed": seed, "sample": sample, "score": score, "success": score == 1}
        return {**identity, "instruction": "i", "prompt": f"i\n\n{task}", "turns": [turn], "end": "horizon", **changes}

    rows = [
        row("a", 1, 0, 1.0, "good"),
        row("a", 1, 1, 0.0, "bad"),
        row("a", 2, 0, 0.0, "other seed"),  # another text to begin with
        row("b", 1, 0, 1.0, "same"),
        row("b", 1, 1, 0.5, "same"),
        row("c", 1, 0, 1.0, "held out"),
        row("d", 1, 0, 1.0, "broken", end="error"),
    ]
    left_out: Counter[str] = Counter()
    data = write_lines(tmp_path / "rows.jsonl", rows)
    (made,) = read_pairs(str(data), chat, {"c"}, left_out)
    assert [chat.decode(one.tokens[one.prompt_length :]) for one in made.trajectories] == ["good", "bad"]
    assert left_out == {
        "no difference between the two": 1,
        "episodes without one of another score beside them": 1,
        "episodes of held-out tasks": 1,
        "episodes that ended in an error": 1,
    }


@pytest.mark.parametrize(
    ("line", "message"),
    [
        (pair("ooo", "ooo"), "no pairs to train on; 1 left out: no difference between the two"),
        ({"chosen": talk("a", 1)["messages"], "rejected": talk("b", 2)["messages"]}, "begin with different prompts"),
        ({"chosen": talk("a")["messages"]}, "line 1 has chosen; accepted are chosen and rejected"),
        (
            {"chosen": talk("a"), "rejected": "b"},
            r"line 1, rejected has chosen, rejected; accepted are rejected, a list",
        ),
    ],
)
def test_pairs_that_cannot_be_compared_are_refused(
    line: dict[str, Any], message: str, tiny_path: Path, tmp_path: Path
) -> None:
    data = write_lines(tmp_path / "pairs.jsonl", [line])
    with pytest.raises(ConfigError, match=message):
        run_dpo(dpo_settings(tiny_path, tmp_path / "run", data))


def test_without_a_file_there_is_nothing_to_prefer(tiny_path: Path, tmp_path: Path) -> None:
    plain = {**dpo_settings(tiny_path, tmp_path / "run", tmp_path), "pairs": {"beta": 0.5}}
    with pytest.raises(ConfigError, match=r"pairs\.path='' is not accepted; give a file of pairs"):
        run_dpo(plain)

import json
import random
import re
from collections.abc import Callable
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml

from agentgym_train.config import Config, ModelConfig
from agentgym_train.curves import plot_entropy, plot_grad_norm, plot_kl, smooth
from agentgym_train.report import write_report
from agentgym_train.results import write_results_page
from agentgym_train.statistics import paired_bootstrap

TASKS = [f"textcraft_{index}" for index in range(0, 320, 10)]
STAGES = {0: 4, 20: 8, 40: 12}
STEPS = 60
NASTY = "<script>alert('x')</script> & \"quotes\" \ud800 </pre>"


def make_run(
    folder: Path, seed: int = 0, steps: int = STEPS, names: tuple[str, ...] = ("before", "between", "after")
) -> Path:
    """Writes a run folder as the trainer would, deterministic in its arguments.

    `steps` and `names` (the evaluations that have ended) cut a run short; it is finished when it has the
    evaluation after training.
    """
    rng = random.Random(f"run {seed}")
    folder.mkdir(parents=True)
    write_config(folder, Config(seed=seed, model=ModelConfig(path="tiny & small")))
    metrics: list[dict[str, Any]] = []
    episodes: list[dict[str, Any]] = []
    time = 1_700_000_000.0

    for step in range(20):
        time += 1.5
        loss = 2.4 * 0.85**step + 0.3 + 0.1 * rng.random()
        metrics.append({"step": step, "phase": "warm_start", "time": time, "loss": loss, "tokens": 700})
    if "before" in names:
        time += 40
        metrics.append(make_evaluation(0, "before", time, 0.42, rng, episodes))
    for step in range(steps):
        if step == STEPS // 2 and "between" in names:
            time += 40
            metrics.append(make_evaluation(step, "between", time, 0.58, rng, episodes))
        time += 9
        horizon = STAGES[max(start for start in STAGES if start <= step)]
        success = min(0.95, 0.4 + 0.45 * step / STEPS + 0.25 * (rng.random() - 0.5))
        metrics.append(
            {
                "step": step,
                "phase": "train",
                "time": time,
                "horizon": horizon,
                "reward/mean": success,
                "score/mean": success,
                "success/mean": success,
                "turns/mean": min(horizon, 3.2 + 1.6 * rng.random()),
                "tokens/sampled": 1000,
                "kl": 0.0004 * step + 0.002 * rng.random(),
                "entropy": 0.9 - 0.006 * step + 0.08 * rng.random(),
                "clip_fraction": 0.02 * rng.random(),
                "loss": 0.1 * (rng.random() - 0.5),
                "grad_norm": 1 + rng.random(),
                "groups/zero_variance": int(3 * rng.random()),
                "groups/total": 4,
                "padding_share": 0.125,
                "valid_action_share": 0.9,
                "cut_reply_share": 0.02,
                "seconds/rollout": 5.0,
                "seconds/update": 3.0,
                "seconds/reference": 1.0,
            }
        )
        episodes.append(make_episode(step, "train", "", "textcraft_5", step % 2 == 0, horizon))
    if "after" in names:
        time += 40
        metrics.append(make_evaluation(steps, "after", time, 0.71, rng, episodes))
        before, after = (
            next(row["success/by_task"] for row in metrics if row.get("name") == name) for name in ("before", "after")
        )
        gain, low, high = paired_bootstrap(before, after)
        summary = {
            "gain": gain,
            "gain_low": low,
            "gain_high": high,
            "before": sum(before.values()) / len(before),
            "after": sum(after.values()) / len(after),
            "env": "AgentGym/TextCraft-v0",
            "model": "tiny & small",
            "seed": seed,
            "steps": steps,
            "steps_without_update": 0,
            "seconds": {"warm_start": 30.0, "evaluate": 95.0, "rollout": 320.0, "update": 240.0},
            "horizon_eval": 12,
            "status": "finished",
        }
        (folder / "summary.json").write_text(json.dumps(summary))
    write_lines(folder / "metrics.jsonl", metrics)
    write_lines(folder / "trajectories.jsonl", episodes)
    return folder


def write_config(folder: Path, config: Config) -> None:
    (folder / "config.yaml").write_text(yaml.safe_dump(config.to_dict()))


def make_evaluation(
    step: int, name: str, time: float, level: float, rng: random.Random, episodes: list[dict[str, Any]]
) -> dict[str, Any]:
    by_task = {}
    for task in TASKS:
        solved = [rng.random() < level for _ in range(4)]
        # What an environment's fault cut short says nothing of the policy.
        episodes.append({**make_episode(step, "eval", name, task, False, 12), "end": "error", "turns": []})
        episodes += [make_episode(step, "eval", name, task, success, 12) for success in solved]
        by_task[task] = sum(solved) / 4
    mean = sum(by_task.values()) / len(TASKS)
    return {
        "step": step,
        "phase": "eval",
        "name": name,
        "time": time,
        "horizon": 12,
        "temperature": 1.0,
        "success/mean": mean,
        "score/mean": mean,
        "turns/mean": 4.4,
        "valid_action_share": 0.8125,
        "episodes": 4 * len(TASKS),
        "tasks": len(TASKS),
        "samples": 4,
        "success/by_task": by_task,
    }


def make_episode(step: int, phase: str, name: str, task: str, success: bool, horizon: int) -> dict[str, Any]:
    turns = [
        make_turn("I need planks first.\nAction: get 2 oak log", "get 2 oak log", "Got 2 oak log"),
        make_turn(
            "craft 3 oak planks using 1 oak log",
            "craft 3 oak planks using 1 oak log",
            "Could not find a valid recipe for oak planks: 1 oak log makes 4 oak planks, not 3.",
            valid=False,
        ),
    ]
    if success:
        craft = "craft 4 oak planks using 1 oak log"
        turns.append(make_turn(craft, craft, "Crafted 4 minecraft:oak_planks"))
        craft = "craft 4 stick using 2 oak planks"
        turns.append(make_turn(craft, craft, "Crafted 4 minecraft:stick", reward=1.0))
    else:
        turns.append(make_turn(NASTY, "", "No action was found. " + NASTY, valid=False))
    return {
        "step": step,
        "phase": phase,
        "name": name,
        "task": task,
        "goal": "craft stick",
        "subset": "Depth2",
        "seed": 7,
        "sample": 0,
        "horizon": horizon,
        "reward": float(success),
        "score": float(success),
        "success": success,
        "end": "success" if success else "horizon",
        "turns": turns,
        "prompt": "You craft things.\n\nCrafting commands:\ncraft 4 stick using 2 planks\n"
        "craft 4 oak planks using 1 oak log\n\nGoal: craft stick.",
    }


def make_turn(reply: str, action: str, observation: str, reward: float = 0.0, valid: bool = True) -> dict[str, Any]:
    return {"reply": reply, "action": action, "observation": observation, "reward": reward, "valid": valid}


def write_lines(path: Path, rows: list[dict[str, Any]]) -> None:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))


class Page(HTMLParser):
    """What a browser would show and fetch of a page."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.text = ""
        self.tags: list[str] = []
        self.addresses: list[str] = []
        self.ids: list[str] = []
        self.source = path.read_text(encoding="utf-8")
        self._hidden = 0
        self.feed(self.source)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self._hidden += tag == "style"
        for name, value in attrs:
            if name in {"src", "href", "xlink:href", "action", "data"}:
                self.addresses.append(value or "")
            if name == "id":
                self.ids.append(value or "")

    def handle_endtag(self, tag: str) -> None:
        self._hidden -= tag == "style"

    def handle_data(self, data: str) -> None:
        if not self._hidden:
            self.text += data


def read_page(path: Path) -> Page:
    page = Page(path)
    page.text = re.sub(r"\s+", " ", page.text)
    return page


def plot_titles(page: Page) -> list[str]:
    return re.findall(r'<figure [^>]*aria-label="([^"]*)"', page.source)


def change_training_rows(run: Path, change: Callable[[dict[str, Any]], None]) -> None:
    rows = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    for row in rows:
        if row["phase"] == "train":
            change(row)
    write_lines(run / "metrics.jsonl", rows)


def change_summary(run: Path, **values: Any) -> None:
    summary = json.loads((run / "summary.json").read_text())
    (run / "summary.json").write_text(json.dumps(summary | values))


def test_report_of_a_finished_run(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run")
    summary = json.loads((run / "summary.json").read_text())

    path = write_report(run)

    assert path == run / "report.html"
    page = read_page(path)
    assert f"{summary['before']:.1%} → {summary['after']:.1%}" in page.text
    assert f"{100 * summary['gain']:+.1f} points" in page.text
    assert f"95% interval {100 * summary['gain_low']:+.1f} to {100 * summary['gain_high']:+.1f}" in page.text
    assert "AgentGym/TextCraft-v0" in page.text
    assert "tiny & small · seed 0" in page.text
    assert "4 → 8 → 12" in page.text
    assert "60,000" in page.text  # sampled tokens
    assert page.text.count("32 \N{MULTIPLICATION SIGN} 4") == 3
    assert page.text.count("81.2%") == 3  # valid actions, in each evaluation
    assert plot_titles(page) == [
        "Success",
        "Reward",
        "Turns per episode",
        "Replies",
        "Groups without variance",
        "Gradient norm",
        "KL to the reference",
        "Entropy",
        "Warm start",
        "Time by phase",
    ]
    assert page.tags.count("svg") == 11  # success has a drawing for narrow windows too
    assert "rollout" in page.text
    assert "5 min · 47%" in page.text
    for absent in ("could not be read", "There is no", "contains 0", "never updated", "running"):
        assert absent not in page.text


def test_report_is_self_contained_and_the_same_each_time(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run")
    page = read_page(write_report(run))

    assert "script" not in page.tags
    assert "link" not in page.tags
    assert "http" not in page.source
    assert "@import" not in page.source
    # Plots refer to shapes of their own; each of these exists, once.
    assert page.addresses
    assert {address[0] for address in page.addresses} == {"#"}
    used = {address[1:] for address in page.addresses} | set(re.findall(r"url\(#([^)]+)\)", page.source))
    assert used <= set(page.ids)
    assert len(set(page.ids)) == len(page.ids)

    assert read_page(write_report(run)).source == page.source


def test_transcripts_compare_one_task_and_escape_what_the_model_wrote(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run")
    page = read_page(write_report(run))

    titles = ("Before training", "Solved after training", "Failed after training")
    before, solved, failed = (page.text.split(title)[1] for title in titles)
    task = re.search(r"textcraft_\d+", solved)
    assert task is not None
    assert task[0] in before.split("turns")[0]
    assert task[0] not in failed
    assert "solved in 4 turns" in solved
    assert "not solved in 3 turns" in failed
    # The model's text is shown as it was written, but for half a surrogate pair, and is no markup.
    assert NASTY.replace("\ud800", "?") in failed
    assert "<script" not in page.source
    assert '<div class="agent invalid">' in page.source
    assert "Action: <mark>get 2 oak log</mark>" in page.source
    # Of a refused reply, nothing is marked.
    refused = page.source.split("no action was taken")[1].split('<div class="world">')[0]
    assert "alert" in refused
    assert "<mark" not in refused
    assert "turn 2 · invalid action" in failed


def test_the_solved_transcript_is_of_a_task_that_failed_before(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run")
    outcomes = [
        ("before", "textcraft_1", True),
        ("before", "textcraft_2", True),
        ("before", "textcraft_2", False),
        ("after", "textcraft_1", True),
        ("after", "textcraft_2", True),
        ("after", "textcraft_3", True),
    ]
    steps = {"before": 0, "after": STEPS}
    write_lines(
        run / "trajectories.jsonl",
        [make_episode(steps[name], "eval", name, task, success, 12) for name, task, success in outcomes],
    )

    page = read_page(write_report(run))

    before, solved = page.text.split("Before training")[1].split("Solved after training")
    assert "textcraft_2" in before
    assert "not solved" in before
    assert "textcraft_2" in solved
    assert "Failed after training" not in page.text


@pytest.mark.parametrize(
    ("steps", "names", "plots", "missing"),
    [
        (0, (), 2, ("No training step", "evaluation before", "evaluation after", "no transcript")),
        (0, ("before",), 5, ("No training step", "evaluation after")),
        (7, ("before",), 11, ("has not finished", "evaluation after")),
        (1, (), 11, ("has not finished", "evaluation before", "evaluation after")),
    ],
)
def test_report_of_a_run_that_goes_on_says_what_is_missing(
    tmp_path: Path, steps: int, names: tuple[str, ...], plots: int, missing: tuple[str, ...]
) -> None:
    page = read_page(write_report(make_run(tmp_path / "run", steps=steps, names=names)))

    assert page.tags.count("svg") == plots
    for sentence in missing:
        assert sentence in page.text
    assert "running" in page.text
    assert "tiny & small · seed 0" in page.text


def test_report_of_a_folder_with_a_config_only(tmp_path: Path) -> None:
    write_config(tmp_path, Config())
    page = read_page(write_report(tmp_path))
    assert "svg" not in page.tags
    assert "No training step is recorded yet" in page.text


def test_a_line_cut_short_is_left_out(tmp_path: Path) -> None:
    whole = read_page(write_report(make_run(tmp_path / "whole" / "run")))
    run = make_run(tmp_path / "torn" / "run")
    for name in ("metrics.jsonl", "trajectories.jsonl"):
        with (run / name).open("ab") as file:
            file.write('{"step": 60, "phase": "train", "horizon": 4, "goal": "é'.encode()[:-1])

    assert read_page(write_report(run)).source == whole.source


def test_an_unreadable_line_in_the_middle_is_counted(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run")
    lines = (run / "metrics.jsonl").read_text().splitlines()
    lines[30] = lines[30][:40]
    (run / "metrics.jsonl").write_text("\n".join(lines) + "\n")

    assert "1 line(s) of metrics.jsonl could not be read" in read_page(write_report(run)).text


def test_numbers_that_are_not_finite_are_left_out(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run")
    change_training_rows(run, lambda row: row.update(kl=float("nan"), entropy=None) if row["step"] < 20 else None)

    source = write_report(run).read_text()
    assert "nan" not in re.findall(r' d="([^"]*)"', source)
    assert source.count("<svg") == 11


def test_plots_without_data_are_left_out(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run", steps=3, names=())

    def skip_update(row: dict[str, Any]) -> None:
        for key in ("kl", "entropy", "grad_norm", "loss"):
            del row[key]

    change_training_rows(run, skip_update)

    titles = plot_titles(read_page(write_report(run)))
    assert not {"KL to the reference", "Entropy", "Gradient norm"} & set(titles)
    assert len(titles) == 7


@pytest.mark.parametrize("value", [0.0, 0.3, -0.3])
@pytest.mark.parametrize("steps", [1, 3])
def test_plots_of_few_steps_have_whole_steps_and_zero_on_their_axes(steps: int, value: float) -> None:
    figure = plot_kl([{"step": step, "kl": value} for step in range(steps)])
    figure.draw_without_rendering()

    axes = figure.axes[0]
    left, right = axes.get_xlim()
    assert [tick for tick in axes.get_xticks() if left <= tick <= right] == list(range(steps))
    bottom, top = axes.get_ylim()
    assert top - bottom >= 0.3
    for shown in (0.0, value):
        assert bottom < shown < top
    assert all(line.get_marker() == "o" and line.get_alpha() is None for line in axes.lines)


def test_lines_are_smoothed_from_ten_points_on() -> None:
    values = [float(step % 2) for step in range(10)]
    rows = [{"step": step, "entropy": value} for step, value in enumerate(values)]

    (line,) = plot_entropy(rows[:9]).axes[0].lines
    assert np.asarray(line.get_ydata()).tolist() == values[:9]

    points, line = plot_entropy(rows).axes[0].lines
    assert np.asarray(points.get_ydata()).tolist() == values
    smoothed = np.asarray(line.get_ydata())
    assert (smoothed[0], smoothed[-1]) == (values[0], values[-1])
    assert 0.3 < smoothed[1:-1].min() < smoothed[1:-1].max() < 0.7


def test_smoothing_begins_and_ends_at_the_data() -> None:
    values = np.array([4.0, 0.0, 2.0, 6.0, 1.0, 9.0])
    assert smooth(values, 5).tolist() == pytest.approx([4, 2, 2.6, 3.6, 16 / 3, 9])


def test_gradient_norms_of_a_wide_range_are_on_a_logarithmic_axis() -> None:
    def scale(*norms: float | None) -> str:
        return (
            plot_grad_norm([{"step": step, "grad_norm": norm} for step, norm in enumerate(norms)]).axes[0].get_yscale()
        )

    assert scale(0.1, 1.0, None, 30.0) == "log"
    assert scale(1.0, 4.0) == "linear"
    assert scale(0.0, 100.0) == "linear"  # zero has no place on a logarithmic one


def test_success_has_a_drawing_that_fits_a_narrow_window(tmp_path: Path) -> None:
    source = write_report(make_run(tmp_path / "run")).read_text()
    wide, narrow = (
        float(re.split(f'<div class="{name}">', source)[1].split('viewBox="0 0 ')[1].split()[0])
        for name in ("in-wide", "in-narrow")
    )
    assert narrow < 400 < wide
    assert source.count('<div class="in-narrow">') == 1


@pytest.mark.parametrize(
    ("low", "high", "shown"), [(0.0, 0.0, False), (-0.01, 0.02, False), (0.01, 0.02, True), (-0.02, -0.01, True)]
)
def test_an_interval_that_contains_zero_is_said_to_show_no_gain(
    tmp_path: Path, low: float, high: float, shown: bool
) -> None:
    run = make_run(tmp_path / "run")
    change_summary(run, gain=(low + high) / 2, gain_low=low, gain_high=high)
    text = read_page(write_report(run)).text
    assert ("the interval contains 0: no gain was shown" in text) is not shown
    assert "+0.0" not in text


def test_a_run_without_any_update_says_so(tmp_path: Path) -> None:
    finished = make_run(tmp_path / "finished")
    change_summary(finished, steps_without_update=STEPS - 1)
    assert "never updated" not in read_page(write_report(finished)).text
    change_summary(finished, steps_without_update=STEPS)
    assert "The model was never updated: in all 60 training steps" in read_page(write_report(finished)).text

    going = make_run(tmp_path / "going", steps=5, names=())
    change_training_rows(going, lambda row: row.update({"groups/zero_variance": 4}))
    assert "never updated" not in read_page(write_report(going)).text  # as with ppo, which learns from such groups
    change_training_rows(going, lambda row: row.pop("loss"))
    assert "never updated so far: in all 5 training steps" in read_page(write_report(going)).text
    change_training_rows(going, lambda row: row.update({"groups/zero_variance": 4 if row["step"] else 3}))
    assert "never updated" not in read_page(write_report(going)).text

    # Before the first step there is nothing to warn of.
    assert "never updated" not in read_page(write_report(make_run(tmp_path / "new", steps=0, names=()))).text


def test_a_run_over_several_scenarios_names_and_draws_them(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run", steps=3, names=())
    assert "Success by scenario" not in plot_titles(read_page(write_report(run)))
    change_training_rows(run, lambda row: row.update({"SciWorld/success/mean": 0.25, "BabyAI/success/mean": 0.75}))
    page = read_page(write_report(run))
    assert "Success by scenario" in plot_titles(page)
    assert {"SciWorld", "BabyAI"} <= set(page.text.split())
    settings = yaml.safe_load((run / "config.yaml").read_text())
    settings["tasks"] = [{"id": "AgentGym/SciWorld-v0"}, {"id": "AgentGym/BabyAI-v0"}]
    (run / "config.yaml").write_text(yaml.safe_dump(settings))
    assert (
        "AgentGym/SciWorld-v0, AgentGym/BabyAI-v0 \N{MIDDLE DOT} training report" in read_page(write_report(run)).text
    )


def test_exploring_is_shown_like_training(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run", names=("before",))
    change_training_rows(run, lambda row: row.update(phase="explore"))
    page = read_page(write_report(run)).text
    assert "Turns per episode" in page
    assert "Groups without variance" not in page


def test_time_of_a_run_without_summary_counts_what_the_log_tells(tmp_path: Path) -> None:
    page = read_page(write_report(make_run(tmp_path / "run", steps=10, names=("before",))))
    # 19 gaps of 1.5 s between warm-start rows, 40 s of evaluation, 10 steps of 5, 1 and 3 s.
    assert "time3 min" in page.text  # a term and its description
    plot = page.text.split("as far as the log tells")[1]
    for phase, label in (
        ("warm start", "28 s · 18%"),
        ("rollout", "50 s · 32%"),
        ("reference", "10 s · 6%"),
        ("update", "30 s · 19%"),
        ("evaluate", "40 s · 25%"),
    ):
        assert phase in plot
        assert label in plot


def test_a_run_without_summary_may_have_been_stopped(tmp_path: Path) -> None:
    # Twenty warm-start rows, 1.5 s apart, from 22:13:20 on.
    page = read_page(write_report(make_run(tmp_path / "run", steps=0, names=())))
    assert "running or stopped without a word (last entry 2023-11-14 22:13 UTC)" in page.text

    (tmp_path / "run" / "metrics.jsonl").unlink()
    page = read_page(write_report(tmp_path / "run"))
    assert "running or stopped without a word (no entry yet)" in page.text


def test_rows_that_no_run_writes_are_left_out(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run", steps=3, names=("before",))
    with (run / "metrics.jsonl").open("a") as log:
        for row in (
            {},
            {"phase": "sleep", "step": 0, "time": 0.0},
            {"phase": ["train"]},
            {"phase": "train", "step": 3, "time": 0.0},  # no horizon
            {"phase": "warm_start", "step": "first", "time": 0.0, "loss": 1.0},
        ):
            log.write(json.dumps(row) + "\n")
    with (run / "trajectories.jsonl").open("a") as log:
        log.write('{}\n{"phase": "eval", "end": "success"}\n')
    for summary in ("[]", "{", '{"status": "finished"}', '{"status": "finished", "seconds": []}'):
        (run / "summary.json").write_text(summary)
        page = read_page(write_report(run))
        assert "5 line(s) of metrics.jsonl could not be read" in page.text
        assert "training steps3" in page.text
        assert "there is no gain yet" in page.text


def test_a_folder_that_is_no_run_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"is not a run folder: it holds no config\.yaml"):
        write_report(tmp_path)
    (tmp_path / "config.yaml").write_text("env: prod\n")  # of some other program
    with pytest.raises(ValueError, match="is not a run folder"):
        write_report(tmp_path)
    with pytest.raises(ValueError, match="is not a run folder"):
        write_report(tmp_path / "nowhere")


def test_paired_bootstrap_of_half_the_tasks_gaining() -> None:
    # A resample's mean is Binomial(16, 1/2) / 16: P(<= 3) = 0.011 and P(<= 4) = 0.038, so the low end is
    # 4/16, and by symmetry the high end is 12/16. (For a 90 % interval they would be 5/16 and 11/16.)
    before = {f"task {index}": 0.0 for index in range(16)}
    after = {task: float(index % 2) for index, task in enumerate(before)}
    assert paired_bootstrap(before, after) == (8 / 16, 4 / 16, 12 / 16)


def test_paired_bootstrap_pairs_by_task() -> None:
    # Tasks differ much, each gains the same: no width at all, whatever the order.
    before = {"easy": 0.75, "middle": 0.5, "hard": 0.0}
    after = {"hard": 0.25, "middle": 0.75, "easy": 1.0}
    assert paired_bootstrap(before, after) == (0.25, 0.25, 0.25)


def test_paired_bootstrap_is_deterministic_in_its_seed() -> None:
    rng = random.Random("bootstrap")
    before, after = ({task: rng.random() for task in TASKS} for _ in range(2))
    shuffled = dict(reversed(before.items()))
    first = paired_bootstrap(before, after, samples=500)
    assert first == paired_bootstrap(shuffled, after, samples=500)
    assert first != paired_bootstrap(before, after, seed=1, samples=500)


def test_paired_bootstrap_refuses_what_is_not_paired() -> None:
    with pytest.raises(ValueError, match="same tasks; 2 are in only one, such as 'a'"):
        paired_bootstrap({"a": 1.0}, {"b": 1.0})
    with pytest.raises(ValueError, match="no task"):
        paired_bootstrap({}, {})
    with pytest.raises(ValueError, match="samples is 0"):
        paired_bootstrap({"a": 1.0}, {"a": 1.0}, samples=0)


def test_results_page_over_seeds(tmp_path: Path) -> None:
    runs = [make_run(tmp_path / f"run{seed}", seed=seed) for seed in (2, 1, 0)]
    out = tmp_path / "docs" / "results" / "demo.md"

    write_results_page(runs, out)

    page = out.read_text()
    summaries = [json.loads((run / "summary.json").read_text()) for run in runs]
    table = [line for line in page.splitlines() if re.match(r"\| \d", line)]
    assert [line.split(" | ")[0] for line in table] == ["| 0", "| 1", "| 2"]
    for line, summary in zip(table, reversed(summaries), strict=True):
        assert f"| {summary['before']:.1%} | {summary['after']:.1%} | {100 * summary['gain']:+.1f} |" in line
        assert line.endswith("| 11 min |")
    # All seeds have the same tasks here, so the pooled gain is the mean of their gains.
    mean = sum(summary["gain"] for summary in summaries) / 3
    assert f"**{100 * mean:+.1f} points**" in page
    assert "(demo.png)" in page
    assert str(tmp_path) not in page
    assert (out.parent / "demo.png").read_bytes().startswith(b"\x89PNG")


def test_results_page_refuses_runs_that_do_not_belong_together(tmp_path: Path) -> None:
    finished = make_run(tmp_path / "finished")
    with pytest.raises(ValueError, match="at least one run"):
        write_results_page([], tmp_path / "page.md")
    with pytest.raises(ValueError, match="has not finished"):
        write_results_page([make_run(tmp_path / "short", steps=3, names=())], tmp_path / "page.md")
    with pytest.raises(ValueError, match="seed of its own"):
        write_results_page([finished, finished], tmp_path / "page.md")

    other = make_run(tmp_path / "other", seed=1)
    write_config(other, Config(seed=1, model=ModelConfig(path="another")))
    with pytest.raises(ValueError, match="same model"):
        write_results_page([finished, other], tmp_path / "page.md")
    assert not (tmp_path / "page.md").exists()


@pytest.mark.parametrize(
    ("path", "shown"),
    [
        ("/home/someone/models/base", "base"),
        ("~/models/base/", "base"),
        ("../models/base", "base"),
        ("checkpoints/base", "base"),  # there is such a folder
        ("some-org/base-1.5B", "some-org/base-1.5B"),
    ],
)
def test_results_page_names_a_local_model_without_its_place(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, path: str, shown: str
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "checkpoints" / "base").mkdir(parents=True)
    run = make_run(tmp_path / "run")
    write_config(run, Config(model=ModelConfig(path=path)))

    write_results_page([run], tmp_path / "page.md")

    assert (tmp_path / "page.md").read_text().startswith(f"# AgentGym/TextCraft-v0: {shown}, 1 seed\n")

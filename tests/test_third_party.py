"""What third-party trainers depend on, and whether our single-file PPO handles autoreset as it says."""

from __future__ import annotations

import importlib.util
import json
import re
import subprocess
import sys
from importlib import metadata
from itertools import pairwise
from pathlib import Path
from types import ModuleType

import pytest
import torch

from agentgym_wrappers.requirements import need

ROOT = Path(__file__).parents[1]


def load(path: Path) -> ModuleType:
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[path.stem] = module  # dataclasses look their module up
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def ppo() -> ModuleType:
    return load(ROOT / "examples" / "cleanrl_ppo.py")


# ---- CleanRL style: next-step autoreset -------------------------------------------------------------


def test_the_step_that_resets_is_no_experience(ppo: ModuleType) -> None:
    args = ppo.Args(num_envs=4, workers=2, num_steps=40, turns=3)
    torch.manual_seed(0)
    with ppo.make_envs(args) as envs:
        agent = ppo.Agent(envs.single_observation_space.shape[0], int(envs.single_action_space.n))
        collector = ppo.Collector(envs, agent, args)
        batch, following = collector.collect(), collector.collect()
        assert int(batch.done.sum()) > 10
        assert torch.equal(batch.real[1:], ~batch.done[:-1])
        assert torch.equal(following.real[0], ~batch.done[-1])  # also where the batch ends
        assert not batch.rewards[~batch.real].any()
        # An episode has as many real steps as it has turns: 3 where it was cut.
        lengths = batch.real.long().cumsum(0)
        for index in range(args.num_envs):
            ends = batch.done[:, index].nonzero().flatten().tolist()
            begins = [0, *(lengths[end, index].item() for end in ends)]
            counted = [after - before for before, after in pairwise(begins)]
            cut = (batch.done & ~batch.terminated)[ends, index].tolist()
            assert all(turns == 3 if is_cut else turns <= 3 for turns, is_cut in zip(counted, cut, strict=True))


def test_a_truncated_episode_is_worth_its_last_observation_and_a_terminated_one_nothing(ppo: ModuleType) -> None:
    """Two environments, the same but for how the episode ends at step 1; step 2 is the reset."""

    def column(*values: float) -> torch.Tensor:
        return torch.tensor(values)[:, None].expand(-1, 2).clone()

    done = column(0, 1, 0, 0).bool()
    terminated = done.clone()
    terminated[:, 1] = False
    real = torch.cat([torch.ones(1, 2, dtype=torch.bool), ~done[:-1]])
    nothing = torch.zeros(4, 2)
    values = column(0.5, 0.4, 10.0, 0.3)  # 10: of the last observation, which the reset step is taken in
    batch = ppo.Batch(nothing, nothing, nothing, nothing, values, column(0, 1, 0, 0), terminated, done, real)
    estimates = ppo.advantages(batch, torch.tensor([0.2, 0.2]), gamma=0.9, gae_lambda=0.5)
    at_the_end = [1 - 0.4, 1 + 0.9 * 10.0 - 0.4]
    assert estimates[1].tolist() == pytest.approx(at_the_end)
    assert estimates[0].tolist() == pytest.approx([0.9 * 0.4 - 0.5 + 0.45 * end for end in at_the_end])
    assert estimates[3].tolist() == pytest.approx([0.9 * 0.2 - 0.3] * 2)  # the next episode knows nothing of them


# ---- packages ---------------------------------------------------------------------------------------


def test_a_missing_package_is_named_with_the_command() -> None:
    with pytest.raises(
        ImportError, match=r"no_such_package 1\.2 or newer .* pip install --upgrade 'agentgym-suite\[x\]'"
    ):
        need("x", no_such_package=(1, 2))


def test_an_old_package_is_named_with_its_version_and_the_command() -> None:
    need("x", gymnasium=(1, 1), torch=(2, 9))  # torch's version has a +cpu
    with pytest.raises(ImportError, match=f"{metadata.version('gymnasium')} is installed. Update it with: pip install"):
        need("x", gymnasium=(99,))


@pytest.mark.parametrize(
    ("name", "extra"),
    [
        ("sb3_ppo", "sb3"),
        ("cleanrl_ppo", "train"),
        ("tianshou_ppo", "tianshou"),
        ("trl_grpo", "trl"),
        ("trl_tools", "trl"),
    ],
)
def test_an_example_with_an_old_package_tells_the_command(name: str, extra: str, tmp_path: Path) -> None:
    """Every package that the examples check for is there in version 0.1, as far as its metadata say."""
    for package in ("stable_baselines3", "sb3_contrib", "torch", "tianshou", "trl"):
        folder = tmp_path / f"{package}-0.1.dist-info"
        folder.mkdir()
        (folder / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {package}\nVersion: 0.1\n")
    code = f"import sys; sys.path.insert(0, {str(tmp_path)!r}); import runpy; runpy.run_path({str(ROOT)!r} + "
    code += f"'/examples/{name}.py', run_name='__main__')"
    done = subprocess.run([sys.executable, "-c", code, "--help"], capture_output=True, text=True, timeout=120)
    assert done.returncode == 1
    last = done.stderr.strip().splitlines()[-1]
    assert re.search(r"^ImportError: \w+ [\d.]+ or newer is needed, and 0\.1 is installed", last)
    assert last.endswith(f"pip install --upgrade 'agentgym-suite[{extra}]'")


def test_importing_the_wrappers_for_trl_imports_no_trl_and_no_torch() -> None:
    code = "import sys, agentgym_wrappers.trl, agentgym_wrappers.numeric; print(*sys.modules)"
    printed = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120, check=True)
    assert not {"trl", "torch", "transformers", "stable_baselines3"} & set(printed.stdout.split())


# ---- the matrix -------------------------------------------------------------------------------------


def test_a_row_of_the_matrix_shows_a_failure_and_the_other_rows_stay(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    compat = load(ROOT / "scripts" / "compat.py")
    page = tmp_path / "page.md"
    monkeypatch.setattr(compat, "PAGE", page)
    monkeypatch.setattr(compat, "HOMES", tmp_path)
    first, second = compat.PACKAGES[:2]
    compat.write_page(first, "1.0", "works (3 s)")
    broken = compat.Package(
        second.name, (), "gymnasium", "a check", (("-c", "raise ValueError('a | b')"),), torch=False
    )
    home = tmp_path / "gymnasium-oldest"
    (home / "bin").mkdir(parents=True)
    (home / "bin" / "python").symlink_to(sys.executable)
    (home / "complete").touch()
    monkeypatch.setattr(compat, "run", _with(sys.executable, compat.run))
    version, result = compat.row(broken)
    compat.write_page(broken, version, result)
    lines = page.read_text().splitlines()
    assert f"| `{first.name}` | 1.0 | {first.what} | works (3 s) |" in lines[-2]
    assert f"| {metadata.version('gymnasium')} | a check | **fails**: `python -c`: ValueError: a / b |" in lines[-1]


def _with(python: str, run):  # type: ignore[no-untyped-def]
    """A link to a virtual environment's Python is not that environment: call it by its own name."""
    return lambda command, seconds: run([python, *command[1:]], seconds)


def test_what_takes_too_long_is_ended_with_all_that_it_started(tmp_path: Path) -> None:
    compat = load(ROOT / "scripts" / "compat.py")
    code = (
        "import subprocess, sys, time, pathlib\n"
        "child = subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(60)'])\n"
        f"pathlib.Path({str(tmp_path / 'pid')!r}).write_text(str(child.pid))\n"
        "time.sleep(60)\n"
    )
    with pytest.raises(compat.Failure, match="took more than its time limit"):
        compat.run([sys.executable, "-c", code], 10)
    state = Path(f"/proc/{(tmp_path / 'pid').read_text()}/stat")
    assert not state.exists() or state.read_text().split()[2] == "Z"


def test_the_results_page_of_stable_baselines_holds_what_the_runs_wrote() -> None:
    runs = ROOT / "docs" / "results" / "third-party-sb3.jsonl"
    page = (ROOT / "docs" / "results" / "third-party-sb3.md").read_text(encoding="utf-8")
    results = load(ROOT / "scripts" / "sb3_results.py")
    rows = [json.loads(line) for line in runs.read_text(encoding="utf-8").splitlines()]
    assert results.table(rows) in page

"""The tables of docs/vectorization.md are what happens, and nothing in them is left over or wrong."""

import os
import subprocess
import sys
import time
import uuid
from pathlib import Path

from tests.kill_matrix import DOCS, MARK, main_matrix, survivors, table, worker_matrix, written

ROOT = Path(__file__).resolve().parents[1]
FORKING = """
import os, time
from agentgym_wrappers import SubprocVectorEnv
vec = SubprocVectorEnv.make("AgentGym/TextCraft-v0", 2)
vec.reset(seed=0)
if os.fork() == 0:
    {child}
os.wait() if {wait} else None
print(vec.step(["inventory"] * 2)[4]["turn"].tolist(), flush=True)
os.kill(os.getpid(), 9)
"""
THREADING = """
import os, threading, time
import agentgym_envs, gymnasium
from agentgym_wrappers import SubprocVectorEnv
def make():
    threading.Thread(target=time.sleep, args=(100,)).start()
    return gymnasium.make("AgentGym/TextCraft-v0")
vec = SubprocVectorEnv([make])
vec.reset(seed=0)
os.kill(os.getpid(), 9)
"""
NOTEBOOK = """
import agentgym_envs, gymnasium
from agentgym_wrappers import HorizonCurriculum, SubprocVectorEnv
print("main is run")
class Short(HorizonCurriculum):
    def __init__(self, env):
        super().__init__(env, 1)
vec = SubprocVectorEnv([lambda: Short(gymnasium.make("AgentGym/TextCraft-v0"))] * 2)
vec.reset(seed=0)
print(vec.step(["inventory"] * 2)[3].tolist())
"""


def test_nothing_is_left_of_a_main_program_however_it_ends() -> None:
    cells = main_matrix()
    assert set(cells.values()) == {"clean", "-"}, cells
    lines = table(cells, "The main program ends by")
    page = DOCS.read_text(encoding="utf-8")
    assert page == written(page, {"main program": lines})


def test_a_workers_end_costs_only_what_was_stepping_in_it() -> None:
    cells = worker_matrix()
    lines = table(cells, "A worker ends by")
    page = DOCS.read_text(encoding="utf-8")
    assert page == written(page, {"worker": lines}), lines


def run(program: str, mark: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-"],
        input=program,
        capture_output=True,
        text=True,
        timeout=60,
        cwd=ROOT,
        env={**os.environ, MARK: mark},
        check=False,
    )


def test_a_forked_process_neither_closes_the_environments_nor_keeps_them_alive() -> None:
    mark = uuid.uuid4().hex
    done = run(FORKING.format(child="raise SystemExit", wait=True), mark)
    assert done.stdout == "[1, 1]\n", done.stderr
    done = run(FORKING.format(child="os.closerange(0, 3); time.sleep(20); os._exit(0)", wait=False), mark)
    assert done.stdout == "[1, 1]\n", done.stderr
    deadline = time.monotonic() + 15
    while len(left := survivors(mark)) > 1 and time.monotonic() < deadline:
        time.sleep(0.1)
    assert "worker" not in str(left)
    assert len(left) == 1  # the forked one


def test_a_forked_process_that_leaves_a_with_block_ends_no_worker() -> None:
    program = FORKING.replace("vec.reset", "vec.__enter__().reset")
    done = run(program.format(child="vec.__exit__(None, None, None); raise SystemExit", wait=True), "")
    assert done.stdout == "[1, 1]\n", done.stderr


def test_a_thread_that_a_simulator_started_does_not_keep_a_worker_alive() -> None:
    mark = uuid.uuid4().hex
    done = run(THREADING, mark)
    assert done.returncode == -9, done.stderr
    deadline = time.monotonic() + 30
    while (left := survivors(mark)) and time.monotonic() < deadline:
        time.sleep(0.1)
    assert not left


def test_the_main_program_is_not_run_again_in_a_worker() -> None:
    done = run(NOTEBOOK, "")
    assert done.stderr == ""
    assert done.stdout == "main is run\n[True, True]\n"

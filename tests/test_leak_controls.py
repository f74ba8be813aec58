"""Real leaks are caught, each by the quantity that it is one of; a clean environment passes."""

import psutil
import pytest

from leak_tests import SubjectError, judge, measure, overall
from leak_tests.episodes import Mode
from leak_tests.verdict import Finding


def findings(env: str, episodes: int) -> dict[str, Finding]:
    return {finding.quantity.name: finding for finding in judge(measure(env, "episodes", episodes))}


@pytest.mark.parametrize(
    ("control", "episodes", "caught"),
    [
        ("List", 200, {"memory", "Python heap"}),
        ("Slow", 200, {"memory", "Python heap"}),
        ("Native", 200, {"memory"}),
        ("File", 100, {"open files"}),
        ("Socket", 100, {"sockets"}),
        ("TemporaryFile", 100, {"temporary files"}),
        ("Thread", 60, {"threads"}),
        ("Child", 60, {"child processes", "threads"}),
        ("Orphan", 60, {"child processes"}),
        ("Zombie", 60, {"child processes"}),
        ("TextCraftPackage", 30, {"Python heap"}),
    ],
)
def test_a_leak_is_caught(control: str, episodes: int, caught: set[str]) -> None:
    found = findings(f"leak_tests.controls:Leak/{control}-v0", episodes)
    failed = {name for name, finding in found.items() if finding.verdict == "fail"}
    assert caught <= failed
    assert overall(list(found.values())) == "fail"
    innocent = {"sockets", "temporary files", "open files", "child processes", "threads"} - caught
    if control not in ("Child", "Orphan", "Thread"):  # processes and threads hold other things, too
        assert {name for name in innocent if found[name].verdict != "pass"} == set()


def test_a_native_leak_is_none_of_the_python_heap() -> None:
    found = findings("leak_tests.controls:Leak/Native-v0", 400)
    assert found["Python heap"].slope.high < 200 < 15_000 < found["memory"].slope.low


def test_a_slow_leak_is_measured_as_large_as_it_is() -> None:
    heap = findings("leak_tests.controls:Leak/Slow-v0", 200)["Python heap"]
    assert heap.slope.value == pytest.approx(20_000_000 / 1024, rel=0.02)


def test_the_leaking_line_is_named() -> None:
    line, kilobytes = measure("leak_tests.controls:Leak/Slow-v0", "episodes", 100).growers[0]
    assert "leak_tests/controls.py:" in line
    assert kilobytes > 1_000


def test_a_clean_but_noisy_environment_passes() -> None:
    record = measure("leak_tests.controls:Leak/Noisy-v0", "episodes", 3_000)
    heap = record.samples["Python heap"]
    assert max(heap) - min(heap) > 50, "it is not noisy any more"
    assert overall(judge(record)) == "pass"


def test_too_few_episodes_of_a_noisy_environment_are_inconclusive() -> None:
    found = findings("leak_tests.controls:Leak/Noisy-v0", 60)
    assert found["Python heap"].verdict == "inconclusive"
    assert overall(list(found.values())) == "inconclusive"
    assert found["Python heap"].smallest > 200


@pytest.mark.parametrize("mode", ["episodes", "cycles", "long"])
def test_an_environment_with_a_process_of_its_own_passes(mode: Mode) -> None:
    record = measure("tests.toy_env:Toy/Counter-v0", mode, 100)
    found = {finding.quantity.name: finding for finding in judge(record)}
    assert set(record.samples["child processes"]) == {0 if mode == "cycles" else 1}
    assert {found[name].verdict for name in ("open files", "child processes", "threads")} == {"pass"}


def test_nothing_is_left_of_a_run() -> None:
    seen: set[psutil.Process] = set()

    def look() -> None:
        seen.update(psutil.Process().children(recursive=True))

    for control in ("Child", "Orphan"):
        measure(f"leak_tests.controls:Leak/{control}-v0", "episodes", 20, on_block=look)
    assert len(seen) > 20
    alive = [process for process in seen if process.is_running() and process.status() != psutil.STATUS_ZOMBIE]
    assert alive == []


@pytest.mark.parametrize(
    ("trouble", "told"),
    [
        ("Dying", r"killed by signal 9.*\s+the last words of the environment"),
        ("Hanging", r"no answer in 5 s"),
        ("Unclosable", r"closing the environment failed(.|\s)*the door is stuck"),
    ],
)
def test_trouble_is_told_and_leaves_nothing(trouble: str, told: str) -> None:
    before = psutil.Process().children(recursive=True)
    with pytest.raises(SubjectError, match=told):
        measure(f"tests.leak_envs:Trouble/{trouble}-v0", "episodes", 40, answer_seconds=5)
    assert psutil.Process().children(recursive=True) == before


def test_too_few_episodes_are_refused() -> None:
    with pytest.raises(ValueError, match="at least 20"):
        measure("leak_tests.controls:Leak/List-v0", "episodes", 19)

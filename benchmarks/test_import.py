"""What `import agentgym_envs` costs beyond `import gymnasium`."""

import subprocess
import sys

ROUNDS = 9
TIMED_IMPORT = """
import sys, time
import gymnasium
start = time.perf_counter()
import agentgym_envs
print(time.perf_counter() - start, "torch" in sys.modules)
"""


def test_import() -> None:
    figures = []
    for _ in range(ROUNDS):
        done = subprocess.run(
            [sys.executable, "-c", TIMED_IMPORT], capture_output=True, text=True, timeout=120, check=True
        )
        seconds, torch = done.stdout.split()
        assert torch == "False"
        figures.append(float(seconds))
    print(f"\nimport agentgym_envs after gymnasium: {min(figures) * 1e3:.1f} ms at best of {ROUNDS}")
    assert min(figures) <= 0.1

"""Runners over real environments for the tests of rollouts, and an engine that remembers."""

from collections.abc import Callable, Sequence
from typing import Any

import gymnasium

from agentgym_train.chat import Chat
from agentgym_train.engines import Completion, Request
from agentgym_train.engines.hf import HFEngine
from agentgym_train.rollout import RolloutRunner
from agentgym_train.trajectory import Trajectory
from agentgym_wrappers import ActionParser, HorizonCurriculum, ListedActions, SubprocVectorEnv
from tests.train.letters_env import LettersEnv, SlowEnv

Run = Callable[..., RolloutRunner]


class RecordingEngine(HFEngine):
    """Remembers what was asked and answered."""

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self.calls: list[tuple[Request, list[int], Completion]] = []  # in the order of the answers
        self._begun: dict[str, tuple[Request, list[int]]] = {}

    def submit(self, requests: Sequence[Request], temperature: float) -> None:
        self._begun |= {request.key: (request, list(request.tokens)) for request in requests}
        super().submit(requests, temperature)

    def collect(self, wait_s: float = 0.0) -> dict[str, Completion]:
        replies = super().collect(wait_s)
        self.calls += [(*self._begun.pop(key), reply) for key, reply in replies.items()]
        return replies

    def calls_of(self, trajectory: Trajectory) -> list[tuple[Request, list[int], Completion]]:
        """The calls for one episode, in order."""
        episode = trajectory.episode
        name = f"{episode.task}/{episode.seed}/{episode.sample}"
        return [call for call in self.calls if call[0].key == name]


class Runners:
    """Makes runners; `close` closes their environments."""

    def __init__(self, chat: Chat) -> None:
        self._chat = chat
        self._made: list[SubprocVectorEnv] = []

    def __call__(
        self,
        engine: HFEngine,
        kind: Callable[[], gymnasium.Env[str, str]] = LettersEnv,
        max_parallel: int = 16,
        formats: Sequence[str] = ("tags", "react", "fence", "bare"),
        **options: Any,
    ) -> RolloutRunner:
        listed = options.get("constrained", False)

        def one() -> gymnasium.Env[str, str]:
            inner = ListedActions(kind()) if listed else kind()
            env: gymnasium.Env[str, str] = HorizonCurriculum(ActionParser(inner, formats), 99)
            return env

        threads = kind is SlowEnv
        vec = SubprocVectorEnv([one] * max_parallel, autoreset_mode="Disabled", thread_per_env=threads)
        self._made.append(vec)
        return RolloutRunner(vec, engine, self._chat, **{"max_reply_tokens": 8, "max_context": 400, **options})

    def close(self) -> None:
        for vec in self._made:
            vec.close()


def assert_token_exact(trajectory: Trajectory, recorder: RecordingEngine) -> None:
    """What the engine saw and said in each turn is what the trajectory holds for it."""
    calls = recorder.calls_of(trajectory)
    assert len(calls) == len(trajectory.turns)
    assert len(trajectory.tokens) == len(trajectory.mask) == len(trajectory.logprobs) == len(trajectory.allowed)
    for (_, context, reply), turn in zip(calls, trajectory.turns, strict=True):
        start = max(start for start in trajectory.starts if start <= turn.start)
        assert trajectory.tokens[start : turn.start] == context
        assert trajectory.tokens[turn.start : turn.stop] == reply.tokens
        assert trajectory.logprobs[turn.start : turn.stop] == reply.logprobs
        assert trajectory.mask[turn.start : turn.stop] == [1] * len(reply.tokens)
        assert trajectory.allowed[turn.start : turn.stop] == (reply.allowed or [()] * len(reply.tokens))
    assert trajectory.sampled == sum(len(reply.tokens) for _, _, reply in calls)

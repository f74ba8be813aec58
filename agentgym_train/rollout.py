"""Rolling out episodes: many environments, one engine."""

from __future__ import annotations

import traceback
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress

from agentgym_envs import RefusedAction
from agentgym_train.chat import Chat
from agentgym_train.engines import Engine, Request
from agentgym_train.trajectory import Episode, Trajectory, Turn, open_trajectory
from agentgym_wrappers import EnvironmentFailure, EnvResult, SubprocVectorEnv

# How long the engine waits for more environments to answer, so that their replies are sampled together.
_LINGER_SECONDS = 0.05
_CHECK_SECONDS = 1.0


class RolloutRunner:
    """Rolls out episodes in the environments of a vector environment.

    Without a barrier: an environment that is ready gets its next action while others are still stepping, and
    one whose episode is over begins the next at once.
    """

    def __init__(
        self,
        vec: SubprocVectorEnv,
        engine: Engine,
        chat: Chat,
        *,
        max_reply_tokens: int,
        max_context: int,
        reply_instruction: str = "",
        deterministic: bool = False,
        check: Callable[[], None] = lambda: None,
    ) -> None:
        """Make a runner.

        Args:
            vec: The environments, each wrapped in `ActionParser` and, outermost, `HorizonCurriculum`, with
                autoreset disabled. The caller closes it.
            engine: Samples the replies.
            chat: Renders prompts and observations.
            max_reply_tokens: Largest number of sampled tokens a turn.
            max_context: Largest number of tokens of an episode; one that could exceed it is truncated
                with `end="context"` before the engine is asked.
            reply_instruction: Added to the environment's instruction.
            deterministic: Wait for all environments before each turn. What is sampled together then never
                depends on how fast they are, and the last bit of a log-probability depends on that.
            check: Called before each turn and about once a second; may raise to abandon the rollouts.
        """
        self._vec = vec
        self._engine = engine
        self._chat = chat
        self._max_reply_tokens = max_reply_tokens
        self._max_context = max_context
        self._reply_instruction = reply_instruction
        self._deterministic = deterministic
        self._check = check

    def run(
        self,
        episodes: Sequence[Episode],
        temperature: float,
        on_done: Callable[[Trajectory], None] = lambda _: None,
    ) -> list[Trajectory]:
        """Roll out episodes.

        An environment that fails costs its own trajectory only, which ends with `end="error"`.

        Args:
            episodes: What to roll out; each has its own (task, seed, sample).
            temperature: Sampling temperature.
            on_done: Called with each finished trajectory.

        Returns:
            One trajectory per episode, in their order.

        Raises:
            WorkerError: If environments fail too often.
        """
        self._finish_what_was_abandoned()
        trajectories = [Trajectory(episode) for episode in episodes]
        waiting = deque(trajectories)
        running: dict[int, Trajectory] = {}  # by environment
        try:
            while waiting or running:
                self._begin(waiting, running)
                due: dict[int, Trajectory] = {}
                for index in self._receive(running):
                    trajectory = running[index]
                    if not trajectory.end and len(trajectory.tokens) + self._max_reply_tokens > self._max_context:
                        trajectory.end = "context"
                    if trajectory.end:
                        self._engine.release([_key(trajectory.episode)])
                        on_done(running.pop(index))
                    else:
                        due[index] = trajectory
                self._reply(due, temperature)
        finally:
            self._engine.release()
        return trajectories

    def _finish_what_was_abandoned(self) -> None:
        """Wait for environments that were at work when an earlier call was left by an exception."""
        while self._vec.under_way:
            self._check()
            with suppress(EnvironmentFailure):
                self._vec.recv(timeout=_CHECK_SECONDS)

    def _begin(self, waiting: deque[Trajectory], running: dict[int, Trajectory]) -> None:
        """Give every free environment the next episode."""
        free = [index for index in range(self._vec.num_envs) if index not in running][: len(waiting)]
        for index in free:
            running[index] = waiting.popleft()
        begun = [running[index].episode for index in free]
        options = [{"task": episode.task, "horizon": episode.horizon} for episode in begun]
        self._vec.send_reset(free, [episode.seed for episode in begun], options)

    def _receive(self, running: dict[int, Trajectory]) -> list[int]:
        """Take what environments have answered; returns the indices of at least one."""
        ready: list[int] = []
        while self._vec.under_way and (self._deterministic or not ready):
            self._check()
            try:
                results = self._vec.recv(len(self._vec.under_way), _LINGER_SECONDS)
            except EnvironmentFailure as failure:
                _set_error(running[failure.env_index], failure)
                ready.append(failure.env_index)
                continue
            for result in results:
                trajectory = running[result.env_index]
                try:
                    self._take(trajectory, result)
                except Exception as error:
                    _set_error(trajectory, error)
                ready.append(result.env_index)
        return sorted(ready)

    def _take(self, trajectory: Trajectory, result: EnvResult) -> None:
        """Write an answer of its environment into a trajectory."""
        info = result.info
        if info.get("end") == "fault":
            raise RuntimeError(f"environment fault ({info['fault_kind']}): {info['fault']}")
        if not trajectory.turns:
            open_trajectory(trajectory, self._chat, result.observation, info, self._reply_instruction)
            if trajectory.prompt_length + self._max_reply_tokens > self._max_context:
                raise ValueError(
                    f"the prompt of {trajectory.episode.task} has {trajectory.prompt_length} tokens, which leaves no "
                    f"room for a reply of {self._max_reply_tokens} within rollout.max_context={self._max_context}; "
                    "raise it."
                )
            return
        turn = trajectory.turns[-1]
        turn.action = str(info["action"])
        turn.observation, turn.reward, turn.valid = result.observation, float(result.reward), bool(info["valid_action"])
        trajectory.reward += turn.reward
        trajectory.score, trajectory.success = float(info["score"]), bool(info["success"])
        if result.terminated or result.truncated:
            trajectory.end = str(info.get("end", "truncated"))
        else:
            trajectory.append_given(self._chat.after_reply(result.observation, ended=turn.finish == "stop"))

    def _reply(self, due: Mapping[int, Trajectory], temperature: float) -> None:
        """Sample the next reply of some trajectories and send it to their environments."""
        if not due:
            return
        completions = self._engine.generate([self._request(trajectory) for trajectory in due.values()], temperature)
        actions = []
        for trajectory, completion in zip(due.values(), completions, strict=True):
            start, stop = trajectory.append_sampled(completion.tokens, completion.logprobs)
            reply = self._chat.decode(completion.tokens)
            trajectory.turns.append(Turn(start, stop, reply, "", "", 0.0, False, completion.finish))
            if completion.finish == "length":
                told = f"The reply was cut off after {self._max_reply_tokens} tokens. Reply with a single short action."
                reply = RefusedAction(reply, told)
            actions.append(reply)
        self._vec.send(list(due), actions)

    def _request(self, trajectory: Trajectory) -> Request:
        key = _key(trajectory.episode)
        seed = f"{trajectory.episode.sampling_seed}/{key}/{len(trajectory.turns)}"
        return Request(key, trajectory.tokens, self._max_reply_tokens, seed)


def _key(episode: Episode) -> str:
    """Name of a rollout for the engine."""
    return f"{episode.task}/{episode.seed}/{episode.sample}"


def _set_error(trajectory: Trajectory, error: Exception) -> None:
    trajectory.end = "error"
    trajectory.error = "".join(traceback.format_exception(error))

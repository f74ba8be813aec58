"""Rolling out episodes: many environments, one engine."""

from __future__ import annotations

import traceback
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass

import gymnasium

from agentgym_envs import RefusedAction
from agentgym_train.chat import Chat
from agentgym_train.engines import Engine, Request
from agentgym_train.trajectory import Episode, Trajectory, Turn, open_trajectory

Environment = gymnasium.Env[str, str]


@dataclass(slots=True)
class _Running:
    """An episode that goes on, in its environment."""

    trajectory: Trajectory
    env: Environment


class RolloutRunner:
    """Rolls out episodes in a pool of environments that is made once and used again."""

    def __init__(
        self,
        make_env: Callable[[], Environment],
        engine: Engine,
        chat: Chat,
        *,
        max_parallel: int,
        max_reply_tokens: int,
        max_context: int,
        reply_instruction: str = "",
        check: Callable[[], None] = lambda: None,
    ) -> None:
        """Make a runner.

        Args:
            make_env: Makes one environment, wrapped in `HorizonCurriculum` outermost.
            engine: Samples the replies.
            chat: Renders prompts and observations.
            max_parallel: Largest number of environments at a time.
            max_reply_tokens: Largest number of sampled tokens a turn.
            max_context: Largest number of tokens of an episode; one that could exceed it is truncated
                with `end="context"` before the engine is asked.
            reply_instruction: Added to the environment's instruction.
            check: Called before each turn; may raise to abandon the rollouts.
        """
        self._make_env = make_env
        self._engine = engine
        self._chat = chat
        self._max_parallel = max_parallel
        self._max_reply_tokens = max_reply_tokens
        self._max_context = max_context
        self._reply_instruction = reply_instruction
        self._check = check
        self._free: list[Environment] = []

    def run(
        self,
        episodes: Sequence[Episode],
        temperature: float,
        on_done: Callable[[Trajectory], None] = lambda _: None,
    ) -> list[Trajectory]:
        """Roll out episodes.

        An environment that raises costs its own trajectory only, which ends with `end="error"`.

        Args:
            episodes: What to roll out.
            temperature: Sampling temperature.
            on_done: Called with each finished trajectory.

        Returns:
            One trajectory per episode, in their order.
        """
        finished: list[Trajectory] = []
        for start in range(0, len(episodes), self._max_parallel):
            finished += self._run_wave(episodes[start : start + self._max_parallel], temperature, on_done)
        return finished

    def close(self) -> None:
        """Close every environment."""
        while self._free:
            self._free.pop().close()

    def _run_wave(
        self, episodes: Sequence[Episode], temperature: float, on_done: Callable[[Trajectory], None]
    ) -> list[Trajectory]:
        trajectories = [Trajectory(episode) for episode in episodes]
        running: list[_Running] = []
        try:
            for trajectory in trajectories:
                one = _Running(trajectory, self._free.pop() if self._free else self._make_env())
                running.append(one)
                self._guarded(one, self._reset)
            while running := self._still_running(running, on_done):
                self._check()
                requests = [self._request(one.trajectory) for one in running]
                completions = self._engine.generate(requests, temperature)
                for one, completion in zip(running, completions, strict=True):
                    trajectory = one.trajectory
                    span = trajectory.append_sampled(completion.tokens, completion.logprobs)
                    trajectory.turns.append(Turn(*span, "", "", "", 0.0, False, completion.finish))
                    self._guarded(one, self._step)
        finally:
            self._engine.release()
            for one in running:  # only when something was raised
                one.env.close()
        return trajectories

    def _still_running(self, running: list[_Running], on_done: Callable[[Trajectory], None]) -> list[_Running]:
        still = []
        for one in running:
            trajectory = one.trajectory
            if not trajectory.end and len(trajectory.tokens) + self._max_reply_tokens > self._max_context:
                trajectory.end = "context"
            if not trajectory.end:
                still.append(one)
                continue
            if trajectory.end == "error":
                with suppress(Exception):  # its state is unknown; the next episode gets a new one
                    one.env.close()
            else:
                self._free.append(one.env)
            on_done(trajectory)
        return still

    def _guarded(self, one: _Running, action: Callable[[_Running], None]) -> None:
        try:
            action(one)
        except Exception:
            one.trajectory.end = "error"
            one.trajectory.error = traceback.format_exc()

    def _reset(self, one: _Running) -> None:
        episode = one.trajectory.episode
        options = {"task": episode.task, "horizon": episode.horizon}
        observation, info = one.env.reset(seed=episode.seed, options=options)
        trajectory = one.trajectory
        open_trajectory(trajectory, self._chat, observation, info, self._reply_instruction)
        if trajectory.prompt_length + self._max_reply_tokens > self._max_context:
            raise ValueError(
                f"the prompt of {episode.task} has {trajectory.prompt_length} tokens, which leaves no room for a "
                f"reply of {self._max_reply_tokens} within rollout.max_context={self._max_context}; raise it."
            )

    def _request(self, trajectory: Trajectory) -> Request:
        episode = trajectory.episode
        key = f"{episode.task}/{episode.seed}/{episode.sample}"
        seed = f"{episode.sampling_seed}/{key}/{len(trajectory.turns)}"
        return Request(key, trajectory.tokens, self._max_reply_tokens, seed)

    def _step(self, one: _Running) -> None:
        trajectory = one.trajectory
        turn = trajectory.turns[-1]
        turn.reply = self._chat.decode(trajectory.tokens[turn.start : turn.stop])
        action = turn.reply
        if turn.finish == "length":
            told = f"The reply was cut off after {self._max_reply_tokens} tokens. Reply with a single short action."
            action = RefusedAction(turn.reply, told)
        observation, reward, terminated, truncated, info = one.env.step(action)
        turn.action = str(info["action"])
        turn.observation, turn.reward, turn.valid = observation, float(reward), bool(info["valid_action"])
        trajectory.reward += float(reward)
        trajectory.score, trajectory.success = float(info["score"]), bool(info["success"])
        if info.get("end") == "fault":
            raise RuntimeError(f"environment fault ({info['fault_kind']}): {info['fault']}")
        if terminated or truncated:
            trajectory.end = str(info.get("end", "truncated"))
        else:
            trajectory.append_given(self._chat.after_reply(observation, ended=turn.finish == "stop"))

"""Rolling out episodes: many environments, one engine."""

from __future__ import annotations

import math
import traceback
from collections import deque
from collections.abc import Callable, Mapping, Sequence, Sized
from contextlib import nullcontext, suppress
from dataclasses import dataclass, field
from functools import lru_cache
from operator import itemgetter

from agentgym_envs import RefusedAction
from agentgym_train.agents import Agent
from agentgym_train.chat import Chat
from agentgym_train.conversation import Conversation
from agentgym_train.engines import Completion, Engine, Request
from agentgym_train.trajectory import Episode, Trajectory
from agentgym_train.watchdog import Watchdog
from agentgym_wrappers import EnvironmentFailure, EnvResult, SubprocVectorEnv

# How long the engine waits for more environments to answer, so that their replies are sampled together.
_LINGER_SECONDS = 0.05
_CHECK_SECONDS = 1.0
_SHOWN = 8  # environments that the watchdog names
_REMEMBERED_ACTIONS = 1 << 16  # whose tokens are kept for constrained replies


@dataclass(slots=True)
class _Rollout:
    """An episode under way.

    Attributes:
        talk: Writes its trajectory.
        temperature: Of its replies.
        starting: Whether the environment's next answer is that of a reset.
        reflecting: Whether the next reply is a reflection.
        aside: What is said after the next reply, if that is no action.
        choices: The replies that the environment's list allows, if they are constrained.
    """

    talk: Conversation
    temperature: float
    starting: bool = True
    reflecting: bool = False
    aside: str | None = None
    choices: list[tuple[int, ...]] = field(default_factory=list)

    @property
    def trajectory(self) -> Trajectory:
        return self.talk.trajectory


class RolloutRunner:
    """Rolls out episodes in the environments of a vector environment.

    Without a barrier: a reply that is complete goes to its environment while others are still being sampled, an
    environment that is ready gets its next action while others are still stepping, and one whose episode is over
    begins the next at once.
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
        agent: Agent | None = None,
        last_turns: int = 0,
        constrained: bool = False,
        deterministic: bool = False,
        check: Callable[[], None] = lambda: None,
        watchdog: Watchdog | None = None,
    ) -> None:
        """Make a runner.

        Args:
            vec: The environments, each wrapped in `ActionParser` and, outermost, `HorizonCurriculum`, with
                autoreset disabled. The caller closes it.
            engine: Samples the replies.
            chat: Renders prompts and observations.
            max_reply_tokens: Largest number of sampled tokens a turn.
            max_context: Largest number of tokens of a prompt and its reply; an episode that could exceed it is
                truncated with `end="context"` before the engine is asked.
            reply_instruction: Added to the environment's instruction.
            agent: How the model is asked to act; `direct` by default.
            last_turns: Turns that a prompt shows; 0 for the whole history.
            constrained: Sample actions among those that the environment lists. The environments need
                `ListedActions` inside the parser.
            deterministic: Wait for all environments before each turn. What is sampled together then never
                depends on how fast they are, and the last bit of a log-probability depends on that.
            check: Called before each turn and about once a second; may raise to abandon the rollouts.
            watchdog: Is told what is waited for.
        """
        self._vec = vec
        self._engine = engine
        self._chat = chat
        self._max_reply_tokens = max_reply_tokens
        self._max_context = max_context
        self._reply_instruction = reply_instruction
        self._agent = agent or Agent()
        self._last_turns = last_turns
        self._constrained = constrained
        self._deterministic = deterministic
        self._check = check
        self._watchdog = watchdog
        self._waiting: deque[_Rollout] = deque()
        self._running: dict[int, _Rollout] = {}  # by environment
        self._talking: list[int] = []  # whose next reply needs nothing from the environment
        self._asked: dict[str, int] = {}  # replies under way: the engine's key -> environment
        self._tokens_of = lru_cache(_REMEMBERED_ACTIONS)(self._encoded)

    def run(
        self,
        episodes: Sequence[Episode],
        temperature: float,
        on_done: Callable[[Trajectory], None] = lambda _: None,
    ) -> list[Trajectory]:
        """Roll out episodes to their ends: `begin` and `work` in one.

        Args:
            episodes: What to roll out; each has its own (task, seed, sample).
            temperature: Sampling temperature.
            on_done: Called with each finished trajectory.

        Returns:
            One trajectory per episode, in their order.

        Raises:
            WorkerError, EngineError: As `work`.
        """
        trajectories = self.begin(episodes, temperature)
        self.work(on_done)
        return trajectories

    def begin(self, episodes: Sequence[Episode], temperature: float) -> list[Trajectory]:
        """Put episodes behind those that are under way; `work` rolls them out.

        Args:
            episodes: What to roll out; none equals one that is under way in (task, seed, sample).
            temperature: Sampling temperature.

        Returns:
            One trajectory per episode, in their order; `end` is empty until it is finished.
        """
        trajectories = [Trajectory(episode) for episode in episodes]
        for trajectory in trajectories:
            talk = Conversation(trajectory, self._chat, self._agent, self._reply_instruction, self._last_turns)
            self._waiting.append(_Rollout(talk, temperature))
        return trajectories

    def work(
        self, on_done: Callable[[Trajectory], None] = lambda _: None, until: Callable[[], bool] = lambda: False
    ) -> None:
        """Roll out what was begun.

        An environment that fails costs its own trajectory only, which ends with `end="error"`.

        Args:
            on_done: Called with each finished trajectory.
            until: Asked again and again whether this is enough. What is then under way stays so, with no reply of
                the engine pending, and the next call goes on with it; the engine may get other weights in between.

        Raises:
            WorkerError: If environments fail too often.
            EngineError: If the engine cannot go on. Nothing is under way after any exception.
        """
        if not self._running:
            self._finish_what_was_abandoned()
        try:
            with self._watchdog.waiting(self._waited_for) if self._watchdog else nullcontext():
                while (self._waiting or self._running) and not until():
                    self._begin_waiting()
                    self._ask(self._unfinished(self._receive(), on_done))
                    self._answer(self._collect())
                while self._asked:
                    self._answer(self._collect())
        except BaseException:
            self._waiting.clear()
            self._running.clear()
            self._talking.clear()
            self._asked.clear()
            raise
        finally:
            if not self._running:
                self._engine.release()

    def _finish_what_was_abandoned(self) -> None:
        """Wait for environments that were at work when an earlier call was left by an exception."""
        while self._vec.under_way:
            self._check()
            with suppress(EnvironmentFailure):
                self._vec.recv(timeout=_CHECK_SECONDS)

    def _begin_waiting(self) -> None:
        """Give every free environment the next episode."""
        free = [index for index in range(self._vec.num_envs) if index not in self._running][: len(self._waiting)]
        begun = {index: self._waiting.popleft() for index in free}
        self._running |= begun
        self._reset(begun)

    def _reset(self, rollouts: Mapping[int, _Rollout]) -> None:
        """Let environments begin their episodes, or begin them again."""
        episodes = [rollout.trajectory.episode for rollout in rollouts.values()]
        options = [{"task": episode.task, "horizon": episode.horizon} for episode in episodes]
        self._vec.send_reset(list(rollouts), [episode.seed for episode in episodes], options)

    def _receive(self) -> list[int]:
        """Take what environments have answered.

        Returns:
            Indices of the environments whose next reply is due, those that talk included; at least one, unless the
            engine is at work on replies.
        """
        ready, self._talking = self._talking, []
        while self._vec.under_way and (self._deterministic or not ready):
            self._check()
            try:
                if self._asked:
                    results = self._vec.recv(timeout=0)
                else:
                    results = self._vec.recv(len(self._vec.under_way), _LINGER_SECONDS)
            except EnvironmentFailure as failure:
                _set_error(self._running[failure.env_index].trajectory, failure)
                ready.append(failure.env_index)
                continue
            for result in results:
                rollout = self._running[result.env_index]
                try:
                    self._take(rollout, result)
                except Exception as error:
                    _set_error(rollout.trajectory, error)
                ready.append(result.env_index)
            if self._asked:
                break
        self._tell_watchdog(ready)
        return sorted(ready)

    def _unfinished(self, ready: Sequence[int], on_done: Callable[[Trajectory], None]) -> dict[int, _Rollout]:
        """Sort out the rollouts that are finished, and return the others."""
        due: dict[int, _Rollout] = {}
        for index in ready:
            trajectory = self._running[index].trajectory
            if not trajectory.end and not self._has_room(trajectory):
                trajectory.end = "context"
            if trajectory.end:
                self._engine.release([_key(trajectory.episode)])
                del self._running[index]
                on_done(trajectory)
            else:
                due[index] = self._running[index]
        return due

    def _take(self, rollout: _Rollout, result: EnvResult) -> None:
        """Write an answer of its environment into a trajectory."""
        trajectory, info = rollout.trajectory, result.info
        if info.get("end") == "fault":
            raise RuntimeError(f"environment fault ({info['fault_kind']}): {info['fault']}")
        ended = result.terminated or result.truncated
        if self._constrained and not ended:
            listed = str(info["available_actions"]).splitlines()
            if not listed:
                raise ValueError(f"the environment lists no available action in {trajectory.episode.task}.")
            rollout.choices = [self._tokens_of(action) for action in listed]
        if rollout.starting:
            rollout.starting = False
            rollout.talk.begin(result.observation, info)
            if not trajectory.turns and not self._has_room(trajectory):
                raise ValueError(
                    f"the prompt of {trajectory.episode.task} has {trajectory.prompt_length} tokens, which leaves no "
                    f"room for a reply of {self._max_reply_tokens} within rollout.max_context={self._max_context}; "
                    "raise it."
                )
            return
        if not (math.isfinite(result.reward) and math.isfinite(info["score"])):
            raise ValueError(f"the environment gives a reward of {result.reward} and a score of {info['score']}.")
        turn = trajectory.turns[-1]
        turn.action = str(info["action"])
        turn.observation, turn.reward, turn.valid = result.observation, float(result.reward), bool(info["valid_action"])
        trajectory.reward += turn.reward
        trajectory.score, trajectory.success = float(info["score"]), bool(info["success"])
        if ended:
            self._end(rollout, str(info.get("end", "truncated")))
        else:
            rollout.talk.say(result.observation)

    def _end(self, rollout: _Rollout, end: str) -> None:
        """End a trial; the episode too, unless the agent wants another trial and there is room to reflect on this."""
        trajectory = rollout.trajectory
        question = None if trajectory.success else self._agent.reflection(trajectory.trials)
        if question is not None:
            rollout.talk.say(f"{trajectory.turns[-1].observation}\n\n{question}")
            rollout.reflecting = self._has_room(trajectory)
        if not rollout.reflecting:
            trajectory.end = end

    def _ask(self, due: Mapping[int, _Rollout]) -> None:
        """Let the engine begin the next reply of some rollouts."""
        by_temperature: dict[float, list[Request]] = {}
        for index, rollout in due.items():
            rollout.aside = None if rollout.reflecting else self._agent.aside(rollout.talk.replies)
            request = self._request(rollout)
            self._asked[request.key] = index
            by_temperature.setdefault(rollout.temperature, []).append(request)
        for temperature, requests in by_temperature.items():
            self._engine.submit(requests, temperature)

    def _collect(self) -> dict[str, Completion]:
        """Take replies that the engine has completed: all of them if there is a barrier, else what comes first."""
        replies: dict[str, Completion] = {}
        while len(replies) < len(self._asked):
            self._check()
            new = self._engine.collect(_LINGER_SECONDS)
            replies |= new
            self._tell_watchdog(new)
            if not self._deterministic:
                break
        return replies

    def _answer(self, completions: Mapping[str, Completion]) -> None:
        """Write replies into their trajectories, and send those that are actions to their environments."""
        actions: dict[int, str] = {}
        again: dict[int, _Rollout] = {}
        for index, completion in sorted(
            ((self._asked.pop(key), reply) for key, reply in completions.items()), key=itemgetter(0)
        ):
            rollout = self._running[index]
            acted = not rollout.reflecting and rollout.aside is None
            reply = rollout.talk.reply(completion, acted)
            if rollout.reflecting:
                rollout.reflecting, rollout.starting = False, True
                rollout.talk.notes.append(reply)
                rollout.trajectory.trials += 1
                again[index] = rollout
            elif rollout.aside is not None:
                rollout.talk.say(rollout.aside)
                self._talking.append(index)
            elif completion.finish == "length":
                told = f"The reply was cut off after {self._max_reply_tokens} tokens. Reply with a single short action."
                actions[index] = RefusedAction(reply, told)
            else:
                actions[index] = reply
        self._vec.send(list(actions), list(actions.values()))
        self._reset(again)

    def _tell_watchdog(self, moved: Sized) -> None:
        if self._watchdog and moved:
            self._watchdog.moved()

    def _waited_for(self) -> str:
        """What is under way, for a person who wonders why nothing moves."""
        asked = set(self._asked.values())
        stepping = [
            f"{index} ({rollout.trajectory.episode.task}, turn {len(rollout.trajectory.turns)})"
            for index, rollout in list(self._running.items())
            if index not in asked
        ]
        shown = ", ".join(stepping[:_SHOWN]) + (", ..." if len(stepping) > _SHOWN else "")
        parts = [f"{len(asked)} replies of the engine"] * bool(asked)
        parts += [f"{len(stepping)} environments: {shown}"] * bool(stepping)
        return " and ".join(parts) or "nothing"

    def _request(self, rollout: _Rollout) -> Request:
        trajectory = rollout.trajectory
        key = _key(trajectory.episode)
        seed = f"{trajectory.episode.sampling_seed}/{key}/{len(trajectory.turns)}"
        acts = not rollout.reflecting and rollout.aside is None
        choices = rollout.choices if self._constrained and acts else None
        return Request(key, trajectory.context, self._max_reply_tokens, seed, choices)

    def _has_room(self, trajectory: Trajectory) -> bool:
        """Whether a further reply fits into the context."""
        return len(trajectory.tokens) - trajectory.starts[-1] + self._max_reply_tokens <= self._max_context

    def _encoded(self, action: str) -> tuple[int, ...]:
        """The tokens of the reply that takes an action."""
        tokens = tuple(self._chat.reply(self._agent.demonstration([action])[-1]))
        if len(tokens) > self._max_reply_tokens:
            raise ValueError(
                f"the available action {action!r} is a reply of {len(tokens)} tokens, more than "
                f"rollout.max_reply_tokens={self._max_reply_tokens}; raise it."
            )
        return tokens


def _key(episode: Episode) -> str:
    """Name of a rollout for the engine."""
    return f"{episode.task}/{episode.seed}/{episode.sample}"


def _set_error(trajectory: Trajectory, error: Exception) -> None:
    trajectory.end = "error"
    trajectory.error = "".join(traceback.format_exception(error))

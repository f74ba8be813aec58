"""From an episode to the tokens of its prompts: what the policy is shown, turn after turn."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from agentgym_train.agents import Agent
from agentgym_train.chat import Chat
from agentgym_train.engines.base import Completion
from agentgym_train.trajectory import Trajectory, Turn


class Conversation:
    """Writes an episode into its trajectory.

    By default a prompt shows the whole history, and the trajectory is one sequence that grows. With `last_turns` a
    prompt shows the task statement, the agent's plan if there is one, and the newest turns; from the first turn that
    is left out on, each prompt then begins a sequence of its own. Replies are never tokenized again.
    """

    def __init__(
        self,
        trajectory: Trajectory,
        chat: Chat,
        agent: Agent | None = None,
        reply_instruction: str = "",
        last_turns: int = 0,
    ) -> None:
        """Begin with an empty trajectory.

        Args:
            trajectory: Takes the tokens and turns.
            chat: Renders prompts and observations.
            agent: How the model is asked; `direct` by default.
            reply_instruction: Added to the system message.
            last_turns: Turns in the environment that a prompt shows, with their observations; 0 for all.
        """
        self.trajectory = trajectory
        self.notes: list[str] = []  # reflections on earlier trials
        self._chat, self._agent = chat, agent or Agent()
        self._reply_instruction = reply_instruction
        self._last_turns = last_turns
        self._trial_start = 0  # its first turn
        self._first_shown = 0  # of the trial's turns, the first one after those that every prompt shows
        self._statement = self._instruction = self._opening = ""

    def begin(self, observation: str, info: Mapping[str, Any]) -> None:
        """Write the first prompt of a trial.

        Args:
            observation: The reset's observation.
            info: The reset's info.

        Raises:
            ValueError: If a further trial begins otherwise than the first one.
        """
        trajectory = self.trajectory
        if trajectory.turns and observation != self._statement:
            raise ValueError(
                f"{trajectory.episode.task} began otherwise when it was started again with the same seed, so there "
                "cannot be a further trial; use an agent with a single one."
            )
        self._statement = observation
        parts = [self._agent.instruction(str(info["instruction"])), self._reply_instruction]
        self._instruction = "\n\n".join(filter(None, parts))
        self._opening = self._agent.opening(observation, self.notes)
        self._trial_start, self._first_shown = len(trajectory.turns), 0
        trajectory.begin_segment()
        trajectory.append_given(self._chat.prompt(self._instruction, self._opening))
        trajectory.reward, trajectory.score, trajectory.success = 0.0, 0.0, False
        if not trajectory.turns:
            trajectory.goal, trajectory.subset = str(info["goal"]), str(info["subset"])
            trajectory.instruction = self._instruction
            trajectory.prompt = f"{self._instruction}\n\n{self._opening}"
            trajectory.prompt_length = len(trajectory.tokens)

    def reply(self, completion: Completion, acted: bool = True) -> str:
        """Write a sampled reply; returns its text."""
        trajectory = self.trajectory
        span = trajectory.append_sampled(completion.tokens, completion.logprobs, completion.allowed)
        text = self._chat.decode(completion.tokens)
        trajectory.turns.append(
            Turn(*span, text, "", "", 0.0, False, completion.finish, acted=acted, trial=trajectory.trials)
        )
        return text

    def say(self, text: str) -> None:
        """Write the next prompt, which ends with an answer to the newest reply."""
        trajectory, turns = self.trajectory, self.turns
        turns[-1].observation = text
        acted = [number for number, turn in enumerate(turns) if turn.acted]
        first = acted[-self._last_turns - 1] + 1 if self._last_turns and len(acted) > self._last_turns else 0
        if first == self._first_shown:
            trajectory.append_given(self._glue(turns[-1]))
            return
        self._first_shown = first
        always = acted[0]  # turns before the first action, such as a plan
        left_out = sum(turn.acted for turn in turns[:first])
        note = f"\n\n(The first {f'{left_out} turns are' if left_out > 1 else 'turn is'} not shown.)"
        trajectory.begin_segment()
        trajectory.append_given(self._chat.prompt(self._instruction, self._opening + note * (not always)))
        for number, turn in enumerate(turns):
            if number < always or number >= first:
                trajectory.append_given(trajectory.tokens[turn.start : turn.stop])
                trajectory.append_given(self._glue(turn, note * (number == always - 1)))

    @property
    def replies(self) -> list[str]:
        """The replies of the present trial."""
        return [turn.reply for turn in self.turns]

    @property
    def turns(self) -> list[Turn]:
        """The turns of the present trial."""
        return self.trajectory.turns[self._trial_start :]

    def _glue(self, turn: Turn, note: str = "") -> list[int]:
        """The tokens between a reply and the next one."""
        return self._chat.after_reply(turn.observation + note, ended=turn.finish == "stop")

"""The oracle's episodes as training data."""

from itertools import pairwise

import gymnasium
import pytest
from transformers import PreTrainedTokenizerBase

from agentgym_train.chat import Chat
from agentgym_train.demonstrations import oracle_trajectories
from agentgym_wrappers import ActionParser, HorizonCurriculum
from tests.train.letters_env import LettersEnv


class HelplessEnv(LettersEnv):
    def oracle_action(self) -> str | None:
        return None


def test_oracle_episodes_are_solved_and_only_replies_are_trained_on(demo_tokenizer: PreTrainedTokenizerBase) -> None:
    chat = Chat(demo_tokenizer)
    env = HorizonCurriculum(ActionParser(gymnasium.make("AgentGym/TextCraft-v0")), 2)
    tasks = [f"textcraft_{index}" for index in range(0, 500, 60)]
    trajectories = oracle_trajectories(env, chat, tasks, list(range(len(tasks))))
    env.close()
    assert [trajectory.episode.task for trajectory in trajectories] == tasks
    assert max(len(trajectory.turns) for trajectory in trajectories) > 3
    for trajectory in trajectories:
        assert trajectory.success
        assert trajectory.reward == trajectory.score == 1.0
        assert trajectory.end == "success"
        assert all(turn.valid for turn in trajectory.turns)
        trained = [token for token, flag in zip(trajectory.tokens, trajectory.mask, strict=True) if flag]
        assert trained == [token for turn in trajectory.turns for token in chat.reply(turn.reply)]
        spans = [(turn.start, turn.stop) for turn in trajectory.turns]
        assert spans[0][0] == trajectory.prompt_length
        assert spans[-1][1] == len(trajectory.tokens)
        for turn, (one, two) in zip(trajectory.turns, pairwise(spans), strict=False):
            assert trajectory.tokens[one[1] : two[0]] == chat.after_reply(turn.observation, ended=True)


def test_an_oracle_that_gives_up_is_an_error(chat: Chat) -> None:
    env = HorizonCurriculum(ActionParser(HelplessEnv()), 2)
    with pytest.raises(RuntimeError, match="the oracle did not solve letters_0"):
        oracle_trajectories(env, chat, ["letters_0"], [0])

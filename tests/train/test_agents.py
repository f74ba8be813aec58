"""Agents: what they add to prompts, which replies reach the environment, and what trains."""

from pathlib import Path

import gymnasium
import pytest
from transformers import PreTrainedTokenizerBase

from agentgym_train.advantages import token_rewards
from agentgym_train.agents import AGENTS, Agent, PlanThenAct, ReAct, ReflectAfterFailure, check_formats, load_agent
from agentgym_train.chat import Chat
from agentgym_train.config import ConfigError
from agentgym_train.demonstrations import oracle_trajectory
from agentgym_train.engines.hf import HFEngine
from agentgym_train.metrics import episode_metrics
from agentgym_train.trajectory import Episode
from agentgym_wrappers import ActionParser, HorizonCurriculum
from tests.train.letters_env import LettersEnv
from tests.train.listing_env import ListingEnv, UnlikeEnv
from tests.train.rollouts import RecordingEngine, Run, assert_token_exact

DOCS = Path(__file__).resolve().parents[2] / "docs" / "agents.md"


def episodes_of(*tasks: int, samples: int = 4, horizon: int = 3) -> list[Episode]:
    return [Episode(f"letters_{t}", 7 + t, sample, horizon, "test") for t in tasks for sample in range(samples)]


def test_direct_adds_nothing(engine: HFEngine, run_with: Run, chat: Chat) -> None:
    for trajectory in run_with(engine, agent=load_agent("direct")).run(episodes_of(0, 1), 1.0):
        observation = trajectory.prompt.removeprefix(f"{LettersEnv().instruction}\n\n")
        assert trajectory.tokens[: trajectory.prompt_length] == chat.prompt(LettersEnv().instruction, observation)
        assert trajectory.starts == [0]
        assert all(turn.acted for turn in trajectory.turns)
        assert set(trajectory.allowed) == {()}


def test_react_asks_for_a_thought_and_takes_the_action_line(engine: HFEngine, run_with: Run) -> None:
    runner = run_with(engine, agent=ReAct(), formats=ReAct.formats, reply_instruction="Be brief.")
    for trajectory in runner.run(episodes_of(0, samples=2), 1.0):
        assert "Thought: " in trajectory.prompt
        assert trajectory.prompt.index("Action: one action\n\nBe brief.\n\n") > 0
        assert not any(turn.valid for turn in trajectory.turns)  # letters alone are no Action: line
    env = HorizonCurriculum(ActionParser(LettersEnv(), ReAct.formats), 9)
    _, info = env.reset(seed=0, options={"task": "letters_0"})
    *_, info = env.step("Thought: an a is wanted.\nAction: aaa")
    assert info["action"] == "aaa"
    assert info["valid_action"]


def test_a_plan_is_sampled_and_trained_and_no_turn(recorder: RecordingEngine, run_with: Run, chat: Chat) -> None:
    agent = PlanThenAct()
    trajectories = run_with(recorder, agent=agent).run(episodes_of(0, 1, 2, horizon=2), 1.0)
    for trajectory in trajectories:
        plan, *actions = trajectory.turns
        assert "First write a plan" in trajectory.prompt
        assert not plan.acted
        assert plan.observation == agent.aside([])
        assert all(turn.acted for turn in actions)
        assert len(actions) == 2 or trajectory.success
        assert trajectory.mask[plan.start : plan.stop] == [1] * (plan.stop - plan.start)
        glue = chat.after_reply(plan.observation, ended=plan.finish == "stop")
        assert trajectory.tokens[plan.stop : actions[0].start] == glue
        assert_token_exact(trajectory, recorder)
    metrics = episode_metrics(trajectories)
    assert metrics["turns/mean"] == pytest.approx(sum(len(t.turns) - 1 for t in trajectories) / 12)
    seeds = [request.seed for request, _, _ in recorder.calls]
    assert len(set(seeds)) == len(seeds)


@pytest.mark.parametrize("deterministic", [True, False])
def test_any_number_of_environments_gives_the_same_plans_and_trials(
    engine: HFEngine, run_with: Run, deterministic: bool
) -> None:
    class Both(PlanThenAct):
        def reflection(self, trial: int) -> str | None:
            return "Why?" if trial < 3 else None

    episodes = episodes_of(0, 1, samples=3, horizon=1)
    together = run_with(engine, agent=Both()).run(episodes, 1.0)
    few = run_with(engine, agent=Both(), max_parallel=2, deterministic=deterministic).run(episodes, 1.0)
    assert [trajectory.tokens for trajectory in few] == [trajectory.tokens for trajectory in together]
    assert {trajectory.trials for trajectory in together} == {3}
    assert [turn.acted for turn in together[0].turns] == [False, True, False] * 2 + [False, True]


def test_after_a_failed_trial_the_task_is_tried_again_with_the_reflection(
    recorder: RecordingEngine, run_with: Run, chat: Chat
) -> None:
    runner = run_with(recorder, ListingEnv, agent=ReflectAfterFailure(trials=3), constrained=True, max_reply_tokens=16)
    trajectories = runner.run(episodes_of(0, 1, 2, samples=8, horizon=1), 1.0)
    assert {trajectory.trials for trajectory in trajectories} == {1, 2, 3}
    for trajectory in trajectories:
        assert_token_exact(trajectory, recorder)
        assert [turn.acted for turn in trajectory.turns] == ([True, False] * trajectory.trials)[:-1]
        assert trajectory.success or trajectory.trials == 3
        assert trajectory.end == ("success" if trajectory.success else "horizon")
        # Every trial begins anew, in a sequence of its own, and shows the notes so far.
        assert len(trajectory.starts) == trajectory.trials
        notes = [turn.reply for turn in trajectory.turns if not turn.acted]
        statement = trajectory.prompt.removeprefix(f"{ListingEnv().instruction}\n\n")
        for trial, start in enumerate(trajectory.starts):
            opening = ReflectAfterFailure().opening(statement, notes[:trial])
            prompt = chat.prompt(ListingEnv().instruction, opening)
            assert trajectory.tokens[start : start + len(prompt)] == prompt
        # What counts is the last trial.
        last = trajectory.turns[-1]
        assert trajectory.reward == last.reward == pytest.approx(trajectory.score)
        assert float(token_rewards(trajectory).sum()) == pytest.approx(trajectory.reward)
        assert trajectory.to_row()["trials"] == trajectory.trials
    metrics = episode_metrics(trajectories)
    first = sum(t.success and t.trials == 1 for t in trajectories) / 24
    assert metrics["success/first_trial"] == pytest.approx(first) != metrics["success/mean"]
    assert metrics["trials/mean"] == pytest.approx(sum(t.trials for t in trajectories) / 24)


def test_without_room_for_a_reflection_the_episode_ends(engine: HFEngine, run_with: Run) -> None:
    (plain,) = run_with(engine).run(episodes_of(0, samples=1, horizon=1), 1.0)
    room = len(plain.tokens) + 8
    runner = run_with(engine, agent=ReflectAfterFailure(), max_context=room)
    (trajectory,) = runner.run(episodes_of(0, samples=1, horizon=1), 1.0)
    assert (trajectory.end, trajectory.trials, len(trajectory.turns)) == ("horizon", 1, 1)


def test_a_task_that_does_not_begin_alike_cannot_be_tried_again(engine: HFEngine, run_with: Run) -> None:
    runner = run_with(engine, UnlikeEnv, agent=ReflectAfterFailure())
    (trajectory,) = runner.run(episodes_of(0, samples=1, horizon=1), 1.0)
    assert trajectory.end == "error"
    assert "letters_0 began otherwise when it was started again with the same seed" in trajectory.error


@pytest.mark.parametrize("name", ["react", "plan-then-act", "direct", "reflect-after-failure"])
def test_the_oracle_is_written_down_as_the_agent_would_have_acted(
    demo_tokenizer: PreTrainedTokenizerBase, name: str
) -> None:
    agent, chat = load_agent(name), Chat(demo_tokenizer)
    formats = agent.formats or ("bare",)
    check_formats(agent, formats)
    env = HorizonCurriculum(ActionParser(gymnasium.make("AgentGym/TextCraft-v0"), formats), 2)
    trajectory = oracle_trajectory(env, chat, "textcraft_300", 3, agent=agent)
    env.close()
    assert trajectory.success
    acted = [turn for turn in trajectory.turns if turn.acted]
    assert len(acted) > 2
    assert all(turn.valid for turn in acted)
    assert [turn.reply for turn in trajectory.turns] == agent.demonstration([turn.action for turn in acted])
    assert trajectory.sampled == sum(len(chat.reply(turn.reply)) for turn in trajectory.turns)
    if name == "plan-then-act":
        assert trajectory.turns[0].reply.startswith(f"1. {acted[0].action}\n2. {acted[1].action}")


def test_an_agent_of_ones_own_from_the_documentation(
    engine: HFEngine, run_with: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    code = DOCS.read_text(encoding="utf-8").split("```python\n# my_agent.py\n")[1].split("```")[0]
    (tmp_path / "my_agent.py").write_text(code, encoding="utf-8")
    monkeypatch.syspath_prepend(str(tmp_path))
    agent = load_agent("my_agent:Noticing", {"every": 2})
    trajectories = run_with(engine, agent=agent).run(episodes_of(0, horizon=4), 1.0)
    for trajectory in trajectories:
        assert [turn.acted for turn in trajectory.turns] == [False, True, True, False, True, True]
        assert "Before every second action" in trajectory.prompt


def test_agents_that_cannot_be_made_are_refused() -> None:
    assert set(AGENTS) == {"direct", "react", "plan-then-act", "reflect-after-failure"}
    for name, options, message in [
        ("recat", {}, r"agent.name='recat' is unknown; accepted are direct, react, .* Did you mean 'react'\?"),
        ("no.such.module:X", {}, r"agent.name='no.such.module:X' cannot be imported \(No module named 'no'\)"),
        ("agentgym_train.agents:Nobody", {}, "cannot be imported"),
        ("agentgym_train.agents:load_agent", {}, "give a subclass of agentgym_train.agents.Agent"),
        ("reflect-after-failure", {"trials": 1}, "trials=1 is not accepted; give at least 2"),
        ("direct", {"trials": 3}, r"agent.options=\{'trials': 3\} of agent.name='direct'"),
    ]:
        with pytest.raises(ConfigError, match=message):
            load_agent(name, options)
    with pytest.raises(ConfigError, match=r"writes the action 'look around' as 'Action: look around'"):
        check_formats(ReAct(), ("tags",))
    with pytest.raises(ConfigError, match=r"env.formats=\['fence'\] does not accept"):
        check_formats(Agent(), ("fence",))

"""Arrays and action numbers in place of text."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from functools import partial
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium.error import ResetNeeded
from gymnasium.vector import AutoresetMode

import agentgym_envs  # noqa: F401  (registers the ids)
from agentgym_wrappers import HorizonCurriculum, SubprocVectorEnv, fork, restore, snapshot
from agentgym_wrappers.encoders import Embeddings, NgramHash, TokenIds, encoder_from
from agentgym_wrappers.numeric import DiscreteActions, EncodeObservation

IDS = ["AgentGym/TextCraft-Depth1-v0", "AgentGym/BabyAI-GoTo-v0"]
SMALL = NgramHash(size=64, goal_size=16)


def numeric(id: str, **kwargs: Any) -> gymnasium.Env[Any, Any]:
    return DiscreteActions(EncodeObservation(gymnasium.make(id), SMALL), **kwargs)


def possible(info: dict[str, Any]) -> list[int]:
    return list(np.flatnonzero(info["action_mask"]))


def number_of(env: gymnasium.Env[Any, Any], text: str) -> int:
    actions: dict[int, str] = env.get_wrapper_attr("possible_actions")()
    return next(number for number, action in actions.items() if action == text)


# ---- both together ----------------------------------------------------------------------------------


@pytest.mark.parametrize("id", IDS)
def test_the_checker_of_stable_baselines_passes(id: str) -> None:
    pytest.importorskip("stable_baselines3")
    from stable_baselines3.common.env_checker import check_env

    env = numeric(id)
    check_env(env)
    env.close()


@pytest.mark.parametrize("id", IDS)
def test_every_number_in_the_mask_is_an_accepted_action_and_the_oracles_is_among_them(id: str) -> None:
    env = numeric(id)
    rng = np.random.default_rng(0)
    for seed in range(5):
        observation, info = env.reset(seed=seed)
        done = False
        while not done:
            assert env.observation_space.contains(observation)
            listed = env.unwrapped.available_actions()  # type: ignore[attr-defined]
            actions = env.get_wrapper_attr("possible_actions")()
            assert sorted(actions.values()) == sorted(set(listed))
            assert possible(info) == list(actions)
            assert env.unwrapped.oracle_action() in actions.values()  # type: ignore[attr-defined]
            choice = rng.choice(possible(info))
            observation, _, terminated, truncated, info = env.step(choice)
            done = terminated or truncated
            assert info["valid_action"]
            assert info["action"] == actions[choice]
    assert possible(info)  # also at the end
    env.close()


def test_the_same_in_any_process_whatever_the_hash_seed() -> None:
    code = (
        "import hashlib, gymnasium, agentgym_envs, numpy as np\n"
        "from agentgym_wrappers.numeric import DiscreteActions, EncodeObservation\n"
        "env = DiscreteActions(EncodeObservation(gymnasium.make('AgentGym/BabyAI-GoTo-v0')), order=3)\n"
        "seen = hashlib.sha256()\n"
        "observation, info = env.reset(seed=5)\n"
        "for k in range(20):\n"
        "    seen.update(observation.tobytes() + info['action_mask'].tobytes())\n"
        "    numbers = np.flatnonzero(info['action_mask'])\n"
        "    observation, _, terminated, truncated, info = env.step(numbers[k % len(numbers)])\n"
        "    if terminated or truncated:\n"
        "        observation, info = env.reset()\n"
        "print(seen.hexdigest())\n"
    )
    printed = {
        subprocess.run(
            [sys.executable, "-c", code],
            env={**os.environ, "PYTHONHASHSEED": hash_seed},
            capture_output=True,
            text=True,
            timeout=120,
            check=True,
        ).stdout
        for hash_seed in ("0", "1", "2")
    }
    assert len(printed) == 1


@pytest.mark.parametrize("mode", list(AutoresetMode))
def test_many_in_workers_play_as_one_by_one(mode: AutoresetMode) -> None:
    wrappers: list[Any] = [partial(EncodeObservation, encoder=SMALL), partial(DiscreteActions, n=256)]
    with SubprocVectorEnv.make(IDS[0], 3, workers=2, env_wrappers=wrappers, autoreset_mode=mode) as vec:
        assert vec.single_action_space == gymnasium.spaces.Discrete(256)
        observations, infos = vec.reset(seed=7)
        singles = [DiscreteActions(EncodeObservation(gymnasium.make(IDS[0]), SMALL), n=256) for _ in range(3)]
        for index, env in enumerate(singles):
            observation, info = env.reset(seed=7 + index)
            np.testing.assert_array_equal(observations[index], observation)
            np.testing.assert_array_equal(infos["action_mask"][index], info["action_mask"])
        actions = np.array([mask.argmax() for mask in infos["action_mask"]])
        observations, rewards, _, _, infos = vec.step(actions)
        for index, env in enumerate(singles):
            observation, reward, _, _, info = env.step(actions[index])
            np.testing.assert_array_equal(observations[index], observation)
            assert (rewards[index], infos["action"][index]) == (reward, info["action"])
            env.close()
        assert vec.call("action_masks")[0].dtype == np.bool_


def test_an_episode_goes_on_after_its_worker_was_killed() -> None:
    curriculum = partial(HorizonCurriculum, schedule=50)
    wrappers: list[Any] = [partial(EncodeObservation, encoder=SMALL), DiscreteActions, curriculum]
    with SubprocVectorEnv.make(IDS[1], 1, env_wrappers=wrappers, autoreset_mode="Disabled") as vec:
        assert vec.replayable
        _, infos = vec.reset(seed=0)
        vec.step(np.array([infos["action_mask"][0].argmax()]))
        before = vec.call("possible_actions")[0]
        os.kill(vec.worker_pids[0], signal.SIGKILL)
        assert vec.call("possible_actions")[0] == before
        _, _, _, _, infos = vec.step(np.array([next(iter(before))]))
        assert infos["turn"].tolist() == [2]


@pytest.mark.parametrize("kind", ["DummyVecEnv", "SubprocVecEnv"])
def test_the_vector_environments_of_stable_baselines_carry_observations_and_masks(kind: str) -> None:
    pytest.importorskip("sb3_contrib")
    from sb3_contrib.common.maskable.utils import get_action_masks
    from stable_baselines3.common import vec_env
    from stable_baselines3.common.env_util import make_vec_env

    vec = make_vec_env(partial(numeric, IDS[0], n=128), 2, seed=0, vec_env_cls=getattr(vec_env, kind))
    observations = vec.reset()
    assert observations.shape == (2, 80)  # type: ignore[union-attr]
    for _ in range(12):
        masks = get_action_masks(vec)
        assert masks.shape == (2, 128)
        _, _, _, infos = vec.step(masks.argmax(axis=1))
        assert all(info["valid_action"] for info in infos)
    vec.close()


@pytest.mark.parametrize("id", IDS)
def test_snapshots_and_forks_keep_goal_numbers_and_mask(id: str) -> None:
    env = HorizonCurriculum(DiscreteActions(EncodeObservation(gymnasium.make(id), SMALL), n=512, order=1), 30)
    env.reset(seed=1)
    observation, *_, info = env.step(int(env.get_wrapper_attr("action_masks")().argmax()))
    saved = snapshot(env)
    other = fork(env)
    restored, told = restore(other, saved)
    np.testing.assert_array_equal(restored, observation)
    np.testing.assert_array_equal(told["action_mask"], info["action_mask"])
    assert {key: told[key] for key in ("action", "turn")} == {key: info[key] for key in ("action", "turn")}
    chosen = int(info["action_mask"].argmax())
    mine, theirs = env.step(chosen), other.step(chosen)
    np.testing.assert_array_equal(mine[0], theirs[0])
    assert mine[4]["action"] == theirs[4]["action"]
    env.close()
    other.close()


def test_made_again_from_the_json_of_its_spec() -> None:
    env = DiscreteActions(EncodeObservation(gymnasium.make(IDS[0]), TokenIds(["craft", "get"], 12)), n=64, order=2)
    assert env.spec is not None
    again = gymnasium.make(gymnasium.envs.registration.EnvSpec.from_json(env.spec.to_json()))
    np.testing.assert_array_equal(again.reset(seed=4)[0], env.reset(seed=4)[0])
    assert again.get_wrapper_attr("possible_actions")() == env.possible_actions()
    env.close()
    again.close()


# ---- actions ----------------------------------------------------------------------------------------


def test_a_number_stands_for_the_same_action_whatever_the_goal() -> None:
    env = numeric("AgentGym/TextCraft-v0")
    numbers: dict[str, set[int]] = {}
    for task in range(40):
        env.reset(seed=0, options={"task": task})
        for number, text in env.get_wrapper_attr("possible_actions")().items():
            numbers.setdefault(text, set()).add(number)
    shared = [text for text in numbers if len(numbers[text]) > 1]
    assert len(numbers) > 60
    assert len(shared) < 0.02 * len(numbers)  # what two actions that are possible at once move
    env.close()


def test_another_order_gives_other_numbers_to_the_same_actions() -> None:
    first, second = numeric(IDS[1]), numeric(IDS[1], order=1)
    first.reset(seed=0)
    second.reset(seed=0)
    one, two = first.get_wrapper_attr("possible_actions")(), second.get_wrapper_attr("possible_actions")()
    assert sorted(one.values()) == sorted(two.values())
    assert list(one) != list(two)
    first.close()
    second.close()


def test_actions_that_fall_on_one_number_are_told_apart() -> None:
    env = numeric(IDS[1], n=20)
    for seed in range(20):
        env.reset(seed=seed)
        listed = env.unwrapped.available_actions()  # type: ignore[attr-defined]
        if len(listed) <= 20:
            assert sorted(env.get_wrapper_attr("possible_actions")().values()) == sorted(listed)
    env.close()


def test_a_number_without_an_action_spends_a_turn() -> None:
    env = numeric(IDS[0])
    _, info = env.reset(seed=0)
    nothing = int((info["action_mask"] == 0).argmax())
    _, reward, terminated, truncated, info = env.step(nothing)
    assert (reward, terminated, truncated) == (0.0, False, False)
    assert (info["valid_action"], info["turn"], info["action"]) == (False, 1, "")
    env.close()


def test_a_fixed_list_has_its_own_numbers_and_no_other_action() -> None:
    primitive = ["turn left", "turn right", "move forward", "drop"]
    env = numeric(IDS[1], actions=primitive)
    env.reset(seed=0)
    assert env.action_space == gymnasium.spaces.Discrete(4)
    assert env.get_wrapper_attr("possible_actions")()[1] == "turn right"
    _, *_, info = env.step(3)  # nothing is carried
    assert not info["valid_action"]
    again = numeric(IDS[1], actions=primitive, order=1)
    again.reset(seed=0)
    assert number_of(again, "turn right") != 1 or number_of(again, "turn left") != 0
    env.close()
    again.close()


@pytest.mark.parametrize("number", [-1, 1024, 1.5, "1", None])
def test_what_is_no_number_is_refused(number: Any) -> None:
    env = numeric(IDS[0])
    env.reset(seed=0)
    with pytest.raises(ValueError, match="a number from 0 to 1023"):
        env.step(number)
    env.close()


def test_too_few_numbers_are_refused_with_a_number_that_suffices() -> None:
    env = numeric(IDS[1], n=2)
    with pytest.raises(ValueError, match=r"lists \d+ actions in this state, but n=2; give n=\d+"):
        env.reset(seed=0)
    env.close()


@pytest.mark.parametrize("arguments", [{}, {"actions": ["noop"]}])
@pytest.mark.parametrize("scenario", ["DeepSearch", "WebArena"])
def test_a_scenario_that_lists_no_actions_is_refused(scenario: str, arguments: dict[str, Any]) -> None:
    with gymnasium.make(f"AgentGym/{scenario}-v0") as env:
        with pytest.raises(ValueError, match=rf"{scenario} cannot list them .* BabyAI, SciWorld, TextCraft"):
            DiscreteActions(env, **arguments)


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        ({"n": 1}, r"n is an integer of at least 2 and at most \d+, not 1"),
        ({"n": True}, "n is an integer"),
        ({"n": float("nan")}, "n is an integer"),
        ({"order": -1}, "order is an integer of at least 0"),
        ({"order": 2**64}, "order is an integer of at least 0"),
        ({"actions": []}, "at least one action"),
        ({"actions": 5}, "at least one action, not 5"),
        ({"actions": [None]}, "at least one action"),
        ({"actions": "inventory"}, "at least one action"),
        ({"actions": ["get", "get"]}, "names one twice"),
    ],
)
def test_bad_arguments_of_actions(arguments: dict[str, Any], told: str) -> None:
    with gymnasium.make(IDS[0]) as env, pytest.raises(ValueError, match=told):
        DiscreteActions(env, **arguments)


def test_other_environments_are_refused() -> None:
    with gymnasium.make("CartPole-v1") as env:
        for wrapper in (DiscreteActions, EncodeObservation):
            with pytest.raises(ValueError, match=r"wraps agentgym_envs\.TextEnv"):
                wrapper(env)


def test_what_is_numbers_already_is_not_numbered_again() -> None:
    with numeric(IDS[0]) as env:
        with pytest.raises(ValueError, match=r"whose actions are text, but those of .* are in Discrete\(1024\)"):
            DiscreteActions(env)
        with pytest.raises(ValueError, match=r"whose observations are text, but those of .* are in Box"):
            EncodeObservation(env)


def test_a_count_may_be_numpys() -> None:
    env = numeric(IDS[0], n=np.int64(64), order=np.int32(1))
    assert env.spec is not None
    assert '"n": 64' in env.spec.to_json()
    env.close()


def test_before_the_first_reset_there_is_nothing_to_do() -> None:
    env = numeric(IDS[0])
    with pytest.raises(ResetNeeded):
        env.get_wrapper_attr("action_masks")()
    with pytest.raises(ResetNeeded):
        env.step(0)
    env.close()


# ---- observations -----------------------------------------------------------------------------------


def test_the_goal_is_in_every_observation() -> None:
    arrays = []
    for task in (0, 5):
        env = EncodeObservation(gymnasium.make("AgentGym/TextCraft-v0"))
        env.reset(seed=0, options={"task": task})
        arrays.append(env.step("inventory")[0])
        env.close()
    assert (arrays[0][:256] != arrays[1][:256]).any()
    np.testing.assert_array_equal(arrays[0][256:], arrays[1][256:])  # the same text


def test_groups_of_words_stay_within_a_clause() -> None:
    encode = NgramHash(size=4096, goal_size=0, order=2)
    assert encode("", "a red ball").sum() == 6  # 3 words, 2 pairs, the clause
    assert encode("", "a red. ball").sum() == 4
    np.testing.assert_array_equal(encode("", "A  Red\nball"), encode("", "ball; a red"))
    assert not encode("", "").any()


def test_token_numbers() -> None:
    encode = TokenIds.of_texts(["red ball", "red key", "blue ball red"], size=3, length=8)
    assert encode.vocabulary == ("red", "ball", "blue")
    assert encode("go to red", "Red ball!").tolist() == [1, 1, 3, 2, 3, 4, 0, 0]
    assert encode("red " * 20, "").tolist() == [3] * 8
    assert encode.space.contains(encode("a", "b"))


def test_a_sentence_encoder_of_the_users() -> None:
    encode = Embeddings(lambda texts: [[len(text), 1.0] for text in texts], size=2)
    env = EncodeObservation(gymnasium.make(IDS[0]), encode)
    observation, info = env.reset(seed=0)
    assert observation.dtype == np.float32
    assert observation[:2].tolist() == [len(info["goal"]), 1.0]
    env.close()
    with pytest.raises(ValueError, match=r"shape \(2, 2\) for two texts, not \(2, 3\)"):
        Embeddings(lambda texts: [[0.0, 1.0]] * 2, size=3)("a", "b")


class Returns:
    """An encoder that returns a fixed value."""

    space = gymnasium.spaces.Box(0.0, 1.0, (3,), np.float32)

    def __init__(self, value: Any) -> None:
        self.value = value

    def __call__(self, goal: str, observation: str) -> Any:
        return self.value


@pytest.mark.parametrize("value", [None, np.zeros(4, np.float32), np.full(3, np.nan, np.float32), [1.0, 1.0, 1.0]])
def test_an_encoder_that_leaves_its_space_is_refused(value: Any) -> None:
    with EncodeObservation(gymnasium.make(IDS[0]), Returns(value)) as env:
        with pytest.raises(ValueError, match=r"the encoder returned .* not in its space Box"):
            env.reset(seed=0)


def test_an_encoder_within_its_space_is_taken_as_it_is() -> None:
    with EncodeObservation(gymnasium.make(IDS[0]), Returns(np.ones(3, np.float32))) as env:
        assert env.reset(seed=0)[0].tolist() == [1.0, 1.0, 1.0]


def test_a_sentence_encoder_that_returns_nan_is_refused() -> None:
    encode = Embeddings(lambda texts: [[float("nan")]] * len(texts), size=1)
    with EncodeObservation(gymnasium.make(IDS[0]), encode) as env, pytest.raises(ValueError, match="not in its space"):
        env.reset(seed=0)


@pytest.mark.parametrize("encoder", [SMALL, TokenIds(["a", "b"], length=4)])
def test_an_encoder_and_its_plain_form_are_equal(encoder: NgramHash | TokenIds) -> None:
    assert encoder_from(json.loads(json.dumps(encoder.to_dict()))) == encoder


@pytest.mark.parametrize(
    ("make", "told"),
    [
        (lambda: encoder_from({"kind": "bytes"}), "no kind of ngrams, tokens"),
        (lambda: encoder_from({"kind": "ngrams", "width": 3}), "unexpected keyword argument 'width'"),
        (lambda: encoder_from("ngrams"), "is no encoder"),
        (lambda: NgramHash(size=0), "size is an integer of at least 1, not 0"),
        (lambda: TokenIds([]), "at least one word"),
        (lambda: TokenIds("abc"), "at least one word"),
        (lambda: Embeddings(None, 3), "encode is a function"),  # type: ignore[arg-type]
    ],
)
def test_bad_encoders(make: Any, told: str) -> None:
    with pytest.raises(ValueError, match=told):
        make()

"""Text scenarios for LLM agents as Gymnasium environments.

Importing this package registers the ids; a scenario's code is imported when it is made.
"""

from gymnasium.envs.registration import register

from agentgym_envs.core import Fault, RefusedAction, TextEnv, TextSpace
from agentgym_envs.tasks import Task, TaskTable

__all__ = ["Fault", "RefusedAction", "Task", "TaskTable", "TextEnv", "TextSpace"]

# Scenario -> entry point, subsets with an id of their own, and a limit that ends any agent's episode.
# Without Gymnasium's passive checker: after a failed first reset it raises TypeError at every step.
_SCENARIOS = {
    "TextCraft": ("agentgym_envs.textcraft.env:TextCraftEnv", ("Depth1", "Depth2", "Depth3", "Depth4"), 100),
    "BabyAI": (
        "agentgym_envs.babyai.env:BabyAIEnv",
        ("GoTo", "Open", "Pickup", "PutNext", "Unlock", "Synth"),
        100,
    ),
    "SciWorld": (
        "agentgym_envs.sciworld.env:SciWorldEnv",
        (
            *("Matter", "Measure", "Power", "TestCond", "Find", "ChemMix", "Lifespan", "LifeStages"),
            *("Grow", "InclinedPlane", "Genetics"),  # left out by AgentGym
        ),
        200,  # the simulator's own paths were seen to take up to 147
    ),
    "DeepSearch": (
        "agentgym_envs.deepsearch.env:make",
        ("NQ", "TriviaQA", "PopQA", "HotpotQA", "2WikiMultiHopQA", "MuSiQue", "Bamboogle"),
        20,
    ),
    "WebArena": ("agentgym_envs.webarena.env:make", ("Shopping", "CMS", "Reddit", "GitLab"), 30),
}
# Subsets whose tasks take hundreds of turns.
_MAX_TURNS = dict.fromkeys(("Grow", "InclinedPlane", "Genetics"), 1_000)
# A string: the environments do not import the wrappers.
_VECTOR = "agentgym_wrappers.vector_entry"

for _scenario, (_entry_point, _subsets, _max_turns) in _SCENARIOS.items():
    for _subset in (None, *_subsets):
        _id = f"AgentGym/{_scenario}-v0" if _subset is None else f"AgentGym/{_scenario}-{_subset}-v0"
        register(
            id=_id,
            entry_point=_entry_point,
            vector_entry_point=f"{_VECTOR}:{_id}",
            max_episode_steps=_MAX_TURNS.get(_subset or "", _max_turns),
            disable_env_checker=True,
            kwargs={} if _subset is None else {"subset": _subset},
        )

"""Settings of the engine."""

from agentgym_train.config import EngineConfig as EngineConfig  # where it does not import an engine's packages

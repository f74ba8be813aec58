"""Engines that sample replies. All take token ids and give token ids."""

from agentgym_train.engines.base import Completion, Engine, EngineError, Request

__all__ = ["Completion", "Engine", "EngineError", "Request"]

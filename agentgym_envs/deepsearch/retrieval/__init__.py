"""Retrieval for DeepSearch: corpora, the retrievers over them, and the HTTP protocol between machines."""

from agentgym_envs.deepsearch.retrieval.interface import (
    Hit,
    MissingPackage,
    Passage,
    Retriever,
    RetrieverFault,
    open_retriever,
)

__all__ = ["Hit", "MissingPackage", "Passage", "Retriever", "RetrieverFault", "open_retriever"]

"""Builds the embedded corpus and its questions from data packages: `python -m agentgym_envs.deepsearch.build`."""

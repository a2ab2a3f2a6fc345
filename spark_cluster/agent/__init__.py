"""The agent, the code that runs on a node: standard library only, Python >= 3.10."""

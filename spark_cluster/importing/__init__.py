"""Reads how others write down a launch of vLLM: command lines, and recipes of other tools."""

"""Importers of launches of vLLM written by others: command lines, and recipes of other tools."""

"""Serving, from containers to right answers: how the engine is run, readiness, logs, VRAM."""

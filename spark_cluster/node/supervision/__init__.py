"""Supervision of an engine on the head, without the laptop: look, judge, stop, start."""

"""Models that are loaded when they are asked for: a program of the head, next to the proxy."""

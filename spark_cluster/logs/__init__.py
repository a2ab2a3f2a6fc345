"""Logs of the engine, Ray and the system: lines, ranks, timestamps, start-up facts."""

"""Checks of a running server: each is a rung of readiness and a row of `verify`."""

"""Takes secret values out of everything that is shown, logged or sent back."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

MASK = "***"
_FIXED = ("event", "verdict", "req", "op", "id", "sha256")


def mask(value: Any, secrets: Iterable[str]) -> Any:
    """A copy of a JSON value in which each secret is replaced, wherever a text holds it.

    Protocol words (`event`, `verdict`) and names (`id`) stay, so that a short secret cannot break
    a message; the laptop masks names when it shows them.
    """
    found = sorted({s for s in secrets if s}, key=len, reverse=True)
    return _mask(value, found) if found else value


def secrets_in(value: Any) -> set[str]:
    """The secrets of a request, as resources travel."""
    if isinstance(value, Mapping):
        own = {value["$secret"]} if isinstance(value.get("$secret"), str) else set()
        return own.union(*(secrets_in(v) for v in value.values()))
    if isinstance(value, list):
        return set().union(*(secrets_in(v) for v in value))
    return set()


def _mask(value: Any, secrets: list[str]) -> Any:
    if isinstance(value, str):
        for secret in secrets:
            value = value.replace(secret, MASK)
        return value
    if isinstance(value, Mapping):
        return {k: v if k in _FIXED else _mask(v, secrets) for k, v in value.items()}
    if isinstance(value, (list, tuple)):
        return [_mask(v, secrets) for v in value]
    return value

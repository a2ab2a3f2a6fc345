"""Replies of a server, read as foreign input: anything may come, and each gets a verdict."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import fields
from typing import Any, TypeVar

T = TypeVar("T")

LONGEST_WHOLE = 20
"""Characters of a whole number that may have more than 64 bits."""

SHOWN = 200
"""Characters of a reply that are quoted."""


class NotACompletion(ValueError):
    """A reply that is not a chat completion; its text says what came instead."""

    def __init__(self, body: str) -> None:
        super().__init__(
            f"the server's reply is not a chat completion: {short(body) or 'it is empty'}"
        )


def short(text: str) -> str:
    """The beginning and the end of a long text.

    >>> short("word " * 100)[-9:]
    'ord word '
    """
    return text if len(text) <= SHOWN else f"{text[:120]} ... {text[-50:]}"


def decoded(text: Any) -> Any:
    """JSON, or None where it is not: broken, nested too deeply, or no text at all.

    A whole number beyond 64 bits is read as a float, which can be infinite: no int is too large to
    be reckoned with.
    """
    try:
        return json.loads(text, parse_int=_whole)
    except (ValueError, TypeError, RecursionError):
        return None


def _whole(digits: str) -> int | float:
    return int(digits) if len(digits) < LONGEST_WHOLE else float(digits)


def at(value: Any, *keys: str | int) -> Any:
    """Return what stands at a path of keys and indexes, or None.

    >>> at({"choices": [{"message": {}}]}, "choices", 0, "message")
    {}
    """
    for key in keys:
        if isinstance(value, dict) and isinstance(key, str):
            value = value.get(key)
        elif isinstance(value, list) and isinstance(key, int) and -len(value) <= key < len(value):
            value = value[key]
        else:
            return None
    return value


def text_of(value: Any) -> str:
    """A field that should be text: empty where it is anything else."""
    return value if isinstance(value, str) else ""


def listed(text: Any) -> list[dict[str, Any]] | None:
    """The objects of a JSON list; None where it is anything else."""
    found = decoded(text)
    whole = isinstance(found, list) and all(isinstance(one, dict) for one in found)
    return found if whole else None


def texts_of(value: Any) -> tuple[str, ...]:
    """The items of a list as texts; none where it is anything else."""
    return tuple(map(str, value)) if isinstance(value, list) else ()


def objects_of(value: Any) -> list[dict[str, Any]]:
    """The objects among the items of a list; none where it is anything else."""
    return [one for one in value if isinstance(one, dict)] if isinstance(value, list) else []


def object_in(text: Any) -> dict[str, Any]:
    """The object that a JSON text holds; empty where it holds anything else."""
    found = decoded(text)
    return found if isinstance(found, dict) else {}


def made_of(kind: type[T], found: Mapping[str, Any], /, **more: Any) -> T:
    """Return a dataclass with the fields that an answer has, and with more; other keys of the
    answer are left out."""
    names = {field.name for field in fields(kind)}  # type: ignore[arg-type]
    return kind(**{name: found[name] for name in names & found.keys()}, **more)


def mapping_of(value: Any) -> dict[str, str]:
    """The values of an object as texts; none where it is anything else."""
    return {key: str(one) for key, one in value.items()} if isinstance(value, dict) else {}


def message(body: str) -> dict[str, Any]:
    """The message of a chat completion.

    Raises:
        NotACompletion: there is none in it.
    """
    found = at(decoded(body), "choices", 0, "message")
    if not isinstance(found, dict):
        raise NotACompletion(body)
    return found


def reasoning(found: dict[str, Any]) -> str:
    """The thoughts: vLLM >= 0.18 says `reasoning`, before that it said `reasoning_content`."""
    return text_of(found.get("reasoning")) or text_of(found.get("reasoning_content"))


def message_of(body: str) -> str:
    """Return the text of a completion, or its reasoning where it came no further.

    Raises:
        NotACompletion: it is none.
    """
    found = message(body)
    return (text_of(found.get("content")) or reasoning(found)).strip()


def error(body: str) -> str:
    """The message of an OpenAI error, or the beginning of what came."""
    found = decoded(body)
    return text_of(at(found, "error", "message")) or text_of(at(found, "message")) or short(body)

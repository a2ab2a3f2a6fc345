"""Takes secret values out of everything that is shown, logged or sent back.

A secret is found as it is, and as the usual programs write it: in JSON, in Python's `repr`, in a
URL, quoted for a shell, in base64, and each of the longer lines of one that has several.
"""

from __future__ import annotations

import base64
import json
import urllib.parse
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import lru_cache
from typing import Any

MASK = "***"
LONG = 8
"""Characters from which a line of a secret, or its base64 text, is masked by itself."""

_FIXED = ("event", "verdict", "req", "op", "id", "sha256")


def mask(value: Any, secrets: Iterable[str]) -> Any:
    """A copy of a JSON value in which each secret is replaced, wherever a text holds it.

    Protocol words (`event`, `verdict`) and names (`id`) stay, so that a short secret cannot break
    a message; the laptop masks names when it shows them.
    """
    forms = _all_forms(frozenset(s for s in secrets if s))
    return _mask(value, forms) if forms else value


@lru_cache(maxsize=64)
def _all_forms(secrets: frozenset[str]) -> tuple[str, ...]:
    """Each form of each secret, the longest first."""
    forms = {form for secret in secrets for form in _forms(secret)}
    return tuple(sorted(forms, key=len, reverse=True))


def _forms(secret: str) -> Iterator[str]:
    """Yield the forms in which a secret may be written."""
    lines = [line for line in secret.split("\n") if len(line.strip()) >= LONG]
    for text in {secret, secret.strip(), *lines, *(line.strip() for line in lines)} - {""}:
        yield from _written(text)


def _written(text: str) -> Iterator[str]:
    """A text as it is, and as programs write it."""
    yield text
    yield from _base64(text)
    for write in _WRITERS:
        once = write(text)
        yield once
        yield from (again(once) for again in _ESCAPES)


@lru_cache(maxsize=64)
def marks_of(secrets: frozenset[str]) -> tuple[bytes, ...]:
    """The bytes by which a content is recognised as one that holds one of these secrets.

    A secret shorter than LONG characters is in too many files that do not hold it. So are the
    single lines of a longer one, which can be a whole configuration file.
    """
    texts = {text for secret in secrets for text in (secret, secret.strip()) if len(text) >= LONG}
    forms = {form for text in texts for form in _written(text)}
    return tuple(form.encode(errors="surrogateescape") for form in forms)


def _base64(text: str) -> Iterator[str]:
    """The part of its base64 text that is the same wherever it stands in what was encoded."""
    data = text.encode(errors="surrogateescape")
    for before in range(3):
        encoded = base64.b64encode(b"\0" * before + data).decode().rstrip("=")
        end = len(encoded) - (1 if (before + len(data)) % 3 else 0)
        inner = encoded[(0, 2, 3)[before] : end]
        if len(inner) >= LONG:
            yield inner
            yield inner.replace("+", "-").replace("/", "_")


def _json(text: str) -> str:
    return json.dumps(text)[1:-1]


def _json_utf8(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)[1:-1]


def _repr(text: str) -> str:
    return repr(text + "'\"")[1:-4].replace("\\'", "'")  # both quotes in it: as it is in "..."


def _repr_single(text: str) -> str:
    return _repr(text).replace("'", "\\'")


def _repr_bytes(text: str) -> str:
    data = text.encode(errors="surrogateescape")
    return repr(data + b"'\"")[2:-4].replace("\\'", "'")


def _repr_bytes_single(text: str) -> str:
    return _repr_bytes(text).replace("'", "\\'")


def _shell(text: str) -> str:
    return text.replace("'", "'\"'\"'")


def _shell_backslash(text: str) -> str:
    return text.replace("'", "'\\''")


def _url(text: str) -> str:
    return urllib.parse.quote(text, safe="", errors="surrogateescape")


def _url_path(text: str) -> str:
    return urllib.parse.quote(text, errors="surrogateescape")


def _url_form(text: str) -> str:
    return urllib.parse.quote_plus(text, errors="surrogateescape")


_ESCAPES: tuple[Callable[[str], str], ...] = (
    *(_json, _json_utf8, _repr, _repr_single, _repr_bytes, _repr_bytes_single),
)
"""Also used twice: a traceback that shows JSON."""

_WRITERS: tuple[Callable[[str], str], ...] = (
    *_ESCAPES,
    *(_shell, _shell_backslash, _url, _url_path, _url_form),
)


def secrets_in(value: Any) -> set[str]:
    """The secrets of a request, as resources travel."""
    if isinstance(value, Mapping):
        own = {value["$secret"]} if isinstance(value.get("$secret"), str) else set()
        return own.union(*(secrets_in(v) for v in value.values()))
    if isinstance(value, list):
        return set().union(*(secrets_in(v) for v in value))
    return set()


def _mask(value: Any, forms: tuple[str, ...]) -> Any:
    if isinstance(value, str):
        for form in forms:
            value = value.replace(form, MASK)
        return value
    if isinstance(value, Mapping):
        return {k: v if k in _FIXED else _mask(v, forms) for k, v in value.items()}
    if isinstance(value, (list, tuple)):
        return [_mask(v, forms) for v in value]
    return value

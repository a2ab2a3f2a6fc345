"""The messages of an agent as the laptop expects them: each event, and the reply of each operation.

The reader of a session checks every message here before anyone sees it, so that whoever takes an
event or a reply finds each key in its type. What is checked is the form: that a status is a number,
not that it is true. A new operation of agent/operations.py has its reply here.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from spark_cluster.node.store.manifest import Manifest
from spark_cluster.runner.shape import Choice, Maybe, Misfit, Number, Pair, Shape, check

NUMBER = Number(int, 0)
"""A count, or bytes."""

TIME = Number(float, 0, 253_402_300_799)
"""Seconds since 1970 (UTC), to the year 9999."""

WAIT = Number(float, 0, 24 * 3600)
"""Seconds to wait for something."""

CHANGES: Shape = {str: Pair()}
"""Attribute to [was, is now]."""

VERDICTS = Choice(("ok", "change", "unknown", "failed", "skipped"))

_OF_RESULT: dict[str, Shape] = {
    "id": str,
    "verdict": VERDICTS,
    "seconds": Maybe(Number(float, 0)),
    "changes": Maybe(CHANGES),
    **dict.fromkeys(("diff", "reason", "error", "hint", "output"), Maybe(str)),
}

_OF_SESSION: Mapping[str, Shape] = {
    "ready": {},
    "need_code": {"part": Maybe(str)},
    "alive": {},
    "too_old": {"python": str},
    "no_room": {"error": str},
}
"""Events of the agent itself."""

_OF_REQUEST: Mapping[str, Shape] = {
    "ask": {
        "id": str,
        "verdict": VERDICTS,
        "changes": Maybe(CHANGES),
        "diff": Maybe(str),
        "reason": Maybe(str),
    },
    "changing": {"id": str},
    "need": {"sha256": str, "from": Number(int, 0, 1 << 43), "size": Number(int, 0, 1 << 43)},
    "note": {"text": str},
    "output": {"text": str},
    "progress": {"id": str, "text": str},
    "prove": {"path": str},
    "result": _OF_RESULT,
}
"""Events on the way to a reply, which is the event `done`."""

EVENTS: Mapping[str, Shape] = {
    **_OF_SESSION,
    **{name: {"req": NUMBER, **shape} for name, shape in _OF_REQUEST.items()},
    "done": {"req": NUMBER, "error": Maybe(str), "hint": Maybe(str)},
}

_ANSWER = {
    "status": int,
    "body": str,
    "reason": Maybe(str),
    "certificate": Maybe(str),
    "headers": Maybe({str: str}),
}
_DONE = {"status": int, "stdout": str, "stderr": str}
_MACHINE = {
    **dict.fromkeys(("python", "arch", "kernel", "hostname"), str),
    **dict.fromkeys(("cpus", "disk_total", "disk_free"), NUMBER),
}
_MISSING = {"missing": str, "hint": str}

_TEXT_OR_NULL = (None, str)


def _run_id(value: object) -> None:
    """Raises ValueError for what cannot be the id of a run: it names files of the laptop, too."""
    if not isinstance(value, str) or re.fullmatch(r"[A-Za-z0-9-]{1,100}", value) is None:
        raise ValueError("it is not the id of a run")


_RUN = {
    "run": _run_id,
    "since": (None, TIME),
    **dict.fromkeys(("user", "command", "reverts", "reverting"), _TEXT_OR_NULL),
    "changes": NUMBER,
    "paths": NUMBER,
    "notes": [str],
    "reverted_by": Maybe(_TEXT_OR_NULL),
    "half_reverted_by": Maybe(_TEXT_OR_NULL),
}
_SIDE = {"kind": str, **dict.fromkeys(("mode", "uid", "gid"), Maybe(NUMBER))}
_ENTRY = {
    "time": TIME,
    "resource": str,
    "action": str,
    "changes": Maybe((None, CHANGES)),
    "before": Maybe((None, _SIDE)),
    "after": Maybe((None, _SIDE)),
    **dict.fromkeys(("path", "what", "of"), Maybe(_TEXT_OR_NULL)),
}
_REBOOT = {"at": NUMBER, "id": str, "boot_id": str, "changes": CHANGES, "timeout_s": WAIT}

_REVISION = {
    **dict.fromkeys(("repository", "commit", "in_use", "problem"), str),
    **dict.fromkeys(("files", "size", "freed"), int),
    "refs": [str],
    "last_used": TIME,
    "served": bool,
    "pinned": bool,
}
_IMAGE = {
    **dict.fromkeys(("id", "created"), str),
    **{key: [str] for key in ("names", "digests", "used_by")},
    "size": int,
}
_CACHE_ENTRY = {
    "kind": str,
    "path": str,
    "bytes": NUMBER,
    "files": NUMBER,
    "modified": TIME,
    "whole": bool,
}
_TUNED = {**dict.fromkeys(("model", "gpu", "file", "image"), str), "tp": int}

REPLIES: Mapping[str, Shape] = {
    "apply": {"ok": bool, "reboot": Maybe(_REBOOT), "stopped": Maybe(str)},
    "http": _ANSWER,
    "lock": {
        "locked_by": Maybe(
            {**dict.fromkeys(("run", "user", "command"), Maybe(str)), "since": Maybe(TIME)}
        )
    },
    "reboot": {"boot_id": str},
    "revert": (
        _MISSING,
        {
            "ok": bool,
            "of": _run_id,
            "left": [{"what": str, "why": str}],
            "notes": Maybe([str]),
            "continued": Maybe(_run_id),
        },
    ),
    "run": {**_DONE, "left_out": Maybe(NUMBER)},
    "stream": {"status": (None, int)},
    "telemetry": ({"started": bool}, {"status": (None, int)}),
}
"""Operation to its reply, where it is always the same."""

ACTIONS: Mapping[str, Mapping[str, Shape]] = {
    "store": {
        "state": {"models": [dict], "free": NUMBER},
        "usage": {
            "revisions": [_REVISION],
            **dict.fromkeys(("size", "unfinished", "unused", "free"), int),
        },
        "pin": {"changed": bool},
        "unpin": {"changed": bool},
        "prune": {
            "removed": [_REVISION],
            "kept": [{"repository": str, "commit": str, "reason": str}],
            "freed": int,
        },
        "preview": {"commit": str, **dict.fromkeys(("size", "missing", "free"), NUMBER)},
        "verify": {**{key: [str] for key in ("damaged", "missing", "unchecked")}, "read": NUMBER},
        "remove_damaged": {"removed": NUMBER, "links": NUMBER},
    },
    "copy": {
        "folder": {"manifest": Manifest.from_document},
        "lacking": {"bytes": NUMBER, "nothing": bool},
        "begin": {
            "secrets": (
                None,
                {"token": str, "certificate": str, "key": str, "port": Number(int, 1, 65535)},
            )
        },
        "work": {"moved": NUMBER, "kept": NUMBER, "seconds": Number(float, 0)},
    },
    "image": {
        "state": {"image": (None, {"id": str, "digests": [str], "layers": [str], "size": int})},
        "common": {"count": NUMBER, "containerd": bool},
        "export": {"manifest": Manifest.from_document, "layers": [str]},
        "list": {"images": [_IMAGE]},
        "remove": {"kept": {str: str}},
    },
    "load_guard": {
        "prepare": {
            "pressure": (None, Number(float, 0, 100)),
            "problem": str,
            "buddyinfo": str,
            "page_size": Number(int, 1, 1 << 30),
        }
    },
    "caches": {
        "state": {"launches": [dict], "compiled": {str: [str]}, "tuned": [_TUNED]},
        "tuned": {"tuned": [_TUNED]},
        "known": {"known": bool, "found": [str]},
        "usage": {"entries": [_CACHE_ENTRY], "launches": [dict], "now": TIME},
        "written": {"files": NUMBER, "bytes": NUMBER},
        "remove": {"removed": [str]},
    },
}
"""Operation and its `what` to the reply; what is not here has a reply that no one reads, or one
that its reader checks as a whole (records of launches, what a node has of a model)."""


def reply_to(op: str, request: Mapping[str, Any]) -> Shape:
    """Return the shape of the reply to a request."""
    if op == "gather":
        return _gathered(request)
    if op == "history":
        runs = {"runs": [_RUN]}
        return runs if request.get("of") is None else (_MISSING, {**_RUN, "entries": [_ENTRY]})
    if op in ACTIONS:
        return ACTIONS[op].get(str(request.get("what")), {})
    return REPLIES.get(op, {})


def _gathered(request: Mapping[str, Any]) -> Shape:
    """All that was asked for has an answer, if only null."""
    kinds = {
        "commands": (None, _DONE),
        "files": _TEXT_OR_NULL,
        "trees": {str: str},
        "requests": Maybe(_ANSWER),  # one that hangs is named in `late` only
    }
    asked = {kind: dict.fromkeys(request.get(kind, ()), shape) for kind, shape in kinds.items()}
    return {**asked, "late": {str: str}, "machine": _MACHINE}


def check_event(event: Mapping[str, Any]) -> None:
    """Check the form of a message.

    Raises:
        Misfit: it is none of an agent's, or lacks a part.
    """
    kind = event.get("event")
    shape = EVENTS.get(kind) if isinstance(kind, str) else None
    if shape is None:
        raise Misfit(f"the event {str(kind)[:60]!r} is not known" if kind else "it has no `event`")
    try:
        check(event, shape)
    except Misfit as misfit:
        raise Misfit(f"in the event `{kind}` {misfit}") from None


def check_reply(event: Mapping[str, Any], op: str, shape: Shape) -> None:
    """Check the reply to a request.

    Raises:
        Misfit: it is not what the operation returns.
    """
    if "error" in event:
        return
    try:
        check(event, shape)
    except Misfit as misfit:
        raise Misfit(f"in the reply to `{op}` {misfit}") from None

"""Public keys of SSH as files hold them: `KIND BASE64`."""

from __future__ import annotations

import base64
import binascii

_PARTS = {"ssh-ed25519": 2, "sk-ssh-ed25519@openssh.com": 3, "ssh-rsa": 3}
"""Fields of a public key by its kind; an ECDSA key has 3 too, with a security key 4."""

KINDS = frozenset(
    (
        "ssh-ed25519",
        "ssh-rsa",
        "ecdsa-sha2-nistp256",
        "ecdsa-sha2-nistp384",
        "ecdsa-sha2-nistp521",
        "sk-ssh-ed25519@openssh.com",
        "sk-ecdsa-sha2-nistp256@openssh.com",
    )
)
"""Kinds of keys that a node's key files may have."""


def kind_of(blob: bytes) -> str:
    """The kind that a public key names itself."""
    size = int.from_bytes(blob[:4], "big")
    return blob[4 : 4 + size].decode(errors="replace")


def is_key(kind: str, text: str) -> bool:
    """Return whether `KIND BASE64` is a complete key of a known kind that matches its content."""
    try:
        blob = base64.b64decode(text, validate=True)
    except (ValueError, binascii.Error):
        return False
    return kind in KINDS and is_whole(kind, blob)


def is_whole(kind: str, blob: bytes) -> bool:
    """Return whether a key is of the kind that its line says, and not truncated."""
    parts, rest = 0, blob
    while len(rest) >= 4:
        size = int.from_bytes(rest[:4], "big")
        if len(rest) < 4 + size:
            return False
        parts, rest = parts + 1, rest[4 + size :]
    wanted = _PARTS.get(kind) or (4 if kind.startswith("sk-") else 3)
    return not rest and parts == wanted and kind_of(blob) == kind

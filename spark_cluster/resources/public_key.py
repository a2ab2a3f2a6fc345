"""Public keys of SSH: a line of a `.pub` file or of authorized_keys, taken apart."""

from __future__ import annotations

import base64
import binascii
import hashlib
import re

from spark_cluster.node.values import InvalidResource

KEY_TYPES = (
    "ssh-ed25519",
    "sk-ssh-ed25519@openssh.com",
    "ecdsa-sha2-nistp256",
    "ecdsa-sha2-nistp384",
    "ecdsa-sha2-nistp521",
    "sk-ecdsa-sha2-nistp256@openssh.com",
    "ssh-rsa",
)
_OPTIONS = re.compile(r'(?:[^\s"]|"(?:\\"|[^"])*")+[ \t]+')


def parse_key(line: str) -> tuple[str, str]:
    """Return type and base64 text of a public key line.

    Raises:
        InvalidResource: it is not one whole public key of a type that sshd takes.
    """
    if "PRIVATE KEY" in line:
        raise InvalidResource("AuthorizedKey: this is a private key; give the .pub file's line")
    text = line.strip()
    if "\n" in text or "\r" in text:
        raise InvalidResource("AuthorizedKey: more than one line; declare one for each key")
    kind, _, rest = text.partition(" ")
    blob = rest.split()[0] if rest.split() else ""
    if kind not in KEY_TYPES:
        if split_line(text)[1]:
            raise InvalidResource(f"AuthorizedKey: options before the key ({kind}) are not taken")
        raise InvalidResource(
            f"AuthorizedKey: {kind[:40]!r} is not a type of key; known: {', '.join(KEY_TYPES)}"
        )
    try:
        data = base64.b64decode(blob, validate=True)
    except (binascii.Error, ValueError):
        raise InvalidResource(f"AuthorizedKey: the {kind} key is not base64: was it cut?") from None
    parts = _parts(data)
    if parts is None or len(parts) < 2:
        raise InvalidResource(f"AuthorizedKey: the {kind} key is not whole: was it cut?")
    if parts[0] != kind.encode():
        inner = parts[0].decode(errors="replace")
        raise InvalidResource(f"AuthorizedKey: the line says {kind}, the key in it {inner}")
    return kind, blob


def fingerprint(line: str) -> str:
    """Return a key's fingerprint as `ssh-keygen -l` shows it: `SHA256:...`."""
    digest = hashlib.sha256(base64.b64decode(parse_key(line)[1])).digest()
    return "SHA256:" + base64.b64encode(digest).decode().rstrip("=")


def split_line(line: str) -> tuple[str, str, str]:
    """Return options, type and base64 text of a line of authorized_keys; empty without a key."""
    text = line.strip()
    if not text or text.startswith("#"):
        return "", "", ""
    options = ""
    if text.split()[0] not in KEY_TYPES:
        found = _OPTIONS.match(text)
        if not found:
            return "", "", ""
        options, text = found[0].strip(), text[found.end() :]
    words = text.split()
    if len(words) < 2 or words[0] not in KEY_TYPES:
        return "", "", ""
    return options, words[0], words[1]


def comment_of(line: str) -> str:
    """Return what stands after the key in a line of authorized_keys or a `.pub` file."""
    blob = split_line(line)[2]
    return line.partition(blob)[2].strip() if blob else ""


def _parts(data: bytes) -> list[bytes] | None:
    """The length-prefixed strings that a key is made of, or None when they do not fill it."""
    parts = []
    while data:
        size = int.from_bytes(data[:4], "big")
        if len(data) < 4 + size:
            return None
        parts.append(data[4 : 4 + size])
        data = data[4 + size :]
    return parts

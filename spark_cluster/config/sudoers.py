"""Users in sudoers files (sudoers(5)): as a word in a rule, and as a part of a file's name."""

from __future__ import annotations

import re


def user_word(user: str) -> str:
    r"""A user as a rule names it: special characters as `\xHH`.

    A word of capital letters would be an alias, so its first letter is written so, too.
    """
    word = "".join(
        c if re.fullmatch(r"[A-Za-z0-9_.-]", c) else "".join(rf"\x{b:02x}" for b in c.encode())
        for c in user
    )
    return rf"\x{ord(user[0]):02x}{word[1:]}" if re.fullmatch(r"[A-Z][A-Z0-9_]*", user) else word


def file_name(user: str) -> str:
    """A user as a part of a file's name: sudo ignores files with a dot in their name, or `~`."""
    return re.sub(
        r"[^A-Za-z0-9_-]", lambda found: "".join(f"%{b:02x}" for b in found[0].encode()), user
    )

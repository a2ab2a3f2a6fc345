"""Commands that the kernel does not start."""

from __future__ import annotations

from pathlib import Path

UNSTARTABLE = {
    "garbage": "exec format error",
    "too-long": "argument list too long",
    "below-a-file": "not a directory",
    "none": "no such command or folder",
    "not-executable": "permission denied",
}
"""What is wrong with a command, and the words for it."""


def unstartable(folder: Path, why: str) -> tuple[tuple[str, ...], str]:
    """Return such a command, and the words for why it does not start.

    Args:
        why: a key of UNSTARTABLE.
    """
    file = folder / "command"
    file.write_bytes(b"\x7fELF garbage")
    file.chmod(0o644 if why == "not-executable" else 0o755)
    argv = {
        "too-long": ("true", "x" * 4_000_000),
        "below-a-file": (f"{file}/command",),
        "none": (f"{folder}/none",),
    }
    return argv.get(why, (str(file),)), UNSTARTABLE[why]

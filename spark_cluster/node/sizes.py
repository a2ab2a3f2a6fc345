"""Numbers of bytes in words."""

from __future__ import annotations


def gigabytes(size: int) -> str:
    """Return a number of bytes as GB, or MB where it is less than one."""
    return f"{size / 1e9:.1f} GB" if size >= 1e9 else f"{size / 1e6:.1f} MB"

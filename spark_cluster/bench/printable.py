"""Texts of a record that somebody else may have written."""

from __future__ import annotations


def printable(text: str) -> str:
    """The text without control characters, overrides of the writing direction and halves of pairs.

    Neither HTML nor XML can hold all of them, and none is worth showing.
    """
    if text.isprintable():
        return text
    return "".join(char if char.isprintable() or char in "\n\t" else "\ufffd" for char in text)

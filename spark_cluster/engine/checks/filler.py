"""Text to fill a prompt with: sentences that are alike, true of nothing, and never the same."""

from __future__ import annotations

_WHAT = ("lamp", "chair", "mirror", "kettle", "ladder", "bucket", "carpet", "drawer", "basket")
_COLOUR = ("red", "green", "blue", "grey", "white", "brown", "yellow")
_WHERE = ("hall", "cellar", "kitchen", "garden", "attic", "office", "garage", "corridor")


def sentence(number: int) -> str:
    """Return a sentence of about a dozen tokens."""
    what, colour = _WHAT[number % len(_WHAT)], _COLOUR[number % len(_COLOUR)]
    where = _WHERE[number % len(_WHERE)]
    return f"Entry {number}: the {colour} {what} stands in the {where}."


def filler(count: int, extra: str = "", at: float = 0.0) -> str:
    """Return sentences, one a line.

    Args:
        extra: another sentence among them.
        at: where it stands: 0 is the beginning, 1 the end.
    """
    lines = [sentence(number) for number in range(1, count + 1)]
    if extra:
        lines.insert(round(at * count), extra)
    return "\n".join(lines)

"""Lines that are alike but for their digits, searched once for all anchors.

The lines of a long log differ in times, ports and rates. Without digits few are left, and a piece
of the log is searched for hundreds of literals only as far as it has something new.
"""

from __future__ import annotations

from collections.abc import Iterable

DIGITS = b"0123456789"

MOST = 20_000
"""Shapes that are remembered."""

LONGEST = 500
"""Bytes of a shape that is remembered."""

Anchors = tuple[bytes, ...]


class Shapes:
    """What the shapes of lines may contain.

    Args:
        anchors: literals; a line can have only those whose own shape is in the line's.
    """

    def __init__(self, anchors: Iterable[bytes]) -> None:
        self._by_shape: dict[bytes, list[bytes]] = {}
        for anchor in anchors:
            self._by_shape.setdefault(anchor.translate(None, DIGITS), []).append(anchor)
        self._always: Anchors = tuple(self._by_shape.pop(b"", ()))  # of digits only
        self._known: dict[bytes, Anchors] = {}

    def anchors_of(self, shapes: Iterable[bytes]) -> dict[bytes, Anchors]:
        """Return the anchors that lines of each of these shapes can have.

        Args:
            shapes: lines without their digits and without line breaks.
        """
        wanted = set(shapes)
        found = {shape: self._known[shape] for shape in wanted if shape in self._known}
        fresh = self._search([shape for shape in wanted if shape not in found])
        if len(self._known) + len(fresh) > MOST:
            self._known.clear()
        self._known.update((s, a) for s, a in fresh.items() if len(s) <= LONGEST)
        return {**found, **fresh}

    def _search(self, shapes: list[bytes]) -> dict[bytes, Anchors]:
        """Search shapes that were not seen before, all in one text: that is what is quick."""
        text = b"\n".join(shapes)
        found: dict[bytes, Anchors] = dict.fromkeys(shapes, self._always)
        for literal, anchors in self._by_shape.items():
            at = text.find(literal)
            while at >= 0:
                begin = text.rfind(b"\n", 0, at) + 1
                end = text.find(b"\n", at)
                end = len(text) if end < 0 else end
                shape = text[begin:end]
                found[shape] = (*found[shape], *anchors)
                at = text.find(literal, end)
        return found

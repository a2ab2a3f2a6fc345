"""Suggestions for a name that does not exist: what the user may have meant."""

from __future__ import annotations

from collections.abc import Iterable

SHOWN = 12


def nearest(word: str, known: Iterable[str]) -> str | None:
    """The known name nearest to `word`, or None when nothing is near."""
    by_folded = {name.casefold().replace("-", "_"): name for name in known}
    import difflib

    folded = word.casefold().replace("-", "_")
    found = difflib.get_close_matches(folded, by_folded, n=1, cutoff=0.6)
    return by_folded[found[0]] if found else None


def did_you_mean(word: str, known: Iterable[str], what: str = "known") -> str:
    """`did you mean 'address'?`, or the list of what there is."""
    names = sorted(known)
    near = nearest(word, names)
    if near is not None:
        return f"did you mean '{near}'?"
    if not names:
        return f"{what}: none"
    rest = f" and {len(names) - SHOWN} more" if len(names) > SHOWN else ""
    return f"{what}: {', '.join(names[:SHOWN])}{rest}"

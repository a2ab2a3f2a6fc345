"""Attackers that the product must withstand, for the tests of every feature.

`recipe.py` writes hostile recipes, `container.py` leaves behind what a container could write,
`unit.py` is a program of an engine that looks for a way to the node, `user.py` runs programs as a
user of the node without rights, and `agent.py` plays the agent's side of a session.
"""

import itertools
from collections.abc import Iterable
from typing import Any

import pytest
from hypothesis import strategies as st

EVERY = 4
"""Of the combinations of an attack, a place and an operation, `make test` tries one of so many."""


def sampled(*sides: Iterable[str]) -> list[Any]:
    """Return all combinations; those that are left to `make soak` have its marker."""
    return [
        case if number % EVERY == 0 else pytest.param(*case, marks=pytest.mark.soak)
        for number, case in enumerate(itertools.product(*sides))
    ]


def odd_json(*keys: str) -> st.SearchStrategy[Any]:
    """Draw any document in JSON, whose objects have these keys."""
    return st.recursive(
        st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
        lambda inner: (
            st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(keys), inner, max_size=3)
        ),
        max_leaves=12,
    )

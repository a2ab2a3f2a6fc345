"""`up --replicas`: what is refused before a node is asked."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

NODES = "nodes:\n  a: {address: 10.0.0.1, roles: [head]}\n  b: {address: 10.0.0.2}\n"


@pytest.mark.parametrize(
    ("words", "status", "said"),
    [
        (("--replicas", "2", "--tp", "2"), 2, "each replica is on one node"),
        (("--replicas", "3"), 4, "3 replicas at TP=1 need 3 nodes; there are 2 (a, b)"),
        (("--replicas", "0"), 2, "--replicas"),
        (("--replicas", "2", "--limit", "b"), 4, "the head is not among the chosen nodes"),
    ],
)
def test_what_cannot_be(
    project: Path, run: Any, words: tuple[str, ...], status: int, said: str
) -> None:
    (project / "inventory.yaml").write_text(NODES)
    ended, out, err = run("up", "--recipe", "gemma4-31b-nvfp4", *words, "--json")
    assert (ended, said in out + err) == (status, True), out + err

"""`connection: local`: this machine as a node of the inventory."""

from __future__ import annotations

from pathlib import Path

import factories
import pytest
from cases import cases
from factories import make_inventory

HERE = "nodes:\n  a: {address: 10.0.0.1, roles: [head], connection: local}\n"
INSIDE = (
    "nodes:\n  {0}: {{address: 10.0.0.{1}, connection: local, namespaces_of: pid, roles: [head]}}\n"
)
CASES = cases(__file__, "local_node.toml", HERE=HERE.rstrip())
BOTH = HERE + "  b: {address: 10.0.0.2}\n"


def test_one_node_is_this_machine(tmp_path: Path) -> None:
    found = make_inventory(tmp_path, BOTH).nodes
    assert (found["a"].is_local, found["b"].is_local) == (True, False)


@pytest.mark.parametrize("case", CASES["wrong"])
def test_what_cannot_be(tmp_path: Path, case: dict[str, str]) -> None:
    found = factories.error_of(make_inventory, tmp_path, case["text"], folder=tmp_path)
    assert found.replace("inventory.yaml:", "") == case["message"]


def test_nodes_in_namespaces_of_this_machine(tmp_path: Path) -> None:
    text = (
        INSIDE.format("a", 1) + "  b: {address: 10.0.0.2, connection: local, namespaces_of: /p}\n"
    )
    found = make_inventory(tmp_path, text + "  c: {address: 10.0.0.3, connection: local}\n").nodes
    assert [node.is_local for node in found.values()] == [True] * 3
    assert [node.is_this_machine for node in found.values()] == [False, False, True]
    assert found["a"].namespaces_of == tmp_path / "pid"
    assert found["b"].namespaces_of == Path("/p")


def test_defaults_of_all_nodes_may_be_for_the_others(tmp_path: Path) -> None:
    assert make_inventory(tmp_path, "ssh: {user: me}\n" + BOTH).nodes["a"].is_local

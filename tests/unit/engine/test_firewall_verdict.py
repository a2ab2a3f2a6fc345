"""What is wrong with a node's table of firewall rules, by what nft listed."""

from __future__ import annotations

from typing import Any

import pytest

from spark_cluster.engine.firewall import wrong_with


@pytest.mark.parametrize(
    ("listed", "said"),
    [
        (None, "there is no nft"),
        ({"status": 1, "stdout": ""}, "not in force"),
        ({"status": 0, "stdout": '{"nftables": []}'}, "were changed"),
        ({"status": 0, "stdout": "{ }"}, "not known"),
        ({"status": 0, "stdout": "table inet {"}, "not known"),
    ],
)
def test_each_reason_is_told_apart(listed: dict[str, Any] | None, said: str) -> None:
    assert said in wrong_with(listed, '[{"table": {}}]')

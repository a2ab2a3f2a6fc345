"""SSH settings of nodes, read before the inventory has been checked."""

from __future__ import annotations

from pathlib import Path

import pytest

from spark_cluster.config.inventory import checked
from spark_cluster.config.ssh_settings import unchecked
from spark_cluster.config.yamlfile import load
from spark_cluster.runner.ssh_route import Target

FULL = """\
ssh: {user: nvidia, port: 2222, known_hosts: known}
nodes:
  spark1:
    address: 10.0.0.1
    roles: [head]
    identity_file: ~/.ssh/one
    connect_timeout_s: 3
  spark2: {address: "spark2.local", user: me, port: 22, known_hosts: /etc/known}
"""


def source(folder: Path, text: str):
    (folder / "inventory.yaml").write_text(text)
    return load(folder / "inventory.yaml", "inventory")


def targets(found):
    return {Target.of(name, settings) for name, settings in found.items()}


def test_it_is_what_the_checked_inventory_says(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    read = source(tmp_path, FULL)
    assert targets(unchecked(read, "all")) == targets(checked(read).nodes)


@pytest.mark.parametrize(
    ("limit", "names"),
    [("all", ["spark1", "spark2"]), ("spark2", ["spark2"]), ("all:!spark2", ["spark1"]), ("x", [])],
)
def test_the_nodes_of_a_limit(tmp_path, limit, names):
    assert list(unchecked(source(tmp_path, FULL), limit)) == names


def test_a_limit_where_there_are_groups_waits_for_their_check(tmp_path):
    read = source(tmp_path, FULL + "groups: {rack: [spark1]}\n")
    assert unchecked(read, "rack") == {}
    assert len(unchecked(read, "all")) == 2


@pytest.mark.parametrize(
    "entry",
    [
        "{address: '$(touch x)'}",
        "{address: -oProxyCommand=x}",
        "{address: '`id`.local'}",
        "{address: 10.0.0.1, user: 'a;b'}",
        "{address: 10.0.0.1, jump: other}",
        "{address: 10.0.0.1, port: '22'}",
        "{address: 10.0.0.1, port: 70000}",
        "{address: 10.0.0.1, identity_file: [x]}",
        "{address: 10.0.0.1, identity_file: ~nobody-of-that-name/x}",
        "{address: 10.0.0.1, connect_timeout_s: -1}",
        "{user: me}",
        "[10.0.0.1]",
        "",
    ],
)
def test_what_is_not_of_the_simplest_form_is_left_to_the_checks(tmp_path, entry):
    text = f"nodes:\n  spark1: {entry}\n  spark2: {{address: 10.0.0.2}}\n"
    assert list(unchecked(source(tmp_path, text), "all")) == ["spark2"]


@pytest.mark.parametrize("text", ["nodes: [a]", "ssh: []\nnodes: {a: {address: b}}", "x: 1"])
def test_a_file_that_is_no_inventory(tmp_path, text):
    assert unchecked(source(tmp_path, text), "all") == {}

"""`version`: what a bug report needs, without asking a node or reading the inventory."""

import json
import platform

import pytest

from spark_cluster import __version__

INVENTORY = "this is: [no inventory"


def test_versions_and_files(program, tmp_path):
    program.put("inventory.yaml", INVENTORY)
    done = program("version", "--json")
    assert (done.returncode, done.stderr) == (0, "")
    found = json.loads(done.stdout)
    assert found["version"] == __version__
    assert found["python"].startswith(platform.python_version())
    assert platform.machine() in found["system"]
    assert all(found["libraries"].values())
    assert found["project"] == str(tmp_path)
    assert found["inventory"] == str(tmp_path / "inventory.yaml")
    assert found["inventory_error"] == ""


@pytest.mark.parametrize(
    ("name", "found"), [("one-sprak", None), ("two-sparks", "inventories/two-sparks.yaml")]
)
def test_inventories_by_name(program, name, found):
    told = json.loads(program("-i", name, "version", "--json").stdout)
    assert (name in told["inventory_error"]) is (found is None)
    assert (told["inventory"] or "").endswith(found or "")


def test_without_an_inventory_and_a_client_of_ssh(program, monkeypatch, tmp_path):
    monkeypatch.setenv("PATH", str(tmp_path))
    lines = program("version").stdout.splitlines()
    assert lines[0].startswith(f"spark-cluster  {__version__} (")
    assert "ssh            not installed" in lines
    assert lines[-1] == "inventory      none (no such inventory)"

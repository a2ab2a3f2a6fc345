"""`version`: what a bug report needs, without asking a node or reading the inventory."""

from __future__ import annotations

import json
import platform

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


def test_no_inventory(program, tmp_path):
    done = program("version")
    assert done.returncode == 0
    assert done.stdout.splitlines()[0].startswith(f"spark-cluster  {__version__} (")
    assert done.stdout.splitlines()[-1] == "inventory      none (no such inventory)"
    found = json.loads(program("-i", "one-sprak", "version", "--json").stdout)
    assert found["inventory"] is None
    assert "one-sprak" in found["inventory_error"]
    found = json.loads(program("-i", "two-sparks", "version", "--json").stdout)
    assert found["inventory"].endswith("inventories/two-sparks.yaml")


def test_no_ssh_client(program, monkeypatch, tmp_path):
    monkeypatch.setenv("PATH", str(tmp_path))
    assert "ssh            not installed" in program("version").stdout.splitlines()


def test_text_of_paths_is_not_obeyed(program, tmp_path):
    folder = tmp_path / "a\x1b[31mred"
    folder.mkdir()
    done = program("--project", str(folder), "version")
    assert "\x1b" not in done.stdout
    assert "\\x1b[31mred" in done.stdout

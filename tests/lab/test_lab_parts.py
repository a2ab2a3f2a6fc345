"""The parts of the lab that need no node: inventories, mirrors, what is made once, mounts."""

import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from ruamel.yaml import YAML

from spark_cluster.errors import Failed, UsageError
from spark_cluster.node import durable
from spark_cluster_lab import machine
from spark_cluster_lab.artefact import Artefact, clear, mounts_below, unmount
from spark_cluster_lab.base import bootstrap
from spark_cluster_lab.commands import command
from spark_cluster_lab.layout import Layout
from spark_cluster_lab.machine import Distribution, pick_mirrors
from spark_cluster_lab.vllm_env import copy_named_files, parse_pip_config

DEBIAN = Distribution("debian", "bookworm", "http://deb.example/debian", "http://sec.example")


@pytest.mark.lab
def test_status_where_nothing_can_be_prepared(monkeypatch):
    """Nodes of `lab up --gpus` need no mirror of packages."""
    monkeypatch.setattr(machine, "output", lambda _argv: "")
    ran = CliRunner().invoke(command, ["status"])
    assert ran.exit_code == 0, ran.output
    assert "not possible here: /etc/apt: apt on this machine knows no mirror" in ran.output


# --- where things are ------------------------------------------------------------------------


@pytest.mark.parametrize(("name", "count"), [("lab", 2), ("lab3", 3), ("lab4", 4)])
def test_inventories_of_the_lab_differ_in_their_nodes_only(name, count):
    folder = Path(__file__).parents[2] / "inventories"
    usual, found = (YAML(typ="safe").load(folder / f"{one}.yaml") for one in ("lab", name))
    layouts = Layout(Path()).nodes(count)
    assert {n: entry["address"] for n, entry in found.pop("nodes").items()} == {
        node.name: node.address for node in layouts
    }
    del usual["nodes"]
    assert found == usual


# --- the machine's packages ------------------------------------------------------------------


def test_mirrors_of_a_release():
    targets = "http://m/debian trixie\nhttp://m/debian trixie-updates\nhttp://s/sec trixie-security"
    assert pick_mirrors(targets, "trixie") == ("http://m/debian", "http://s/sec")
    assert pick_mirrors(targets, "noble") == ("", "")
    assert pick_mirrors("", "noble") == ("", "")


def test_pip_settings_become_variables():
    listed = (
        ":env:.find-links='/wheels'\n"
        "global.extra-index-url='file:///a/simple\\nfile:///b/simple'\n"
        "global.find-links='/other'\n"
        "install.no-binary='x'\n"
        "freeze.timeout='10'\n"
    )
    assert parse_pip_config(listed) == {
        "PIP_EXTRA_INDEX_URL": "file:///a/simple file:///b/simple",
        "PIP_FIND_LINKS": "/wheels",
        "PIP_NO_BINARY": "x",
    }
    assert parse_pip_config("") == {}


def test_a_constraints_file_of_this_machine_goes_into_the_image(tmp_path):
    constraints, folder = tmp_path / "constraints.txt", tmp_path / "assets"
    constraints.write_text("torch<=2.14\n")
    folder.mkdir()
    settings = {
        "PIP_CONSTRAINT": f"file://{constraints} https://example.invalid/c.txt",
        "PIP_CERT": "/etc/ssl/certs/ca-certificates.crt",
    }
    changed = copy_named_files(settings, folder, Path("/srv/assets"))
    inside, url = changed.pop("PIP_CONSTRAINT").split()
    assert url == "https://example.invalid/c.txt"
    assert (folder / Path(inside).relative_to("/srv/assets")).read_text() == "torch<=2.14\n"
    assert changed == {"PIP_CERT": "/etc/ssl/certs/ca-certificates.crt"}


# --- things that are made once ---------------------------------------------------------------


def artefact(folder: Path, recipe: str, build: Any) -> Artefact:
    return Artefact(folder, "thing", recipe, build)


def test_an_artefact_is_made_once(tmp_path):
    built: list[Path] = []
    said: list[str] = []

    def build(folder: Path) -> None:
        built.append(folder)
        (folder / "file").write_text("whole")

    thing = artefact(tmp_path, "one", build)
    assert not thing.ready
    thing.make(said.append)
    thing.make(said.append)
    assert len(built) == 1
    assert (thing.path / "file").read_text() == "whole"
    assert [line.split(" in ")[0] for line in said] == ["thing: building", "thing: built"]


def test_an_interrupted_build_leaves_nothing_half_done(tmp_path):
    def fails(folder: Path) -> None:
        (folder / "half").touch()
        raise Failed("no more disk")

    thing = artefact(tmp_path, "one", fails)
    with pytest.raises(Failed):
        thing.make(lambda _: None)
    assert not thing.ready

    again = artefact(tmp_path, "one", lambda folder: (folder / "whole").touch())
    again.make(lambda _: None)
    assert [path.name for path in again.path.iterdir()] == ["whole"]


def test_another_recipe_is_another_artefact(tmp_path):
    old = artefact(tmp_path, "one", lambda _: None)
    new = artefact(tmp_path, "two", lambda _: None)
    old.make(lambda _: None)
    assert not new.ready
    new.make(lambda _: None)
    (tmp_path / ".thing-000000000000.new").mkdir()
    (tmp_path / "thing-log.txt").touch()
    new.drop_others()
    assert sorted(path.name for path in tmp_path.iterdir()) == [new.path.name, "thing-log.txt"]


@pytest.mark.skipif(
    sys.platform != "linux" or os.geteuid() != 0 or not shutil.which("apt-config"),
    reason="mounts need root",
)
def test_a_mount_that_a_build_forgets_is_not_left(tmp_path, monkeypatch):
    programs, tree = tmp_path / "bin", tmp_path / "tree"
    programs.mkdir()
    (tree / "sys").mkdir(parents=True)
    for folder in ("etc/apt", "etc/ssl/certs", "etc/dpkg/dpkg.cfg.d"):
        (tree / folder).mkdir(parents=True)
    (tree / "etc/apt/sources.list.d").mkdir()
    forgetful = programs / "mmdebstrap"
    forgetful.write_text(f"#!/bin/sh\nmount -t tmpfs none {tree}/sys && touch {tree}/sys/in-it\n")
    forgetful.chmod(0o755)
    monkeypatch.setenv("PATH", f"{programs}:{os.environ['PATH']}")
    keyring = tmp_path / "keyring.gpg"
    keyring.write_text("")
    monkeypatch.setitem(machine.KEYRINGS, "debian", keyring)
    try:
        bootstrap(tree, DEBIAN, [], tmp_path / "log")
        assert mounts_below(tree) == []
        assert not (tree / "sys/in-it").exists()
    finally:
        unmount(tree)


@pytest.mark.skipif(sys.platform != "linux" or os.geteuid() != 0, reason="mounts need root")
@pytest.mark.parametrize(
    "name", ["a b", "a\tb", "a\nb", "a\\b", "a\\040b", "a\rb", "a\x0cb", "\x1c", "é", b"\xe4", "#"]
)
def test_what_is_mounted_into_a_tree_is_never_deleted(tmp_path, name):
    """The kernel writes some characters of a mount point in octal, and others as they are."""
    elsewhere, tree = tmp_path / "elsewhere", tmp_path / "tree"
    point = tree / os.fsdecode(name)
    for folder in (elsewhere, point):
        folder.mkdir(parents=True)
    (elsewhere / "file").touch()
    subprocess.run(["mount", "--bind", elsewhere, point], check=True, timeout=60)
    try:
        assert durable.mounts_below(tree)
        assert mounts_below(tree) == [point]
        clear(tree)
        assert (elsewhere / "file").exists()
        assert not tree.exists()
    finally:
        subprocess.run(["umount", point], check=False, capture_output=True, timeout=60)


# --- where it cannot work --------------------------------------------------------------------


def test_without_root(monkeypatch):
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    monkeypatch.setattr(sys, "platform", "linux")
    with pytest.raises(UsageError, match="needs root"):
        machine.require_root_on_linux()
    done = CliRunner().invoke(command, ["status"])
    assert isinstance(done.exception, UsageError)
    assert done.exception.exit_code == 2


def test_on_another_system_or_distribution(monkeypatch):
    release = {"ID": "fedora", "PRETTY_NAME": "F 43"}
    monkeypatch.setattr(machine.platform, "freedesktop_os_release", lambda: release)
    with pytest.raises(UsageError, match="this is F 43"):
        machine.this_distribution()
    monkeypatch.setattr(sys, "platform", "darwin")
    with pytest.raises(UsageError, match="needs Linux"):
        machine.require_root_on_linux()

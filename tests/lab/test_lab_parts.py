"""The parts of the lab that need no node: layouts, mirrors, archives, what stand-ins compute."""

from __future__ import annotations

import hashlib
import io
import json
import os
import shutil
import subprocess
import sys
import tarfile
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from ruamel.yaml import YAML

from spark_cluster.errors import Failed, UsageError
from spark_cluster.node import durable
from spark_cluster_lab import machine, network, standin_layer
from spark_cluster_lab.artefact import Artefact, clear, mounts_below, unmount
from spark_cluster_lab.base import bootstrap
from spark_cluster_lab.commands import command
from spark_cluster_lab.image import write_docker_archive
from spark_cluster_lab.layout import FABRIC, UNCABLED, Layout
from spark_cluster_lab.machine import Distribution, pick_mirrors
from spark_cluster_lab.standins import ethtool, hardware, ibv_devinfo, nvidia_smi, processes, rdma
from spark_cluster_lab.standins.processes import ComputeProcess
from spark_cluster_lab.standins.state import DEFAULTS, load
from spark_cluster_lab.standins.sysfs import gid_table, put
from spark_cluster_lab.vllm_env import copy_named_files, local_directories, parse_pip_config

DEBIAN = Distribution("debian", "bookworm", "http://deb.example/debian", "http://sec.example")


@pytest.mark.lab
def test_status_where_nothing_can_be_prepared(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nodes of `lab up --gpus` need no mirror of packages."""
    monkeypatch.setattr(machine, "output", lambda _argv: "")
    ran = CliRunner().invoke(command, ["status"])
    assert ran.exit_code == 0, ran.output
    assert "not possible here: /etc/apt: apt on this machine knows no mirror" in ran.output


# --- where things are ------------------------------------------------------------------------


def test_names_fit_into_the_kernels_fifteen_characters(tmp_path: Path) -> None:
    for node in Layout(tmp_path).nodes():
        for name in (node.port, *map(node.cable, (*FABRIC, *UNCABLED)), *FABRIC, *UNCABLED):
            assert len(name) <= 15


@pytest.mark.parametrize(("name", "count"), [("lab", 2), ("lab3", 3), ("lab4", 4)])
def test_inventories_of_the_lab_differ_in_their_nodes_only(name: str, count: int) -> None:
    folder = Path(__file__).parents[2] / "inventories"
    usual, found = (YAML(typ="safe").load(folder / f"{one}.yaml") for one in ("lab", name))
    layouts = Layout(Path()).nodes(count)
    assert {n: entry["address"] for n, entry in found.pop("nodes").items()} == {
        node.name: node.address for node in layouts
    }
    del usual["nodes"]
    assert found == usual


def cabled(tmp_path: Path, count: int, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Nodes with power, and a function that returns which of them have a carrier on a twin."""
    layout = Layout(tmp_path)
    nodes = layout.nodes(count)
    for node in nodes:
        node.directory.mkdir(parents=True)
        node.powered.touch()
    said: list[str] = []
    monkeypatch.setattr(network, "ip", lambda *commands, **_: said.extend(commands))

    def lit(interface: str = FABRIC[0]) -> list[str]:
        said.clear()
        network.settle(layout, nodes)
        return [n.name for n in nodes if f"link set {n.cable(interface)} up" in said]

    return layout, nodes, lit


def test_a_cable_between_two_nodes_needs_power_at_both_ends(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _, (one, _), lit = cabled(tmp_path, 2, monkeypatch)
    assert lit() == ["spark1", "spark2"]
    one.powered.unlink()
    assert lit() == []
    assert cabled(tmp_path / "alone", 1, monkeypatch)[2]() == []


def test_on_a_switch_each_node_has_a_carrier_by_itself(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    layout, nodes, lit = cabled(tmp_path, 4, monkeypatch)
    nodes[1].powered.unlink()
    assert lit() == ["spark1", "spark3", "spark4"]
    network.set_pulled(layout, [nodes[3].cable(FABRIC[0])], out=True)
    assert lit() == ["spark1", "spark3"]
    assert lit(FABRIC[1]) == ["spark1", "spark3", "spark4"]
    network.set_pulled(layout, [nodes[3].cable(FABRIC[0])], out=False)
    assert lit() == ["spark1", "spark3", "spark4"]


def test_addresses_of_the_nodes(tmp_path: Path) -> None:
    first, second = Layout(tmp_path).nodes(2)
    assert (first.name, first.address) == ("spark1", "10.89.0.11")
    assert (second.name, second.address) == ("spark2", "10.89.0.12")
    assert len({first.cable(i) for i in FABRIC} | {second.cable(i) for i in FABRIC}) == 4


def test_state_directory_from_the_environment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SPARK_CLUSTER_LAB", str(tmp_path))
    assert Layout.default().state == tmp_path
    monkeypatch.setenv("SPARK_CLUSTER_LAB", "")
    assert Layout.default().state == Path("/var/cache/spark-cluster/lab")


# --- the machine's packages ------------------------------------------------------------------


def test_mirrors_of_a_release() -> None:
    targets = "http://m/debian trixie\nhttp://m/debian trixie-updates\nhttp://s/sec trixie-security"
    assert pick_mirrors(targets, "trixie") == ("http://m/debian", "http://s/sec")
    assert pick_mirrors(targets, "noble") == ("", "")
    assert pick_mirrors("", "noble") == ("", "")


def test_sources_of_a_node() -> None:
    debian = Distribution("debian", "bookworm", "http://m/debian", "http://s/sec").at("trixie")
    assert debian.sources().splitlines() == [
        "Types: deb",
        "URIs: http://m/debian",
        "Suites: trixie trixie-updates",
        "Components: main",
        "Signed-By: /usr/share/keyrings/debian-archive-keyring.gpg",
        "",
        "Types: deb",
        "URIs: http://s/sec",
        "Suites: trixie-security",
        "Components: main",
        "Signed-By: /usr/share/keyrings/debian-archive-keyring.gpg",
    ]
    assert "security" not in Distribution("ubuntu", "noble", "http://m/ubuntu", "").sources()


def test_pip_settings_become_variables() -> None:
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


def test_directories_that_pip_reads(tmp_path: Path) -> None:
    wheels, index = tmp_path / "wheels", tmp_path / "index"
    wheels.mkdir()
    (index / "simple").mkdir(parents=True)
    settings = {
        "PIP_FIND_LINKS": f"{wheels} {tmp_path}/missing",
        "PIP_EXTRA_INDEX_URL": f"file://{index}/simple https://example.invalid/simple",
    }
    assert local_directories(settings) == [index, wheels]


def test_a_constraints_file_of_this_machine_goes_into_the_image(tmp_path: Path) -> None:
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


def test_an_artefact_is_made_once(tmp_path: Path) -> None:
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


def test_an_interrupted_build_leaves_nothing_half_done(tmp_path: Path) -> None:
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


def test_another_recipe_is_another_artefact(tmp_path: Path) -> None:
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
def test_a_mount_that_a_build_forgets_is_not_left(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
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
def test_what_is_mounted_into_a_tree_is_never_deleted(tmp_path: Path, name: str | bytes) -> None:
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


def test_docker_archive(tmp_path: Path) -> None:
    layer = tmp_path / "layer.tar"
    with tarfile.open(layer, "w") as tar:
        member = tarfile.TarInfo("etc/hello")
        member.size = 2
        tar.addfile(member, io.BytesIO(b"hi"))
    target = tmp_path / "image.tar"
    image_id = write_docker_archive(target, layer, "x:y", {"PATH": "/bin"}, "aarch64")
    with tarfile.open(target) as archive:
        names = archive.getnames()
        assert names[0] == "manifest.json"

        def content(name: str) -> bytes:
            found = archive.extractfile(name)
            assert found
            return found.read()

        (manifest,) = json.loads(content("manifest.json"))
        config = json.loads(content(manifest["Config"]))
        (layer_name,) = manifest["Layers"]
        assert content(layer_name) == layer.read_bytes()
    assert manifest["RepoTags"] == ["x:y"]
    assert image_id == f"sha256:{manifest['Config'].removesuffix('.json')}"
    assert config["architecture"] == "arm64"
    assert config["config"]["Env"] == ["PATH=/bin"]
    digest = hashlib.sha256(layer.read_bytes()).hexdigest()
    assert config["rootfs"]["diff_ids"] == [f"sha256:{digest}"]


def test_the_layer_of_stand_ins_is_complete(tmp_path: Path) -> None:
    standin_layer.write_layer(tmp_path)
    library = tmp_path / standin_layer.LIBRARY / "standins"
    for name, module in standin_layer.PROGRAMS.items():
        assert os.access(tmp_path / name, os.X_OK)
        assert (library / f"{module}.py").exists()
    unit = tmp_path / "etc/systemd/system/sysinit.target.wants/lab-hardware.service"
    assert "ExecStart=/usr/local/sbin/lab-hardware serve" in unit.read_text()


# --- what the stand-ins say ------------------------------------------------------------------

REAL_MEMINFO = (
    "MemTotal:       24684096 kB\nMemFree:        1 kB\nMemAvailable:   2 kB\nCached: 3 kB"
)


def test_state_file(tmp_path: Path) -> None:
    file = tmp_path / "state.json"
    assert load(file) == DEFAULTS
    file.write_text('{"temperature_c": 80, "pstate": null}')
    assert load(file) == DEFAULTS | {"temperature_c": 80}


def test_meminfo_takes_off_what_compute_processes_hold() -> None:
    shown = hardware.meminfo({**DEFAULTS, "mem_available_kb": 10240}, REAL_MEMINFO, used_mib=4)
    assert shown.splitlines() == [
        "MemTotal:      127601228 kB",
        "MemFree:            6144 kB",
        "MemAvailable:       6144 kB",
        "Cached: 3 kB",
    ]
    empty = hardware.meminfo({**DEFAULTS, "mem_available_kb": 1024}, REAL_MEMINFO, used_mib=4)
    assert "MemAvailable:          0 kB" in empty


def test_files_are_written_in_place(tmp_path: Path) -> None:
    file = tmp_path / "a/b"
    put(file, "longer text")
    node = file.stat().st_ino
    put(file, "short")
    assert (file.read_text(), file.stat().st_ino) == ("short\n", node)


def test_gid_tables() -> None:
    none = ("0000:0000:0000:0000:0000:0000:0000:0000", "")
    table = gid_table("4e:bb:47:00:01:01", ["192.168.177.11"])
    assert table[:4] == [
        ("fe80:0000:0000:0000:4cbb:47ff:fe00:0101", "IB/RoCE v1"),
        ("fe80:0000:0000:0000:4cbb:47ff:fe00:0101", "RoCE v2"),
        ("0000:0000:0000:0000:0000:ffff:c0a8:b10b", "IB/RoCE v1"),
        ("0000:0000:0000:0000:0000:ffff:c0a8:b10b", "RoCE v2"),
    ]
    assert table[4:] == [none] * 12
    drifted = gid_table("4e:bb:47:00:01:01", ["192.168.177.11"], shift=1)
    assert drifted[2] == none
    assert drifted[4][1] == "RoCE v2"


@pytest.mark.parametrize(
    ("mtu", "said"), [(9000, "4096 (5)"), (1500, "1024 (3)"), (100, "256 (1)")]
)
def test_rdma_mtu(mtu: int, said: str) -> None:
    assert ibv_devinfo.rdma_mtu(mtu) == said


def test_an_engine_core_with_workers_holds_no_gpu() -> None:
    core, worker = ComputeProcess(1, "VLLM::EngineCore", 5), ComputeProcess(2, "VLLM::Worker", 6)
    assert processes.holding_gpu([core, worker]) == [worker]
    assert processes.holding_gpu([core]) == [core]


@pytest.mark.parametrize(
    ("title", "counts"),
    [
        ("VLLM::EngineCore", True),
        ("ray::RayWorkerProc.run", True),
        ("ray::RayWorkerWrapper.__ray_call__", True),
        ("ray::IDLE", False),
        ("/opt/vllm/bin/python", False),
        ("grep VLLM::Worker", False),
    ],
)
def test_which_processes_are_compute_processes(title: str, counts: bool) -> None:
    assert bool(processes.COMPUTE.match(title)) is counts


def nvidia(
    monkeypatch: pytest.MonkeyPatch, *argv: str, found: list[ComputeProcess] | None = None
) -> int:
    monkeypatch.setattr(nvidia_smi, "load", lambda: dict(DEFAULTS))
    monkeypatch.setattr(nvidia_smi, "compute_processes", lambda _state: found or [])
    return nvidia_smi.main(list(argv))


def test_nvidia_smi_refuses_unknown_fields(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert nvidia(monkeypatch, "--query-gpu=name,memory", "--format=csv") == 2
    assert capsys.readouterr().out == 'Field "memory" is not a valid field to query.\n\n'


def test_nvidia_smi_lists_processes_in_its_table(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    long = "ray::RayWorkerWrapper.with_a_very_long_name_indeed"
    held = [ComputeProcess(7, long, 3), ComputeProcess(2065247, "VLLM::Worker_TP0", 102843)]
    assert nvidia(monkeypatch, found=held) == 0
    lines = capsys.readouterr().out.splitlines()
    assert {len(line) for line in lines[1:] if line} == {91}
    assert lines[-2].split() == ["|", "0", "N/A", "N/A", "2065247", "C", "VLLM::Worker_TP0",
                                 "102843MiB", "|"]  # fmt: skip


@pytest.mark.parametrize(
    ("argv", "options", "seconds"),
    [
        (["-i", "0", "-L"], {"L": ""}, 0),
        (["--id=0", "--query-gpu=name", "--format=csv"], {"query-gpu": "name", "format": "csv"}, 0),
        (["--query-gpu=name", "-lms", "250"], {"query-gpu": "name"}, 0.25),
        (["--query-gpu=name", "--loop=2"], {"query-gpu": "name"}, 2),
    ],
)
def test_nvidia_smi_options(argv: list[str], options: dict[str, str], seconds: float) -> None:
    assert nvidia_smi.parse(argv) == (options, seconds)


def test_rdma_as_json(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(rdma, "hca_active", lambda hca, _state: hca == "rocep1s0f1")
    assert rdma.main(["-j", "link"]) == 0
    states = {link["netdev"]: link["state"] for link in json.loads(capsys.readouterr().out)}
    assert states == dict.fromkeys((*FABRIC, *UNCABLED), "DOWN") | {"enp1s0f1np1": "ACTIVE"}


def test_ethtool_of_a_port_without_link(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ethtool, "hca_active", lambda _hca, _state: False)
    text = ethtool.settings("enp1s0f0np0", dict(DEFAULTS))
    assert "\tSpeed: Unknown!\n" in text
    assert "\tLink detected: no\n" in text


# --- where it cannot work --------------------------------------------------------------------


def test_without_root(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    monkeypatch.setattr(sys, "platform", "linux")
    with pytest.raises(UsageError, match="needs root"):
        machine.require_root_on_linux()
    done = CliRunner().invoke(command, ["status"])
    assert isinstance(done.exception, UsageError)
    assert done.exception.exit_code == 2


def test_on_another_system(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "platform", "darwin")
    with pytest.raises(UsageError, match="needs Linux"):
        machine.require_root_on_linux()


def test_on_another_distribution(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        machine.platform, "freedesktop_os_release", lambda: {"ID": "fedora", "PRETTY_NAME": "F 43"}
    )
    with pytest.raises(UsageError, match="this is F 43"):
        machine.this_distribution()

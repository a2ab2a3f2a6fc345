"""Files of a node: over a real sshd, on this machine, and from a node that lies or hangs."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from factories import put
from hostile import sftp as hostile_sftp
from own_sshd import start_sshd

from spark_cluster.bench import on_node
from spark_cluster.bench.on_node import LocalFiles, NodeFiles
from spark_cluster.errors import Failed, Unreachable
from spark_cluster.lab.namespaces import NamespacesConnection


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder of results on the node, with what must not be read."""
    made = tmp_path / "node"
    put(made / "a.json", "{}")
    put(made / "empty", "")
    put(made / "below/b.json", "{}")
    (made / "link").symlink_to("/etc/passwd")
    os.mkfifo(made / "pipe")
    return made


@pytest.fixture(params=["ssh", "local"])
def files(request: Any, ssh: Any, trusted: Path) -> Iterator[NodeFiles]:
    if request.param == "local":
        yield LocalFiles("spark1", "/")
        return
    with on_node.over(ssh().open()) as found:
        yield found


def test_regular_files_are_listed_and_read(files: NodeFiles, folder: Path) -> None:
    assert files.sizes(str(folder)) == {"a.json": 2, "empty": 0}
    assert files.read(f"{folder}/a.json", 2) == b"{}"
    assert files.read(f"{folder}/a.json", 1) == b"{", "no more than was asked for"
    assert files.read(f"{folder}/empty", 0) == b""
    put(folder / "large", "x" * 3_000_000)
    assert len(files.read(f"{folder}/large", 3_000_000)) == 3_000_000


def test_what_is_not_there(files: NodeFiles, folder: Path) -> None:
    assert files.sizes(f"{folder}/none") == {}
    with pytest.raises(Failed, match=r"reading .*/none: .*[Nn]o such file") as caught:
        files.read(f"{folder}/none", 1)
    assert caught.value.where == "spark1"


def test_the_connection_of_the_run_goes_on(ssh: Any, trusted: Path, folder: Path) -> None:
    mine = ssh()
    for _ in range(2):
        with on_node.over(mine.open()) as files:
            assert files.sizes(str(folder))
    assert mine.open().transport.is_active()


def test_a_link_in_the_place_of_a_folder_is_not_followed(
    ssh: Any, trusted: Path, folder: Path
) -> None:
    (folder / "raw").symlink_to("/etc")
    with (
        on_node.over(ssh().open()) as files,
        pytest.raises(Failed, match=r"reading .*/raw: it is not a folder"),
    ):
        files.sizes(f"{folder}/raw")


def test_a_link_of_a_node_on_this_machine_ends_in_the_node(tmp_path: Path, folder: Path) -> None:
    (tmp_path / "root/srv").mkdir(parents=True)
    (tmp_path / "root/results").symlink_to("/srv")
    put(tmp_path / "root/srv/a.json", "{}")
    local = LocalFiles("spark1", str(tmp_path / "root"))
    assert local.sizes("/results") == {"a.json": 2}
    (tmp_path / "root/out").symlink_to(f"../..{folder}")
    assert local.sizes("/out") == {}


@pytest.mark.skipif(os.geteuid() != 0, reason="root is needed")
def test_files_of_a_node_of_namespaces_are_its_own(tmp_path: Path) -> None:
    script = (
        "mount -t tmpfs -o mode=755 none /mnt && mkdir /mnt/b && echo 1 >/mnt/b/a && "
        "ln -s /mnt/b /mnt/c && echo $$ && exec sleep 600"
    )
    argv = ["unshare", "--mount", "sh", "-c", script]
    process = subprocess.Popen(argv, stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        leader = put(tmp_path / "leader", process.stdout.readline())
        local = LocalFiles("gpu1", NamespacesConnection("gpu1", namespaces_of=leader).files_root())
        assert local.sizes("/mnt/c") == {"a": 2}, "a link of its root leads to its own files"
        assert local.read("/mnt/c/a", 2) == b"1\n"
    finally:
        process.kill()
        process.communicate()
    assert not Path("/mnt/b").exists()


@pytest.fixture
def lying(
    ssh: Any, sshd: Any, trusted: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Callable[[str], Any]]:
    """`lying(ATTACK)`: the files of a node whose sshd has a hostile SFTP server."""
    started = []

    def start(attack: str) -> Any:
        place = tmp_path_factory.mktemp("lying")
        program = f"{sys.executable} -IS {hostile_sftp.__file__} {attack}"
        old = "Subsystem sftp internal-sftp\n"
        new = f"Subsystem sftp {program}\n" if attack else ""
        made = start_sshd(place, key=sshd.key, replaced=(old, new))
        started.append(made)
        trusted.write_text(trusted.read_text() + made.host_line)
        return on_node.over(ssh(port=made.port).open())

    yield start
    for made in started:
        made.stop()


@pytest.mark.parametrize(("attack", "found"), [("names", {}), ("cut", {}), ("kinds", {"good": 3})])
def test_only_plain_names_of_regular_files_are_believed(lying, attack, found):
    with lying(attack) as files:
        assert files.sizes("/results") == found


@pytest.mark.parametrize("attack", ["no-text", "endless", "nonsense", "ends"])
def test_nonsense_is_an_error_and_leaves_nothing(lying, tmp_path, attack):
    with pytest.raises((Failed, Unreachable)) as caught, lying(attack) as files:
        on_node.fetch(files, "/results", tmp_path / "in")
        files.read("/results/good", 3)
    assert caught.value.where == "spark1"
    assert not [path for path in tmp_path.rglob("in/*/*") if path.stat().st_size > 3]


def test_no_more_is_written_than_a_file_is_said_to_have(lying, tmp_path):
    with lying("kinds") as files:
        assert on_node.fetch(files, "/results", tmp_path / "in") == []
    written = {str(p.relative_to(tmp_path)): p.read_bytes() for p in tmp_path.rglob("in/*/*")}
    assert written == {"in/cells/good": b"xxx"}


def test_a_huge_file_stays(lying, tmp_path):
    with lying("huge") as files:
        assert on_node.fetch(files, "/results", tmp_path / "in") == ["cells/huge"]
    assert not (tmp_path / "in").exists()


def test_a_node_that_hangs_is_given_up(lying, monkeypatch):
    monkeypatch.setattr(on_node, "LIMIT_S", 0.5)
    with (
        pytest.raises(Unreachable, match=r"ended while its files were read, .* has 0\.5 s"),
        lying("hangs") as files,
    ):
        files.read("/results/a", 3)


def test_a_node_without_sftp(lying):
    with pytest.raises(Failed, match="it gives no files by SFTP") as caught, lying(""):
        pass
    assert "Subsystem sftp" in caught.value.hint

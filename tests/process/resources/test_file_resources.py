"""File, Directory and Line: absent, drifted, converged, check mode, what can go wrong."""

import errno
import os
import socket

import pytest

from spark_cluster.node import journal as journal_module
from spark_cluster.node.host import Host
from spark_cluster.node.values import Blob, Secret
from spark_cluster.resources import Directory, File, Line
from spark_cluster.resources import file as file_module


class TestFile:
    motd = File("/etc/motd", content="Welcome\n", mode=0o640)

    def test_old_content_is_in_the_journal(self, node):
        node.put("/etc/motd", "Other\n")
        node.apply(self.motd)
        kept = list(node.path("/var/lib/spark-cluster/journal").glob("*/before/*"))
        assert [k.read_text() for k in kept] == ["Other\n"]
        assert kept[0].stat().st_mode & 0o077 == 0

    def test_diff_shows_text_and_hides_secrets(self, node):
        node.put("/etc/motd", "Other\n")
        assert "-Other\n+Welcome\n" in node.check(self.motd).diff
        secret = node.check(File("/etc/key", content=Secret("hunter2")))
        assert "hunter2" not in str(secret.event)

    @pytest.mark.parametrize("content", ["small\n", None])
    def test_a_large_file_is_not_read_for_its_diff(self, node, content, monkeypatch):
        with node.put("/etc/motd").open("wb") as out:
            out.truncate(file_module.DIFF_INPUT_LIMIT + 1)
        monkeypatch.setattr(Host, "read", None)
        state = "absent" if content is None else "present"
        result = node.check(File("/etc/motd", content=content, state=state))
        sizes = f"{file_module.DIFF_INPUT_LIMIT + 1} bytes become {len(content or '')} bytes"
        assert result.diff == f"/etc/motd: {sizes}\n"

    def test_a_large_new_content_gives_no_diff(self, node):
        node.put("/etc/motd", "Other\n")
        large = "line\n" * file_module.DIFF_INPUT_LIMIT
        assert node.check(File("/etc/motd", content=large)).diff == (
            f"/etc/motd: 6 bytes become {len(large)} bytes\n"
        )

    def test_full_disk_leaves_the_old_file_and_no_scraps(self, node, monkeypatch):
        node.put("/etc/motd", "Other\n")

        def full(_handle):
            raise OSError(errno.ENOSPC, "No space left on device", str(node.path("/etc/motd")))

        monkeypatch.setattr(os, "fsync", full)
        result = node.apply(self.motd)
        assert result.verdict == "failed"
        assert "no space left" in result.error
        assert node.path("/etc/motd").read_text() == "Other\n"
        assert [p.name for p in node.path("/etc").iterdir()] == ["motd"]


class TestLine:
    hosts = Line("/etc/hosts", line="10.0.0.1 spark1", match=r"\sspark1$")

    def test_bytes_that_are_not_text_stay_and_can_be_shown(self, node):
        node.put("/etc/hosts", b"caf\xe9\n\xff spark1\n")
        result = node.apply(self.hosts)
        assert node.path("/etc/hosts").read_bytes() == b"caf\xe9\n10.0.0.1 spark1\n"
        str(result.event).encode()

    def test_unknown_after_a_content_that_stays_on_the_laptop(self, node):
        node.path("/etc").mkdir()
        file = File("/etc/hosts", content=Blob("0" * 64, 3))
        result = node.check(file, self.hosts)
        assert (result.verdict, result.reason) == ("unknown", "after: File:/etc/hosts")


def test_what_an_earlier_part_of_the_run_makes_is_not_unknown_after_itself(node):
    result = node.check(Directory("/srv"), Directory("/srv"))
    assert (result.verdict, result.reason) == ("unknown", "after its change earlier in this run")


# -- lines of configuration files ----------------------------------------------------------------


def test_a_removal_that_cannot_be_reverted_is_said_before(node, monkeypatch):
    node.put("/opt/x/file", "more than ten bytes")
    gone = Directory("/opt/x", state="absent")
    monkeypatch.setattr(journal_module, "TREE_LIMIT", 10)
    said = "/opt/x is removed permanently, revert cannot restore it: it holds more than 0 MiB"
    assert node.check(gone).event["reason"] == said
    there = []
    host = node.host()
    host.note = lambda text: there.append((text, node.path("/opt/x/file").exists()))
    assert node.apply(gone, host=host).verdict == "change"
    assert there == [(said, True)]


def test_a_socket_in_a_folder_that_is_removed(node):
    node.path("/run/x").mkdir(parents=True)
    with socket.socket(socket.AF_UNIX) as made:
        made.bind(str(node.path("/run/x/s")))
    assert "s in it is a socket" in node.check(Directory("/run/x", state="absent")).event["reason"]

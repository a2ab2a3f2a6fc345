"""File, Directory and Line: absent, drifted, converged, check mode, what can go wrong."""

import errno
import hashlib
import os
import socket

import pytest

from spark_cluster.node import journal as journal_module
from spark_cluster.node.host import Host
from spark_cluster.node.values import Blob, Secret
from spark_cluster.resources import Directory, File, HostsEntry, Line, Unknown
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

    def test_blob_is_fetched_only_when_it_is_needed(self, node):
        node.path("/etc").mkdir()
        fetched = []
        fetch = lambda blob: fetched.append(blob) or [b"b", b"ig"]  # noqa: E731
        big = File("/etc/big", content=Blob(hashlib.sha256(b"big").hexdigest(), 3))
        assert node.apply(big, host=node.host(fetch=fetch)).verdict == "change"
        assert node.apply(big, host=node.host(fetch=fetch)).verdict == "ok"
        assert len(fetched) == 1


class TestDirectory:
    models = Directory("/srv/models", mode=0o750)

    def test_absent_removes_and_check_mode_sees_it_gone(self, node):
        node.put("/srv/models/a", "x")
        gone = Directory("/srv/models", state="absent")
        again = (Directory("/srv/models/b"), File("/srv/models/a", content="x"))
        verdicts = [r.verdict for r in node.results(gone, *again, check=True)]
        assert verdicts == ["change", "change", "change"]
        assert [r.verdict for r in node.results(gone, *again)] == verdicts
        node.must_converge(gone)


class TestLine:
    hosts = Line("/etc/hosts", line="10.0.0.1 spark1", match=r"\sspark1$")

    def test_bytes_that_are_not_text_stay_and_can_be_shown(self, node):
        node.put("/etc/hosts", b"caf\xe9\n\xff spark1\n")
        result = node.apply(self.hosts)
        assert node.path("/etc/hosts").read_bytes() == b"caf\xe9\n10.0.0.1 spark1\n"
        str(result.event).encode()

    def test_check_mode_sees_what_earlier_lines_and_files_leave(self, node):
        node.path("/etc").mkdir()
        file = File("/etc/hosts", content="10.0.0.1 spark1\n")
        second = Line("/etc/hosts", line="10.0.0.2 spark2")
        verdicts = [r.verdict for r in node.results(file, self.hosts, second, check=True)]
        assert verdicts == ["change", "ok", "change"]
        assert [r.verdict for r in node.results(file, self.hosts, second)] == verdicts
        diff = node.check(file, self.hosts, Line("/etc/hosts", line="new")).diff
        assert "+new" in diff

    def test_unknown_after_a_content_that_stays_on_the_laptop(self, node):
        node.path("/etc").mkdir()
        file = File("/etc/hosts", content=Blob("0" * 64, 3))
        result = node.check(file, self.hosts)
        assert (result.verdict, result.reason) == ("unknown", "after: File:/etc/hosts")


def test_a_secret_line_shows_neither_itself_nor_what_was_in_its_place(node):
    node.put("/env", "A=1\nKEY=old-secret\n")
    line = Line("/env", line=Secret("KEY=new-secret"), match="^KEY=")
    for result in (node.check(line), node.apply(line)):
        assert result.event["changes"] == {"line": ["another", "as declared"]}
        assert result.diff == "/env: secret content, not shown\n"
    assert node.path("/env").read_text() == "A=1\nKEY=new-secret\n"
    assert node.apply(line).verdict == "ok"


def test_directory_that_an_earlier_resource_makes_is_not_guessed(node):
    """A package brings its folder with a mode of its own: whether it is right shows only then."""
    host = node.host(check=True)
    host.overlay.claim(("path:/etc/docker",), "Package:docker.io")
    with pytest.raises(Unknown, match=r"after: Package:docker\.io"):
        Directory("/etc/docker", mode=0o755).observe(host)


# -- lines of configuration files ----------------------------------------------------------------

ODD = "# a form feed \x0c10.0.0.9 spark9, \x0b, \x1c, \x85 and \u2028 10.0.0.8 spark8\n"


def test_only_a_line_feed_ends_a_line_of_hosts(node):
    node.put("/etc/hosts", f"{ODD}127.0.0.1 localhost\n")
    entry = HostsEntry("spark1", address="10.0.0.1")
    result = node.apply(entry)
    assert result.verdict == "change"
    assert node.path("/etc/hosts").read_bytes().decode() == (
        f"{ODD}127.0.0.1 localhost\n10.0.0.1 spark1\n"
    )
    assert result.event["diff"].count("\n+") == 2, "the head and one line"
    assert node.apply(HostsEntry("spark9", address="10.0.0.9")).verdict == "change"


def test_validate_with_is_asked_in_check_mode_too(node):
    node.put("/etc/sudoers", "old\n")
    node.bin.mkdir(exist_ok=True)
    asked = node.root / "asked"
    validator = node.bin / "looks"
    validator.write_text(f'#!/bin/sh\n[ -e {asked} ] && exit 1\ngrep -q good "$1"\n')
    good = File("/etc/sudoers", content="good\n", validate_with=("looks", "{}"))
    bad = File("/etc/sudoers", content="bad\n", validate_with=("looks", "{}"))
    result = node.check(good)
    assert result.verdict == "unknown"
    assert "there is no looks yet, which validates it" in result.event["reason"]
    validator.chmod(0o755)
    assert node.check(good).verdict == "change"
    result = node.check(bad)
    assert result.verdict == "failed"
    assert "the new /etc/sudoers is not valid, the old one stays" in result.error
    assert node.apply(bad).verdict == "failed"
    assert node.path("/etc/sudoers").read_text() == "old\n"
    assert [path.name for path in node.path("/etc").iterdir()] == ["sudoers"]
    assert node.apply(good).verdict == "change"


def test_what_is_validated_with_things_that_are_to_come_is_unknown_in_check_mode(node):
    """As a proxy's configuration, which names a certificate and needs the package."""
    node.put("/etc/hosts", "")
    config = File("/etc/proxy.cfg", content="a\n", validate_with=("env", "no-such-proxy", "{}"))
    assert node.check(config).verdict == "unknown"
    needs = File("/etc/proxy.cfg", content="a\n", validate_with=("grep", "-q", "key", "{}"))
    assert node.check(needs).verdict == "failed", "nothing is to come"
    result = node.check(File("/etc/key", content="k\n"), needs)
    assert result.verdict == "unknown"
    assert "only after what this run changes before it" in result.event["reason"]


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


def test_runtime_data_is_removed_and_not_kept(node):
    node.put("/opt/ray/session/log", "log")
    assert node.apply(Directory("/opt/ray", state="absent", keep=False)).verdict == "change"
    assert not node.path("/opt/ray").exists()
    kept = node.path("/var/lib/spark-cluster/journal").glob("*/before/*")
    assert list(kept) == []

"""Changing known_hosts: only this host's names go, and nothing else of the file."""

import base64
import os

import pytest
from test_as_ssh_does import hashed

from spark_cluster.errors import Failed
from spark_cluster.runner import known_hosts
from spark_cluster.runner.known_hosts import HostKey, KnownHostsLine, write

KEY = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAI" + "E" * 43
NEW = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAI" + "F" * 43


def shown(host="[127.0.0.1]:22022", verdict="changed"):
    line = None if verdict == "new" else KnownHostsLine(b"", "known_hosts:1", False)
    return HostKey(base64.b64decode(NEW.split()[1]), host, verdict, line)


@pytest.fixture
def known(tmp_path):
    return tmp_path / "known_hosts"


def test_all_else_stays_byte_for_byte(known):
    """Also the lines of other hosts whose names are hashed; of this host's none is left."""
    other, own = hashed("example.org"), hashed("[127.0.0.1]:22022")
    rest = f"{other} {KEY}\n".encode() + (
        b"# caf\xe9 \xff\n\n  indented.example " + KEY.encode() + b"\n"
        b"@revoked [127.0.0.1]:22022 " + KEY.encode() + b"\n@cert-authority * " + KEY.encode() +
        b"\nnonsense [127.0.0.1]:22022\n127.0.0.1 " + KEY.encode() + b"\n*,!x " + KEY.encode() +
        b"\ndos.example " + KEY.encode() + b"\r\n"
    )  # fmt: skip
    known.write_bytes(rest + f"{own} {KEY}\n[127.0.0.1]:22022 {KEY}".encode())
    write(known, shown())
    assert known.read_bytes() == rest + f"[127.0.0.1]:22022 {NEW}\n".encode()


def test_names_in_capitals_and_several_kinds_go(known):
    known.write_text(f"SPARK1,other {KEY}\nspark1 {KEY.replace('F', 'G')}\n")
    write(known, shown("spark1"))
    assert known.read_text() == f"other {KEY}\nspark1 {NEW}\n"


def test_a_new_host_takes_nothing_away(known):
    known.write_text(f"[127.0.0.1]:22022 {KEY}")
    write(known, shown(verdict="new"))
    assert known.read_text() == f"[127.0.0.1]:22022 {KEY}\n[127.0.0.1]:22022 {NEW}\n"
    write(known, shown(verdict="new"))
    assert known.read_text().count(NEW) == 1


def test_mode_and_link_stay(tmp_path, known):
    real = tmp_path / "dotfiles" / "hosts"
    real.parent.mkdir()
    real.write_text(f"a {KEY}\n")
    real.chmod(0o644)
    (tmp_path / "between").symlink_to("dotfiles/hosts")
    known.symlink_to("between")
    write(known, shown())
    assert known.is_symlink()
    assert real.stat().st_mode & 0o7777 == 0o644
    assert len(real.read_text().splitlines()) == 2
    assert [path.name for path in real.parent.iterdir()] == ["hosts"]


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root")
def test_the_owner_stays(known):
    known.write_text("")
    os.chown(known, 1234, 1235)
    write(known, shown())
    assert (known.stat().st_uid, known.stat().st_gid) == (1234, 1235)


def test_a_new_file_is_for_its_user_only(tmp_path):
    path = tmp_path / "new" / "known_hosts"
    write(path, shown())
    assert path.stat().st_mode & 0o777 == 0o600
    assert path.parent.stat().st_mode & 0o777 == 0o700


def test_what_another_program_appends_meanwhile_is_kept(known):
    known.write_text(f"a {KEY}\n")
    appended = []

    def change(lines):
        if not appended:
            appended.append(True)
            with known.open("a") as out:  # as ssh does
                out.write(f"b {KEY}\n")
        return [*lines, b"c"]

    known_hosts.update(known, change)
    assert known.read_text() == f"a {KEY}\nb {KEY}\nc\n"


def test_no_file_that_others_write_for_ever(known):
    def change(lines):
        with known.open("a") as out:
            out.write("x\n")
        return [*lines, b"c"]

    with pytest.raises(Failed, match="keep on changing"):
        known_hosts.update(known, change)
    assert list(known.parent.iterdir()) == [known], "nothing is left behind"


def test_what_is_no_file_is_left_alone(tmp_path, known):
    with pytest.raises(Failed, match="not a regular file") as caught:
        write(tmp_path, shown())
    assert "known_hosts" in caught.value.hint
    os.mkfifo(known)
    with pytest.raises(Failed, match="not a regular file"):
        write(known, shown())


def test_links_in_a_circle(known):
    known.symlink_to(known)
    with pytest.raises(Failed, match="cannot be written"):
        write(known, shown())

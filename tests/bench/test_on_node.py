"""Files that come back from the node: foreign input."""

from __future__ import annotations

import base64
import io
import random
import tarfile
from pathlib import Path
from typing import Any

import pytest

from spark_cluster.bench import on_node
from spark_cluster.errors import Failed
from spark_cluster.runner.session import Output


class FakeSession:
    """Answers `find` with a listing, and each fetch with the next archive."""

    def __init__(self, listing: str, *archives: bytes | str) -> None:
        self.listing = listing
        self.archives = list(archives)
        self.asked: list[list[str]] = []

    def run(
        self, argv: list[str], *, stdin: str = "", timeout: float = 60.0, user: str = ""
    ) -> Output:
        if argv[0] == "find":
            return Output(0, self.listing, "")
        self.asked.append(stdin.split("\0"))
        data = self.archives.pop(0)
        text = data if isinstance(data, str) else base64.b64encode(data).decode()
        return Output(0, text, "")


def archive(**files: bytes) -> bytes:
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w:gz") as made:
        for name, content in files.items():
            member = tarfile.TarInfo(name)
            member.size = len(content)
            made.addfile(member, io.BytesIO(content))
    return out.getvalue()


def fetch(session: Any, into: Path) -> list[str]:
    return on_node.fetch(session, "/var/lib/spark-cluster/bench/r/s", into, "nvidia")


def test_only_what_was_asked_for_is_written(tmp_path):
    sent = archive(**{"raw/a.json": b"{}", "../../etc/passwd": b"x", "raw/b.json": b"no"})
    session = FakeSession("2 raw/a.json\n9 programs.pyz\n", sent)
    assert fetch(session, tmp_path / "in") == []
    found = {str(p.relative_to(tmp_path)) for p in tmp_path.rglob("*") if p.is_file()}
    assert found == {"in/raw/a.json"}
    assert session.asked == [["raw/a.json"]]


def test_a_name_that_leads_out_of_the_folder_is_not_asked_for(tmp_path):
    listing = "5 raw/../../evil\n5 raw/a/b\n5 cells/..\n5 raw/\n"
    session = FakeSession(listing)
    assert fetch(session, tmp_path / "in") == []
    assert session.asked == []


def test_a_file_that_is_larger_than_it_was_said(tmp_path):
    huge = archive(**{"raw/a.json": b"0" * (on_node.LARGEST_BYTES + 1)})
    fetch(FakeSession("2 raw/a.json\n", huge), tmp_path)
    assert list(tmp_path.rglob("*.json")) == []


def test_a_link_in_the_archive_is_not_followed(tmp_path):
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w:gz") as made:
        member = tarfile.TarInfo("raw/a.json")
        member.type, member.linkname = tarfile.SYMTYPE, "/etc/shadow"
        made.addfile(member)
    fetch(FakeSession("2 raw/a.json\n", out.getvalue()), tmp_path)
    assert list(tmp_path.rglob("*.json")) == []


def of_members(*members: tarfile.TarInfo) -> bytes:
    """An archive of members that are all zeros."""
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w:gz") as made:
        for member in members:
            made.addfile(member, io.BytesIO(bytes(member.size)))
    return out.getvalue()


def member(name: str, size: int) -> tarfile.TarInfo:
    made = tarfile.TarInfo(name)
    made.size = size
    return made


def test_a_member_that_comes_twice_is_refused(tmp_path):
    sent = of_members(member("raw/a", 1), member("raw/a", 2))
    with pytest.raises(Failed, match="the archive holds raw/a twice"):
        fetch(FakeSession("1 raw/a\n", sent), tmp_path)
    assert list(tmp_path.rglob("*")) == []


@pytest.mark.parametrize("name", ["raw/a", "raw/other", "programs.pyz"])
def test_an_archive_without_end_is_given_up(tmp_path, name):
    """Zeros are packed a thousandfold: an answer that arrives can stand for gigabytes."""
    sent = of_members(*[member(name, on_node.LARGEST_BYTES)] * 10)
    assert len(sent) < on_node.LARGEST_BYTES
    with pytest.raises(Failed, match="the archive holds more than was asked for"):
        fetch(FakeSession("1 raw/a\n", sent), tmp_path)
    assert list(tmp_path.rglob("*")) == []


def test_a_sparse_member_takes_no_memory(tmp_path):
    """One that is all holes says its size, and nothing of it is in the archive."""
    sparse = member("raw/a", 0)
    sparse.pax_headers = {"GNU.sparse.size": str(on_node.LARGEST_BYTES), "GNU.sparse.map": "0,0"}
    fetch(FakeSession("1 raw/a\n", of_members(sparse)), tmp_path)
    assert list(tmp_path.rglob("*")) == []


def test_many_small_files_in_one_archive(tmp_path):
    names = [f"raw/{'n' * 120}{number}" for number in range(2000)]
    listing = "".join(f"0 {name}\n" for name in names)
    fetch(FakeSession(listing, archive(**dict.fromkeys(names, b""))), tmp_path)
    assert len(list((tmp_path / "raw").iterdir())) == 2000


def test_many_files_come_in_parts_and_huge_ones_stay(tmp_path):
    size = on_node.BATCH_BYTES // 2 + 1
    listing = f"{size} raw/a\n{size} raw/b\n{on_node.LARGEST_BYTES + 1} raw/huge\n"
    session = FakeSession(listing, archive(**{"raw/a": b"1"}), archive(**{"raw/b": b"2"}))
    assert fetch(session, tmp_path) == ["raw/huge"]
    assert session.asked == [["raw/a"], ["raw/b"]]
    assert (tmp_path / "raw/b").read_bytes() == b"2"


@pytest.mark.parametrize("answer", ["not base64!", b"no archive", b""])
def test_nonsense_is_said_and_nothing_is_written(tmp_path, answer):
    with pytest.raises(Failed, match="the answer is not"):
        fetch(FakeSession("2 raw/a\n", answer), tmp_path)
    assert list(tmp_path.rglob("*")) == []


def test_a_node_that_has_nothing(tmp_path):
    class Nothing(FakeSession):
        def run(
            self, argv: list[str], *, stdin: str = "", timeout: float = 60.0, user: str = ""
        ) -> Output:
            return Output(1, "", "No such file or directory")

    assert fetch(Nothing(""), tmp_path) == []


def test_an_archive_that_is_damaged(tmp_path):
    """Wherever it is: its header, the compressed data, the end."""
    content = "".join(random.Random(1).choices("abcdefgh", k=50_000)).encode()
    sent = archive(**{"raw/a": content})
    said = []
    for at in range(0, len(sent), 97):
        damaged = bytes([*sent[:at], sent[at] ^ 0xFF, *sent[at + 1 :]])
        try:
            fetch(FakeSession("9 raw/a\n", damaged), tmp_path)
        except Failed as error:
            said.append(error.message)
    assert said
    assert all("the answer is not a tar archive" in text for text in said)

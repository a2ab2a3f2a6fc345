"""Files that come back from the node: foreign input."""

import gzip
import os
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from factories import put

from spark_cluster.bench import on_node
from spark_cluster.bench.on_node import FILE, Recording
from spark_cluster.errors import Failed
from spark_cluster.node.telemetry import KEPT_FILES
from spark_cluster.runner.session import Session

FOLDER = "/var/lib/spark-cluster/bench/r/s"
Agent = Callable[..., Session]
Fetched = tuple[dict[str, Any], list[str], set[str]]


@pytest.fixture
def node(tmp_path: Path) -> Path:
    """The step's folder on a node."""
    return tmp_path / f"spark1{FOLDER}"


@pytest.fixture
def fetch(agent: Agent, tmp_path: Path) -> Callable[..., Fetched]:
    """`fetch(*cells)`: what has ended, what is too large, and what has come."""

    def run(*cells: str) -> Fetched:
        ended = dict(on_node.fetch(agent(), FOLDER, cells, tmp_path / "in"))
        left = sorted(name for cell in ended.values() for name in cell.too_large)
        files = {p for p in (tmp_path / "in").rglob("*") if not p.is_dir()}
        told = {id: cell.told for id, cell in ended.items()}
        return told, left, {str(path.relative_to(tmp_path / "in")) for path in files}

    return run


def test_results_of_the_cells_come_and_nothing_else(fetch, tmp_path, node):
    for name in ("cells/a.json", "raw/a.json", "raw/a.log", "raw/a.d/b.json", "home/a.x",
                 "cells/b.json", "raw/b.json", "raw/c.json"):  # fmt: skip
        put(node / name, '{"status": 0}')
    came = {"cells/a.json", "raw/a.json", "raw/a.log"}
    assert fetch("c") == ({}, [], set()), "it has not ended"
    assert fetch("a", "c") == ({"a": {"status": 0}}, [], came)
    assert (tmp_path / "in/raw/a.json").read_text() == '{"status": 0}'
    put(node / "cells/a.json", "{")
    assert fetch("a")[0] == {"a": None}, "what is no JSON says nothing"


def test_what_its_user_put_in_their_place_is_not_read(fetch, tmp_path, node):
    """`raw` is the login user's own, and root reads it. A hard link leads to what its user may be
    unable to read, and costs no disk."""
    put(node / "cells/a.json", "{}")
    secret = put(tmp_path / "spark1/etc/shadow", "of root")
    (node / "raw").mkdir()
    (node / "raw/a.json").symlink_to(secret)
    (node / "raw/a.1.json").symlink_to("/etc/passwd")
    os.mkfifo(node / "raw/a.log")
    os.link(secret, node / "raw/a.linked")
    assert fetch("a") == ({"a": {}}, [], {"cells/a.json"})


def test_many_files_come_and_huge_ones_stay(fetch, node):
    put(node / "cells/a.json", "{}")
    names = {f"raw/a.{'n' * 120}{number}" for number in range(500)}
    for name in names:
        put(node / name, "1")
    os.truncate(put(node / "raw/a.huge", ""), on_node.LARGEST_BYTES + 1)
    os.truncate(put(node / "raw/a.endless", ""), 1 << 40)
    assert fetch("a") == ({"a": {}}, ["a.endless", "a.huge"], names | {"cells/a.json"})


def test_a_cell_too_much_for_one_message_fails_alone(fetch, node):
    """Control characters are six times as long in a message, which has a limit."""
    put(node / "cells/a.json", "{}")
    for number in range(4):
        put(node / f"raw/a.{number}", "\x01" * on_node.LARGEST_BYTES)
    put(node / "cells/b.json", "{}")
    put(node / "raw/b.json", "{}")
    told, left, came = fetch("a", "b")
    assert (told, left) == ({"a": {}, "b": {}}, ["a.3"])
    assert "raw/b.json" in came


def test_text_that_is_no_unicode_is_written_all_the_same(tmp_path):
    def request(_op: str, trees: dict[str, str], **_asked: Any) -> dict[str, Any]:
        found = {path.replace("*", "json"): "{\ud800}" for path in trees.values()}
        return {"trees": {"files": {p.replace("/json.", "/a."): t for p, t in found.items()}},
                "late": {}}  # fmt: skip

    lying: Any = SimpleNamespace(node="spark1", request=request)
    ((cell, ended),) = on_node.fetch(lying, FOLDER, ["a"], tmp_path)
    assert (cell, ended.told) == ("a", None)
    assert (tmp_path / "raw/a.json").read_text() == "{?}"


def test_results_without_end_are_given_up(fetch, tmp_path, node, monkeypatch):
    monkeypatch.setattr(on_node, "MOST_BYTES", 5 << 20)
    put(node / "cells/a.json", "{}")
    for number in range(9):
        os.truncate(put(node / f"raw/a.{number}", ""), 1 << 20)
    with pytest.raises(Failed, match="holds more than 5 MiB of results"):
        fetch("a")
    assert not list(tmp_path.rglob("in/raw/*"))


@pytest.mark.parametrize(
    "path",
    ["/etc/passwd", f"{FOLDER}/raw/../../x", f"{FOLDER}/raw/", f"{FOLDER}/raw/..",
     f"{FOLDER}/raw/a\x1b[2J", f"{FOLDER}/raw/{'a' * 300}", ""],
)  # fmt: skip
def test_only_plain_names_in_the_folder_are_believed(path):
    """What was not read in time is not taken for nothing either."""
    told = {"trees": {"files": {path: "x"} if path else {}}, "late": {}}
    if not path:
        told["late"] = {"files": "it hangs"}
    lying: Any = SimpleNamespace(node="spark1", request=lambda _op, **_asked: told)
    with pytest.raises(Failed, match="it answers of" if path else "it hangs") as caught:
        dict(on_node.read(lying, FOLDER, "raw/*"))
    assert caught.value.where == "spark1"


def test_the_lines_of_telemetry_come_in_their_order(agent, tmp_path):
    notes: list[str] = []
    play: Any = SimpleNamespace(
        nodes=[SimpleNamespace(name=name) for name in ("spark1", "spark2")],
        note=lambda text, **_: notes.append(text),
        connections=SimpleNamespace(session=agent),
    )
    recording = Recording(play, ["spark1", "spark2"], FOLDER)
    place = tmp_path / f"spark1{recording.place}/{FILE}"
    put(place, "newest\n")
    for number in range(1, KEPT_FILES):
        put(place.with_name(f"{FILE}.{number}"), f"{number}\n")
    recording.fetch(tmp_path / "in")
    lines = [*map(str, range(KEPT_FILES - 1, 0, -1)), "newest"]
    for name, found in (("spark1", lines), ("spark2", [])):
        path = tmp_path / "in" / on_node.LINES.format(name)
        assert gzip.decompress(path.read_bytes()).decode().split() == found
    assert notes == []


@pytest.mark.parametrize("fault", ["", "no bus"])
def test_telemetry_is_recorded_by_a_unit_that_ends(agent, tmp_path, fault):
    notes: list[str] = []
    commands, calls = tmp_path / "spark1/usr/local/bin", tmp_path / "calls"
    put(commands / "mkdir", "#!/bin/sh\n", 0o755)
    put(commands / "systemctl", "#!/bin/sh\nexit 3\n", 0o755)
    ended = f"echo {fault} >&2; exit 1" if fault else ""
    put(commands / "systemd-run", f'#!/bin/sh\necho "$@" >> {calls}\n{ended}\n', 0o755)
    play: Any = SimpleNamespace(
        nodes=[SimpleNamespace(name="spark1")],
        note=lambda text, **_: notes.append(text),
        connections=SimpleNamespace(session=agent),
    )
    recording = Recording(play, ["spark1"], FOLDER, {"spark1": "http://h/metrics"}, longest=1e9)
    recording.start()
    said = calls.read_text()
    assert f"--unit={recording.unit}.service" in said
    assert "--property=RuntimeMaxSec=604800 " in said
    assert f'"metrics": "http://h/metrics", "file": "{recording.place}/{FILE}"' in said
    expected = "spark1: no telemetry: its unit does not start: no bus"
    assert notes == ([expected] if fault else [])

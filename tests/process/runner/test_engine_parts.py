"""Parts of the runner: payload and bootstrap, documents, selection, the run record, events."""

import ast
import io
import json
import os
import re
import shlex
import shutil
import struct
import subprocess
import sys
import time
import zipfile
from pathlib import Path

import pytest
from cases import each_case
from factories import put
from piped_cluster import Events
from waiting import HANG_S

from spark_cluster.agent import bootstrap, frames
from spark_cluster.cli import run as record
from spark_cluster.cli.opened import new_run
from spark_cluster.cli.results import Recap, Tally
from spark_cluster.cli.run import RunRecord
from spark_cluster.config import folders
from spark_cluster.config.topology import tagged
from spark_cluster.errors import Failed
from spark_cluster.node.values import Secret
from spark_cluster.resources import Command, Directory, File
from spark_cluster.runner import wire
from spark_cluster.runner.delivery import INLINE, check, document
from spark_cluster.runner.events import (
    Bus,
    Changing,
    NodeFailed,
    Note,
    Result,
    RunStarted,
    Selection,
)

# -- payload and bootstrap ---------------------------------------------------------------------


def unpacked(archive):
    with zipfile.ZipFile(io.BytesIO(archive)) as files:
        return {name: files.read(name) for name in files.namelist()}


def modules():
    """Return all modules that run on nodes: those of the agent and of units."""
    found = unpacked(wire.code())
    for path in wire.UNITS:
        found[path] = (wire.PACKAGE.parent / path).read_bytes()
    return {name: data for name, data in found.items() if name.endswith(".py")}


def test_payload_is_the_same_for_the_same_sources():
    first = wire.code()
    wire._zip.cache_clear()
    assert wire.code() == first


def test_the_code_of_an_agent_is_agent_node_and_resources():
    wanted = {"spark_cluster/__init__.py"}
    for folder in ("agent", "node", "resources"):
        paths = (wire.PACKAGE / folder).rglob("*.py")
        wanted |= {
            str(p.relative_to(wire.PACKAGE.parent)) for p in paths if p not in wire.LAPTOP_ONLY
        }
    assert set(unpacked(wire.code())) == wanted - set(wire.UNITS)


def test_what_every_agent_gets_is_small():
    assert len(wire.code()) < 290_000, "it is sent over slow links, once a version"


def test_a_program_has_the_hash_of_its_own_files(monkeypatch, tmp_path):
    """A new version restarts those units only whose program is another one."""
    copy = shutil.copytree(wire.PACKAGE, tmp_path / "spark_cluster")
    monkeypatch.setattr(wire, "PACKAGE", copy)

    def paths():
        wire.archive.cache_clear()
        modules = ("supervisor", "local_server:limit_restarts", "model_loader")
        return [wire.program("/x", f"spark_cluster.node.{name}").path for name in modules]

    before = paths()

    def changed(name):
        nonlocal before
        with (copy / name).open("a") as file:
            file.write("# changed\n")
        former, before = before, paths()
        return [one != other for one, other in zip(former, before, strict=True)]

    assert paths() == before
    assert changed("node/supervisor.py") == [True, False, False]
    assert changed("node/local_server.py") == [True, True, True]
    assert changed("node/model_loader.py") == [False, False, True]
    assert changed("__init__.py") == [False, False, False]
    assert changed("node/units.py") == [False, False, False]
    wire.archive.cache_clear()


ONLY_TYPES = "if TYPE_CHECKING"


@pytest.mark.parametrize("name", sorted(modules()))
def test_what_runs_on_a_node_needs_python_3_10_and_the_standard_library_only(name):
    tree = ast.parse(modules()[name], feature_version=(3, 10))
    if name == "spark_cluster/__init__.py":  # the names of the API, which it imports when asked for
        tree.body = [node for node in tree.body if ast.unparse(node).split(":")[0] != ONLY_TYPES]
    imported = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            imported.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0
            imported.add(node.module or "")
    for module in imported:
        top, _, rest = module.partition(".")
        if top == "spark_cluster":
            assert rest.partition(".")[0] in ("", "agent", "node", "resources"), module
        else:
            assert top in sys.stdlib_module_names, module


def test_nothing_newer_than_3_10_is_asked_of_the_library():
    """Names that came later and are easily used without a thought."""
    newer = rb"tomllib|ExceptionGroup|datetime\.UTC|StrEnum|add_note|from typing import Self"
    assert not [name for name, source in modules().items() if re.search(newer, source)]


BOOTSTRAP = Path(bootstrap.__file__)


def test_bootstrap_can_be_parsed_by_an_old_python():
    ast.parse(BOOTSTRAP.read_text(), feature_version=(3, 6))
    ast.parse(wire.COMMAND, feature_version=(3, 6))


def start(source, sent):
    done = subprocess.run(
        [sys.executable, "-I", "-S", "-c", wire.COMMAND],
        input=wire.MARKER + b"\n%d\n" % len(source) + source + sent,
        capture_output=True,
        check=False,
        timeout=HANG_S,
    )
    return frames.read(io.BytesIO(done.stdout)), done


def test_the_command_is_one_line_for_the_login_shell():
    """A csh ends a quoted word where a line ends; fish takes a backslash before a quote away."""
    for says_ready in (False, True):
        words = wire.argv("test", says_ready=says_ready)
        assert not re.search(r"[\n!]|\\['\\]", " ".join(words)), words


@pytest.mark.parametrize("shell", ["sh", "bash", "dash", "zsh", "fish", "tcsh", "ksh"])
@pytest.mark.parametrize("says_ready", [False, True])
def test_login_shells_start_the_agent(tmp_path, shell, says_ready):
    """sshd has the user's login shell run the command."""
    if shutil.which(shell) is None:
        pytest.skip(f"no {shell} here")
    line = shlex.join([*wire.argv("test", says_ready=says_ready)])
    source = b"print('started', flush=True)\ndef boot(f): print(f.read().decode())\n"
    done = subprocess.run(
        [shell, "-c", line],
        input=b"a password\n" + wire.MARKER + b"\n%d\n" % len(source) + source + b"the rest",
        env={**os.environ, "HOME": str(tmp_path)},
        capture_output=True,
        check=False,
        timeout=HANG_S,
    )
    ready = frames.pack({"event": "ready"}) if says_ready else b""
    assert done.stdout.replace(b" ", b"") == ready.replace(b" ", b"") + b"started\ntherest\n", done


def test_bootstrap_on_an_old_python():
    source = b"import sys; sys.version_info = (3, 8, 10)\n" + BOOTSTRAP.read_bytes()
    said, done = start(source, b"")
    assert said["event"] == "too_old"
    assert said["python"] == sys.version.split()[0]
    assert done.returncode == 0


def head(folder):
    digests = {"sha256": wire.digest()}
    return frames.pack({**digests, "folder": str(folder), "root": "/"})


def test_bootstrap_leaves_nothing_behind_when_the_disk_is_full(tmp_path):
    source = BOOTSTRAP.read_bytes() + (
        b"\nimport zipfile\ndef full(*_):\n    raise OSError(28, 'No space left on device')\n"
        b"zipfile.ZipFile.extractall = full\n"
    )
    sent = head(tmp_path / "code") + frames.pack({"op": "run"}) + frames.pack(wire.code())
    done = start(source, sent)[1]
    assert b"No space left on device" in done.stdout
    assert list((tmp_path / "code").iterdir()) == []


@pytest.mark.parametrize("sent", [b"", b"\0\0", head("/none"), head("/none")[:-1]])
def test_bootstrap_whose_laptop_goes_away(sent):
    done = start(BOOTSTRAP.read_bytes(), sent)[1]
    assert done.stdout == b""
    assert b"Traceback" not in done.stderr


# -- frames ------------------------------------------------------------------------------------


def test_frames():
    stream = io.BytesIO(frames.pack({"a": "é\0\n"}) + frames.pack(b"raw") + frames.pack(b"[]"))
    assert frames.read(stream) == {"a": "é\0\n"}
    assert frames.read_raw(stream) == b"raw"
    with pytest.raises(ValueError, match="not a JSON object"):
        frames.read(stream)
    assert frames.read(stream) is None
    for text, said in (
        (b"\0\0", "inside a frame"),
        (b"\0\0\0\5abc", "inside a frame"),
        (b"SSH-2.0", "a frame of 1397966893 bytes"),
        (struct.pack(">I", 2) + b"{{", None),
    ):
        with pytest.raises(ValueError, match=said):
            frames.read(io.BytesIO(text))


# -- documents ---------------------------------------------------------------------------------


def test_a_document_is_checked():
    file = File("/a", content="")
    with pytest.raises(Failed, match=r"spark1: File:/a is declared twice"):
        check([file, file], "spark1")
    restart = Command("restart", ("true",), when_changed=(file,))
    with pytest.raises(
        Failed, match="Command:restart is to act on changes of File:/a, which is not declared"
    ):
        check([restart], "spark1")
    check([restart, file], "spark1")


def test_long_contents_stay_here_until_they_are_asked_for():
    long, short, secret = "é" * INLINE, "x" * INLINE, Secret("s" * 2 * INLINE)
    packed = document([File("/a", content=content) for content in (long, short, secret)])
    (digest,) = packed.blobs
    assert packed.blobs[digest] == long.encode()
    assert [each["content"] for each in packed.resources] == [
        {"$blob": digest, "size": 2 * INLINE}, short, {"$secret": secret},
    ]  # fmt: skip


def test_roles_are_tags():
    own, other = tagged([File("/a", content="", tags=("x",)), Directory("/b", tags=("r",))], "r")
    assert (own.tags, other.tags) == (("x", "r"), ("r",))


# -- selection ---------------------------------------------------------------------------------

A, B = File("/a", content="", tags=("one",)), File("/b", content="", tags=("two", "slow"))
C = Directory("/c", tags=("three",))


def chosen(selection, node="spark1"):
    return [r.name for role, r in (("r", A), ("r", B), ("s", C)) if selection.wants(node, role, r)]


@each_case(__file__, "selections.json")
def test_selection(case):
    """What is chosen on each node, which begins for itself; names that match nothing are said."""
    options = {
        name: value if name == "start_at" else frozenset(value)
        for name, value in case["options"].items()
    }
    selection = Selection(**options)
    if "names" in case:
        assert chosen(selection) == chosen(selection, "spark2") == case["names"]
        assert selection.unmatched() is None
        return
    assert chosen(selection) == [] or "skip_tags" in options
    error = selection.unmatched()
    assert case["says"] in error.message
    assert case["hint"] in error.hint
    assert error.exit_code == 2


# -- events and the record -----------------------------------------------------------------------


def test_recap():
    recap = Recap()
    recap.take(RunStarted("r", "up", ("spark1", "spark2", "spark3")))
    recap.take(Changing("spark1", "File:/a"))
    assert recap.last == {"spark1": "File:/a"}
    for verdict in ("ok", "ok", "change", "unknown", "skipped", "failed"):
        recap.take(Result("spark1", "r", "File:/a", verdict, 0.5))
    recap.take(NodeFailed("spark2", "gone", unreachable=True))
    tally = recap.nodes["spark1"]
    assert tally == Tally(ok=2, change=1, unknown=1, failed=1, skipped=1, seconds=3.0)
    assert [recap.nodes[f"spark{n}"].unreachable for n in (2, 3)] == [True, False]
    assert (recap.changed, recap.last) == (1, {})


@pytest.fixture
def state(tmp_path, monkeypatch):
    """The folder of what runs leave on the laptop."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    return tmp_path / "spark-cluster"


def test_the_record_is_private_and_complete(state):
    run = new_run()
    kept = RunRecord(run)
    kept.take(RunStarted(run, "up --tp 2", ("spark1",)))
    kept.take(Result("spark1", "r", "File:/a", "change", 0.1, {"mode": ["0600", "0644"]}))
    kept.close()
    path = state / "runs" / f"{run}.jsonl"
    assert path.stat().st_mode & 0o777 == 0o600
    assert path.parent.stat().st_mode & 0o777 == 0o700
    events = [json.loads(line) for line in path.read_text().splitlines()]
    assert [e["event"] for e in events] == ["RunStarted", "Result"]
    assert events[1]["changes"] == {"mode": ["0600", "0644"]}
    assert all(e["at"] > 0 for e in events)


def test_the_oldest_records_go_whatever_the_clock_says(state, monkeypatch):
    """One that is behind does not cost the run its record; what is no record stays."""
    monkeypatch.setattr(record, "KEPT", 3)
    put(state / "runs/notes.txt", "mine")
    for name in ("20301111-a", "20301111-b", "20301111-c", "20200101-a", "20200101-b"):
        RunRecord(name).close()
    left = {path.stem for path in (state / "runs").iterdir()}
    assert left == {"20301111-c", "20200101-a", "20200101-b", "notes"}


@pytest.mark.usefixtures("state")
def test_a_full_disk_ends_the_record_and_not_the_run():
    """/dev/full takes nothing: what a run tells goes on, with one warning."""
    events = Events()
    bus = Bus()
    kept = RunRecord("r1", lambda why: bus.emit(Note(why, "warning")))
    os.close(kept._handle)
    kept._handle = os.open("/dev/full", os.O_WRONLY)
    bus.add(kept)
    bus.add(events)
    for number in range(3):
        bus.emit(Note(f"event {number}"))
    bus.close()
    texts = [event.text for event in events.of("Note")]
    (warning,) = [text for text in texts if not text.startswith("event")]
    assert "cannot be written any more (No space left on device)" in warning
    assert sorted(set(texts) - {warning}) == ["event 0", "event 1", "event 2"]


def test_where_the_record_is(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    assert folders.state_folder() == tmp_path / "state" / "spark-cluster"
    for relative in ("state", ""):
        monkeypatch.setenv("XDG_STATE_HOME", relative)
        assert folders.state_folder() == Path.home() / ".local/state/spark-cluster"
    monkeypatch.delenv("XDG_STATE_HOME")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert folders.state_folder() == tmp_path / ".local/state/spark-cluster"


def test_run_ids_sort_by_time(monkeypatch):
    """Within a second too: which run was the last is read off its id."""
    moments = [1_700_000_000.0, 1_700_000_000.25, 1_700_000_000.75, 1_700_000_001.0]
    made = []
    for moment in moments:
        monkeypatch.setattr(time, "time", lambda now=moment: now)
        made.append(new_run())
    assert made[0] == "20231114-221320-0000"
    assert made == sorted(set(made))

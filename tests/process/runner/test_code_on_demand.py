"""The code of agents and the contents of files: sent once, when they are lacking, and whole."""

import os
import shutil
from pathlib import Path
from types import SimpleNamespace

import pytest
from factories import put
from pipe_channel import PipeChannel
from test_agent_over_pipe import apply, verdicts

from spark_cluster.config.extension import using
from spark_cluster.errors import Failed
from spark_cluster.resources import File, Line
from spark_cluster.runner import wire
from spark_cluster.runner.session import Session


@pytest.fixture
def fresh(tmp_path, monkeypatch):
    """The folder of agents' code on a node that has never had one."""
    home = tmp_path / "home"
    home.mkdir()
    monkeypatch.setenv("HOME", str(home))
    return home / ".cache/spark-cluster/agent"


@pytest.fixture
def begin(tmp_path):
    """`begin()`: a session with a new agent, whose channel remembers what was sent."""
    begun = []

    def session():
        channel, sent = PipeChannel(wire.argv("test")), []
        channel.on_sent, channel.sent = sent.append, sent
        begun.append(Session("n", channel, as_root=False, root=str(tmp_path)))
        return begun[-1]

    yield session
    for one in begun:
        one.close()


def was_sent(session):
    """Return how often the code was sent."""
    return b"".join(session._channel.sent).count(wire.code())


def test_agents_that_lack_the_code_at_the_same_time(fresh, begin):
    pending = [begin().submit("run", argv=["echo", "x"]) for _ in range(3)]
    assert [p.wait()["stdout"] for p in pending] == ["x\n"] * 3
    assert len(list(fresh.iterdir())) == 1


HUB = {"what": "state", "hub": "/srv/hub", "wanted": []}

# Each damages the code as a power cut, or somebody, can; `main` is imported first, `revert` and the
# store late.
DAMAGES = {
    "a truncated file": lambda code: os.truncate(code / "agent/main.py", 1000),
    "a file that is imported late": lambda code: os.truncate(code / "agent/revert.py", 0),
    "a file less": lambda code: (code / "resources/file.py").unlink(),
    "a file more": lambda code: (code / "agent/json.py").write_text("raise ValueError"),
    "nothing": shutil.rmtree,
    "a folder that is a file": lambda code: [shutil.rmtree(code / "agent"), put(code / "agent")],
    "an empty file": lambda code: os.truncate(code / "node/store/usage.py", 0),
    "a folder less": lambda code: shutil.rmtree(code / "node/store"),
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_code_that_was_damaged_is_sent_again(fresh, begin, damage):
    sent = []
    for number in range(3):
        session = begin()
        assert session.request("history", of=None)["runs"] == []
        assert session.request("store", **HUB)["models"] == []
        session.close()
        sent.append(was_sent(session))
        if number == 0:
            DAMAGES[damage](fresh / wire.digest() / "spark_cluster")
    assert sent == [1, 1, 0]
    (kept,) = fresh.iterdir()
    assert (kept.name, kept.stat().st_mode & 0o777) == (wire.digest(), 0o700)


def test_what_python_compiled_is_of_this_boot_only(fresh, begin):
    """It is not synced: after a power cut it can be torn, and Python would fail for ever."""
    folder = fresh / wire.digest()
    for _ in "ab":
        session = begin()
        assert session.run(["echo", "x"]).stdout == "x\n"
        session.close()
        (boot,) = (folder / "compiled").iterdir()
        assert boot.name == Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        assert list(boot.rglob("*.pyc"))
        assert not list((folder / "spark_cluster").rglob("*.pyc"))
        boot.rename(boot.with_name("of-an-earlier-boot"))


def test_older_versions_of_the_code_go_but_the_last_and_those_of_units(fresh, begin, tmp_path):
    for number in range(4):
        (fresh / f"{number:064x}").mkdir(parents=True)
        os.utime(fresh / f"{number:064x}", (number, number))
    (fresh / f"{9:064x}.{2**22 + 1}").mkdir()
    (fresh / "mine").mkdir()
    runs = f"[Service]\nExecStart=python3 {fresh}/{1:064x}/spark_cluster/node x:main\n"
    put(tmp_path / "run/systemd/transient/spark-cluster-telemetry-r1.service", runs)
    begin().run(["true"])
    left = {wire.digest(), f"{1:064x}", f"{3:064x}", "mine"}
    assert {path.name for path in fresh.iterdir()} == left


def test_the_code_of_a_running_agent_stays(fresh, begin, tmp_path):
    """It imports what it needs late: "no resource of type" was what came of it. Each project with
    resources of its own has another version, and so has each release."""

    def start(number):
        own = ((f"spark_cluster_project/{number}.py", b""),)
        with using(lambda: SimpleNamespace(resource_files=own)):
            session = begin()
            session.run(["true"])
            return session, wire.digest()

    (first, digest), *others = [start(number) for number in range(4)]
    assert (fresh / digest).is_dir()
    (tmp_path / "list").write_text("a\n")
    assert verdicts(apply(first, Line("/list", line="b"))) == ["change"]
    for session, _ in ((first, digest), *others):
        session.close()
    _, newest = start(4)
    assert {path.name for path in fresh.iterdir()} == {newest, others[-1][1]}


def test_no_room_for_the_code(fresh, begin):
    put(fresh.parents[1], "a file where a folder should be")
    said = r"the agent cannot be stored there: .*\.cache.*directory"
    with pytest.raises(Failed, match=said) as caught:
        begin().run(["true"])
    assert "df -h" in caught.value.hint
    assert "df -i" in caught.value.hint


def test_content_travels_only_when_it_is_lacking(agents_home, begin, tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(agents_home))
    content = os.urandom(100_000)
    sent = []
    for text in (content, content, content[1:]):
        session = begin()
        verdict = apply(session, File("/big", content=text))["File:/big"]["verdict"]
        sent.append((verdict, text in b"".join(session._channel.sent)))
        assert (tmp_path / "big").read_bytes() == text
    assert sent == [("change", True), ("ok", False), ("change", True)]

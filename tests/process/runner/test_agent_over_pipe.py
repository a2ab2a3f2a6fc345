"""A real agent over a pipe: operations, code and contents on demand, faults, masking, locking."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import pytest
from cases import each_case
from factories import put
from pipe_channel import PipeChannel
from small_server import answering
from waiting import FAR_S, HANG_S

from spark_cluster.agent import frames
from spark_cluster.config.extension import using
from spark_cluster.errors import Failed, Unreachable
from spark_cluster.node.values import Secret
from spark_cluster.resources import Command, Directory, File, HubModel, Line
from spark_cluster.runner import wire
from spark_cluster.runner.delivery import document
from spark_cluster.runner.node_connection import why_no_agent
from spark_cluster.runner.session import Session


def submit(session, *resources, **options):
    packed = document(resources)
    pending = session.submit("apply", resources=packed.resources, **{"run": "r1", **options})
    return pending, packed.blobs


def apply(session, *resources, **options):
    """The results of a document, by resource id; `None` stands for the reply."""
    pending, blobs = submit(session, *resources, **options)
    events = []
    reply = pending.wait(events.append, blobs)
    return {**{e["id"]: e for e in events if e["event"] == "result"}, None: reply}


def verdicts(results):
    return [event["verdict"] for name, event in results.items() if name is not None]


@pytest.fixture
def root(tmp_path):
    return tmp_path / "spark1"


# -- the code ------------------------------------------------------------------------------------


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


def was_sent(session, part=wire.CORE):
    """Return how often a part of the code was sent."""
    return b"".join(session._channel.sent).count(wire.code(part))


def test_code_is_sent_when_it_is_lacking_and_not_again(fresh, begin):
    sent = []
    for _ in "ab":
        session = begin()
        assert session.run(["echo", "hello"]).stdout == "hello\n"
        session.close()
        sent.append(was_sent(session))
    assert sent == [1, 0]
    (kept,) = fresh.iterdir()
    assert (kept.name, kept.stat().st_mode & 0o777) == (wire.digest(), 0o700)


def test_agents_that_lack_the_code_at_the_same_time(fresh, begin):
    pending = [begin().submit("run", argv=["echo", "x"]) for _ in range(3)]
    assert [p.wait()["stdout"] for p in pending] == ["x\n"] * 3
    assert len(list(fresh.iterdir())) == 1


HUB = {"what": "state", "hub": "/srv/hub", "wanted": []}

# Each damages the code as a power cut, or somebody, can; `main` is imported first, `revert` late,
# and the store is a part that is sent when it is needed.
DAMAGES = {
    "a truncated file": lambda code: os.truncate(code / "agent/main.py", 1000),
    "a file that is imported late": lambda code: os.truncate(code / "agent/revert.py", 0),
    "a file less": lambda code: (code / "resources/file.py").unlink(),
    "a file more": lambda code: (code / "agent/json.py").write_text("raise ValueError"),
    "nothing": shutil.rmtree,
    "a folder that is a file": lambda code: [shutil.rmtree(code / "agent"), put(code / "agent")],
}
DAMAGES_OF_A_PART = {
    "an empty file of a part": lambda code: os.truncate(code / "node/store/usage.py", 0),
    "half of a part": lambda code: shutil.rmtree(code / "node/store"),
}


@pytest.mark.parametrize("damage", DAMAGES | DAMAGES_OF_A_PART)
def test_code_that_was_damaged_is_sent_again(fresh, begin, damage):
    """All of it, or the part of it that was damaged."""
    sent = []
    for number in range(3):
        session = begin()
        assert session.request("history", of=None)["runs"] == []
        assert session.request("store", **HUB)["models"] == []
        session.close()
        sent.append((was_sent(session), was_sent(session, "store")))
        if number == 0:
            (DAMAGES | DAMAGES_OF_A_PART)[damage](fresh / wire.digest() / "spark_cluster")
    assert sent == [(1, 1), (damage in DAMAGES, 1), (0, 0)]
    assert [path.name for path in fresh.iterdir()] == [wire.digest()]


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


def test_a_part_of_the_code_is_sent_when_it_is_first_needed(fresh, begin):
    sent = []
    for _ in "ab":
        session = begin()
        session.run(["true"])
        assert not was_sent(session, "store")
        pending = [session.submit("store", **HUB) for _ in range(4)]
        assert [one.wait()["models"] for one in pending] == [[]] * 4
        session.close()
        assert not was_sent(session, "tuner")
        sent.append(was_sent(session, "store"))
    assert sent == [1, 0]
    assert [path.name for path in fresh.iterdir()] == [wire.digest()]
    assert not list(fresh.rglob("kernel_tuner.py"))


def test_a_resource_brings_its_part(fresh, begin):
    session = begin()
    results = apply(session, HubModel("org/model", "a" * 40, "/srv/hub"), check=True)
    assert results["HubModel:org/model"]["verdict"] == "change"
    assert was_sent(session, "store")


def test_no_room_for_a_part_of_the_code(fresh, begin):
    session = begin()
    session.run(["true"])
    place = put(fresh / wire.digest() / "spark_cluster/node/store", "where a folder should be")
    for _ in "ab":
        with pytest.raises(Failed, match=r"node/store: .*(exists|directory)"):
            session.request("store", **HUB)
    place.unlink()
    assert session.request("store", **HUB)["models"] == []
    assert was_sent(session, "store") == 1, "what has come is not asked for again"


def test_no_room_for_the_code(fresh, begin):
    put(fresh.parents[1], "a file where a folder should be")
    with pytest.raises(Failed, match=r"the agent cannot be stored there: .*\.cache.*directory"):
        begin().run(["true"])


# -- operations ----------------------------------------------------------------------------------


def test_gather(agent, root):
    session = agent()
    (root / "etc").mkdir()
    (root / "etc/motd").write_bytes(b"caf\xc3\xa9 \xff")
    (root / "etc/other").write_text("x")
    answer = session.request(
        "gather",
        commands={
            "echo": ["echo", "hello"],
            "false": ["sh", "-c", "echo no >&2; exit 3"],
            "none": ["no-such-command"],
        },
        files={"motd": "/etc/motd", "none": "/etc/none", "folder": "/etc"},
        trees={"etc": "/etc/*"},
        requests={"service": {"url": "http://127.0.0.1:9/x", "timeout": 2}},
        timeout=HANG_S,
    )
    assert "refused" in answer["requests"]["service"]["reason"]
    assert answer["commands"] == {
        "echo": {"status": 0, "stdout": "hello\n", "stderr": ""},
        "false": {"status": 3, "stdout": "", "stderr": "no\n"},
        "none": None,
    }
    assert answer["files"] == {"motd": "café �", "none": None, "folder": None}
    assert answer["trees"] == {"etc": {"/etc/motd": "café �", "/etc/other": "x"}}


def test_run(agent):
    session = agent()
    done = session.run(["sh", "-c", "cat; echo oops >&2; exit 4"], stdin="in")
    assert (done.status, done.stdout, done.stderr) == (4, "in", "oops\n")
    with pytest.raises(Failed, match="no-such-command: no such command") as caught:
        session.run(["no-such-command"])
    assert caught.value.where == "spark1"
    with pytest.raises(Failed, match=r"sleep: not done after 0\.1 s"):
        session.run(["sleep", str(FAR_S)], timeout=0.1)
    with pytest.raises(Failed, match="no user 'nobody-there'"):
        session.run(["true"], user="nobody-there")


def test_what_is_printed_cannot_be_taken_for_the_protocol(agent):
    frame = frames.pack({"event": "done", "req": 1, "status": 0}).decode()
    done = agent().run(["printf", "%s", frame.replace("\0", "")])
    assert done.stdout.endswith('"status":0}')


def test_http(agent, monkeypatch):
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:1")

    def answer(request):
        if request.path == "/away":
            return 302, {"Location": "/"}, b"moved"
        if request.path == "/none":
            return 404, {}, b"not here"
        return 200, {}, f"{request.command} {request.headers['X']} {request.received}".encode()

    session = agent()
    with answering(answer) as port:
        url = f"http://127.0.0.1:{port}"
        said = session.http(f"{url}/", method="POST", headers={"X": "y"}, body="in")
        assert (said.status, said.body) == (200, "POST y in")
        assert session.http(f"{url}/none").body == "not here"
        assert session.http(f"{url}/away").status == 302
    refused = session.http(f"{url}/")
    assert refused.status == 0
    assert "refused" in refused.reason


@each_case(__file__, "bad_urls.json")
def test_http_that_cannot_be_asked(agent, case):
    assert agent().http(**case).status == 0


def test_a_stream_has_both_outputs_and_the_status_and_keeps_characters_whole(agent, root):
    """Also one that comes in two parts."""
    texts = []
    heard = root / "heard"
    wait = f"while ! test -e {heard}; do sleep 0.02; done"
    script = rf"printf 'caf\303'; {wait}; printf '\251\n'; echo two >&2; exit 7"

    def tell(event):
        texts.append(event["text"])
        heard.touch()

    reply = agent().request("stream", tell, argv=["sh", "-c", script])
    assert texts[0] == "caf"
    assert ("".join(texts), reply["status"]) == ("café\ntwo\n", 7)


# -- documents -----------------------------------------------------------------------------------


def test_a_failure_ends_the_document(agent, root):
    files = (File("/a", content="1"), File("/none/b", content="2"), File("/c", content="3"))
    results = apply(agent(), *files)
    assert verdicts(results) == ["change", "failed"]
    assert results[None]["ok"] is False
    assert "the folder /none does not exist" in results["File:/none/b"]["error"]
    assert not (root / "c").exists()


@each_case(__file__, "bad_documents.json")
def test_nothing_of_a_document_that_does_not_fit_is_applied(agent, root, case):
    session = agent()
    good = {"type": "File", "path": "/a", "content": "1"}
    with pytest.raises(Failed, match="the document does not fit this agent"):
        session.request("apply", resources=[good, case], run="r")
    assert not (root / "a").exists(), "something was applied"


@each_case(__file__, "bad_requests.json")
def test_a_request_that_makes_no_sense_is_refused_and_the_next_is_answered(agent, case):
    session = agent()
    with pytest.raises(Failed):
        session.request(**case)
    assert session.run(["true"]).status == 0


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


def test_content_that_was_damaged_on_its_way(agent, root):
    session = agent()
    pending, blobs = submit(session, File("/big", content="x" * 50_000))
    (digest,) = blobs
    events = []
    assert pending.wait(events.append, {digest: b"y" * 50_000})["ok"] is False
    assert "content was damaged on its way" in events[-1]["error"]
    assert list(root.glob("*big*")) == []


def test_check_mode_changes_nothing_and_asks_for_no_content(agent, root):
    pending, _ = submit(agent(), File("/big", content="x" * 50_000), check=True)
    events = []
    assert pending.wait(events.append, {})["ok"]
    assert [e["verdict"] for e in events] == ["change"]
    assert list(root.iterdir()) == []


def test_check_mode_over_several_documents_of_a_run(agent, root):
    session = agent()
    first = apply(session, Directory("/srv"), File("/srv/a", content="1\n"), check=True)
    assert verdicts(first) == ["change", "change"]
    second = apply(session, Line("/srv/a", line="2"), File("/srv/b", content=""), check=True)
    assert verdicts(second) == ["change", "change"]
    assert apply(session, Line("/srv/a", line="2"), check=True)["Line:/srv/a#2"]["verdict"] == "ok"
    # Another run knows nothing of it.
    third = apply(session, Line("/srv/a", line="2"), check=True, run="r2")
    assert verdicts(third) == ["failed"]
    assert list(root.iterdir()) == []


def test_unknown_after_names_the_maker(agent, root):
    (root / "opt").mkdir(parents=True)
    results = apply(
        agent(),
        Command("install it", ("true",), makes=("path:/opt/tool",)),
        Line("/opt/tool", line="x"),
        check=True,
    )
    assert results["Line:/opt/tool#x"]["verdict"] == "unknown"
    assert results["Line:/opt/tool#x"]["reason"] == "after: Command:install it"
    # Without an earlier maker it is a failure, also in check mode.
    alone = apply(agent("other"), Line("/opt/tool", line="x"), check=True)
    assert verdicts(alone) == ["failed"]


def test_owed_restart_survives_an_agent_that_dies_before_it(agent, root):
    config = File("/config", content="2")
    die = Command("restart it", ("sh", "-c", "kill -9 $PPID"), when_changed=(config,))
    with pytest.raises(Unreachable, match="the connection was lost") as caught:
        apply(agent(), config, die)
    assert "run the same command again" in caught.value.hint
    assert (root / "config").read_text() == "2"
    again = Command("restart it", ("touch", str(root / "restarted")), when_changed=(config,))
    checked = apply(agent(), config, again, check=True)
    assert [(i, e["verdict"]) for i, e in checked.items() if i] == [
        ("File:/config", "ok"),
        ("Command:restart it", "change"),
    ]
    assert verdicts(apply(agent(), config, again)) == ["ok", "change"]
    assert (root / "restarted").exists()
    assert verdicts(apply(agent(), config, again)) == ["ok", "ok"]


def test_two_documents_at_once_on_one_session(agent, root):
    session = agent()
    wait = f"while ! test -e {root}/quick; do sleep 0.02; done"
    slow = Command("slow", ("sh", "-c", f"{wait}; cat {root}/quick"), reads=True)
    first, _ = submit(session, slow)
    second, blobs = submit(session, File("/quick", content="q" * 30_000))
    events = []
    assert second.wait(events.append, blobs)["ok"]
    assert {e["id"] for e in events} == {"File:/quick"}
    late = []
    assert first.wait(late.append)["ok"]
    assert [e["id"] for e in late] == ["Command:slow"]
    assert late[0]["output"] == "q" * 30_000


def test_two_documents_at_once_replace_the_same_content(agent, root):
    """Replaced content is kept under its digest: one place for both."""
    session = agent()
    files = [f"/{i}" for i in range(40)]
    for name in files:
        (root / name[1:]).write_text("the same")
    half = len(files) // 2
    pending = [
        submit(session, *(File(n, content="new") for n in part))[0]
        for part in (files[:half], files[half:])
    ]
    events = []
    assert [p.wait(events.append)["ok"] for p in pending] == [True, True], events
    kept = list((root / "var/lib/spark-cluster/journal/r1/before").iterdir())
    assert [p.name for p in kept] == [hashlib.sha256(b"the same").hexdigest()]


# -- secrets -------------------------------------------------------------------------------------


def test_secrets_are_masked_in_all_that_comes_back(agent, root):
    secret = Secret("hunter2-is-long")
    session = agent()
    results = apply(
        session,
        File("/key", content=secret),
        File("/config", content=f"key = {secret}\n"),
        Command("print", ("cat", str(root / "config")), reads=True),
        Line("/config", line="other = 1"),
        File("/gone", content="old"),
        Command("break", ("sh", "-c", "echo $KEY >&2; exit 1"), env={"KEY": secret}),
        diff=True,
    )
    said = json.dumps(list(results.values()))
    assert "hunter2" not in said
    assert "key = ***" in results["File:/config"]["diff"]
    assert results["Command:print"]["output"] == "key = ***\n"
    assert "***" in results["Command:break"]["error"]
    assert (root / "config").read_text() == "key = hunter2-is-long\nother = 1\n"
    journal = (root / "var/lib/spark-cluster/journal/r1/changes.jsonl").read_text()
    assert "hunter2" not in journal
    # Later requests of the same conversation as well, and what a command says while it runs.
    texts = []
    session.request("stream", lambda e: texts.append(e["text"]), argv=["echo", str(secret)])
    assert "".join(texts) == "***\n"
    assert session.run(["cat", str(root / "key")]).stdout == "***"


def test_a_secret_that_is_a_word_of_the_protocol_breaks_nothing(agent):
    """A short or unlucky secret may hide texts, never what belongs to what."""
    words = ("file", "File:/a", "done", "a", "e", "0", "id", "result", "ok")
    secrets = [File(f"/secret-{n}", content=Secret(word)) for n, word in enumerate(words)]
    content = "x" * 20_000
    results = apply(agent(), *secrets, File("/a", content=content), diff=True)
    assert {"File:/a", *(one.id for one in secrets)} < set(results)
    assert results[None]["ok"] is True


# -- the end of a conversation ---------------------------------------------------------------------


def test_a_second_agent_is_refused_with_who_holds_the_lock(agent, root):
    owner = {"run": "r1", "command": "up --tp 2", "user": "me@laptop", "since": 12.5}
    first, second = agent(), agent()
    assert "locked_by" not in first.request("lock", owner=owner)
    assert "locked_by" not in first.request("lock", owner=owner), "its own lock is no obstacle"
    held = second.request("lock", owner={"run": "r2"})["locked_by"]
    assert held["run"] == "r1"
    assert {k: held[k] for k in owner} == owner
    first.close()
    assert "locked_by" not in second.request("lock", owner={"run": "r2"})


def test_a_lock_file_of_nonsense(agent, root):
    (root / "run/spark-cluster/locks").mkdir(parents=True)
    (root / "run/spark-cluster/locks/run").write_text("[not json")
    assert "locked_by" not in agent().request("lock", owner={"run": "r1"})


# -- agents that are none --------------------------------------------------------------------------


ALIVE = frames.pack({"event": "alive"})


def script(text, **options):
    """A session with something that is no agent."""
    return Session("spark1", PipeChannel(["python3", "-c", text]), as_root=False, **options)


SAYS_ALIVE = f"import os,sys,time; os.write(1, {ALIVE!r}); "
NO_AGENTS = {
    "an end inside a frame": (
        "import os; os.write(1, b'\\0\\0\\1\\0half')",
        "the connection was cut",
    ),
    "it dies with words": (f"{SAYS_ALIVE}sys.exit('no memory')", "no memory"),
    "silence": ("import sys; sys.stdin.read()", r"no message from the agent after 0\.5 s"),
    "silence after the first word": (f"{SAYS_ALIVE}sys.stdin.read()", "no sign of life"),
    # It hears nothing any more, so that the answer to a sign of life cannot be sent.
    "it is gone": (
        f"{SAYS_ALIVE}os.close(0)\nfor _ in range(20): os.write(1, {ALIVE!r}); time.sleep(0.05)",
        "connection was lost",
    ),
}


@pytest.mark.parametrize(("text", "said"), NO_AGENTS.values(), ids=NO_AGENTS)
def test_the_end_of_what_is_no_agent_is_told_each_request(monkeypatch, text, said):
    monkeypatch.setattr(wire, "START_WITHIN", 0.5 if said.startswith("no message") else FAR_S)
    monkeypatch.setattr(wire, "LOST_AFTER", 0.5 if said == "no sign of life" else FAR_S)
    session = script(text)
    with pytest.raises(Unreachable, match=said):
        session.run(["true"])
    with pytest.raises(Unreachable):
        session.run(["true"])
    session.close()


def test_content_for_an_agent_that_is_gone():
    need = frames.pack({"event": "need", "req": 1, "sha256": "00", "from": 0, "size": 300_000})
    text = f"import os,time\nos.read(0, 1); os.close(0); os.write(1, {need!r}); time.sleep(1)"
    session = script(text)
    with pytest.raises(Unreachable):
        session.request("apply", blobs={"00": b"x" * 300_000}, resources=[])
    session.close()


def test_too_old_a_python():
    event = frames.pack({"event": "too_old", "python": "3.8.10"})
    session = script(f"import os,sys; os.write(1, {event!r}); sys.stdin.read()")
    with pytest.raises(Failed, match=r"Python 3\.8\.10 is too old") as caught:
        session.run(["true"])
    assert "3.10" in caught.value.hint
    session.close()


@each_case(__file__, "silent_agents.json")
def test_why_an_agent_never_spoke(monkeypatch, case):
    """The texts as sudo and shells print them, from an agent's own standard error."""
    monkeypatch.setattr(wire, "START_WITHIN", FAR_S)
    status = case["status"]
    end = "sys.stdin.read()" if status is None else f"sys.exit({status})"
    session = script(
        f"import sys; sys.stderr.write({case['said']!r}); sys.stderr.flush(); {end}",
        explain=partial(why_no_agent, "spark1", "nvidia"),
    )
    with pytest.raises(Failed) as caught:
        session.run(["true"])
    assert case["message"] in caught.value.message
    assert case["hint"] in caught.value.hint
    assert caught.value.where == "spark1"
    session.close()

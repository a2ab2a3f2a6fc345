"""A real agent over a pipe: operations, code and contents on demand, faults, masking, locking."""

import hashlib
import json

import pytest
from cases import each_case
from factories import put
from small_server import answering
from waiting import FAR_S, HANG_S

from spark_cluster.errors import Failed, Unreachable
from spark_cluster.node.values import Secret
from spark_cluster.resources import Command, Directory, File, Line
from spark_cluster.runner.delivery import document


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


# -- operations ----------------------------------------------------------------------------------


def test_what_cannot_be_read_or_asked_is_told_apart(agent, root):
    put(root / "etc/motd", b"caf\xc3\xa9 \xff")
    answer = agent().request(
        "gather",
        commands={"false": ["sh", "-c", "echo no >&2; exit 3"], "none": ["no-such-command"]},
        files={"motd": "/etc/motd", "none": "/etc/none", "folder": "/etc"},
        requests={"service": {"url": "http://127.0.0.1:9/x", "timeout": 2}},
        timeout=HANG_S,
    )
    assert "refused" in answer["requests"]["service"]["reason"]
    failed = {"status": 3, "stdout": "", "stderr": "no\n"}
    assert answer["commands"] == {"false": failed, "none": None}
    assert answer["files"] == {"motd": "café �", "none": None, "folder": None}


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

"""`keys` with a real HAProxy and real agents: added and revoked while it runs."""

import contextlib
import hashlib
import json
import re
import socket
import sys
import tempfile
from collections.abc import Iterator
from itertools import count
from pathlib import Path
from types import FrameType
from typing import Any

import pytest
from factories import make_node, put
from proxied import HAPROXY, LOG, Engine, converse, proxied
from waiting import until

from spark_cluster.config.secret import looks_secret
from spark_cluster.engine import proxy
from spark_cluster.errors import Unreachable, UsageError

KEY = "sk-test-5be1cf0277a04d"
INVENTORY = """\
nodes: {spark1: {address: 10.0.0.1, roles: [head]}}
serve: {api_key: {env: MY_KEY}}
"""


@pytest.fixture
def head(project: Path, agent, monkeypatch) -> Path:
    """The folder of the endpoint's files on the head, whose agents can be asked."""

    put(project / "inventory.yaml", INVENTORY)
    folder = project / "spark1" / proxy.FOLDER.lstrip("/")
    folder.mkdir(parents=True)
    return folder


@pytest.fixture
def guarded(head: Path, monkeypatch):
    """The port of a proxy on the head that asks for a key."""
    if HAPROXY is None:
        pytest.skip("no HAProxy here; the lab has one")
    engine = Engine()
    with tempfile.TemporaryDirectory(dir="/tmp") as runtime:
        monkeypatch.setattr(proxy, "ADMIN_SOCKET", f"{runtime}/admin.sock")
        node, where = make_node("spark1"), Path(runtime)
        with proxied(head, node, engine.port, runtime=where, api_key=KEY) as port:
            yield port
    engine.close()


def status(port: int, key: str) -> int:
    end = f"Host: x\r\nConnection: close\r\nAuthorization: Bearer {key}\r\n\r\n"
    return int(converse(port, f"GET /v1/models HTTP/1.1\r\n{end}").split(" ", 2)[1])


def added(run, name: str) -> str:
    code, out, err = run("keys", "add", name, "--json")
    assert code == 0, err
    return json.loads(out)["key"]


def test_a_key_opens_the_endpoint_until_it_is_revoked(run, head, guarded):
    alice, bob = added(run, "alice"), added(run, "bob")
    assert [status(guarded, key) for key in (alice, bob, KEY, "x")] == [200, 200, 200, 401]
    assert status(guarded, alice.upper()) == 401
    listed = json.loads(run("keys", "list", "--json")[1])["keys"]
    assert [(key["name"], key["in_force"]) for key in listed] == [("alice", True), ("bob", True)]
    code, _, err = run("keys", "add", "alice")
    assert (code, "there is a key 'alice' already" in err, "keys revoke alice" in err) == (2, 1, 1)
    code, out, _ = run("keys", "revoke", "alice")
    assert (code, "alice is revoked" in out) == (0, True)
    assert [status(guarded, key) for key in (alice, bob, KEY)] == [401, 200, 200]
    assert names(run) == ["bob"]
    code, _, err = run("keys", "revoke", "alice")
    assert (code, "there is no key 'alice'" in err) == (2, True)


def test_only_root_reads_the_file_and_no_key_is_in_it(run, head, guarded):
    key = added(run, "alice")
    file = head / Path(proxy.NAMED_KEYS).name
    assert key not in file.read_text()
    assert re.search(r"(?m)^[0-9A-F]{64} alice/\d{4}-\d\d-\d\d$", file.read_text())
    records = (head.parents[3] / "state").rglob("*.jsonl")
    assert key not in "".join(path.read_text() for path in records)
    assert looks_secret(f"a log with {key}")


def logged(head: Path) -> str:
    return (head / LOG).read_text()


def test_the_proxy_logs_the_name_of_the_key(run, head, guarded):
    key = added(run, "alice")
    log = ""
    for lines, (given, expected) in enumerate(((key, 200), (KEY, 200), ("x", 401)), 1):
        assert status(guarded, given) == expected
        # HAProxy's threads log by themselves: the next request's line could come first.
        log = until(lambda n=lines: text if (text := logged(head)).count("\n") >= n else "")
    names = re.findall(r"127\.0\.0\.1 key=(\S+) GET /v1/models status=(\d+)", log)
    assert names == [("alice", "200"), ("inventory", "200"), ("-", "401")]
    assert key not in log


def test_a_proxy_that_does_not_run_is_told_of(run, head, monkeypatch):
    monkeypatch.setattr(proxy, "ADMIN_SOCKET", "/tmp/no-proxy/admin.sock")
    description = {"url": "http://10.0.0.1:8000/v1", "api_key": True, "tls": None}
    put(head / Path(proxy.DESCRIPTION).name, json.dumps(description))
    code, _, err = run("keys", "add", "alice")
    assert code == 1
    assert "was not told" in err
    assert "spark-cluster up" in err
    file = head / Path(proxy.NAMED_KEYS).name
    assert file.stat().st_mode & 0o777 == 0o600
    code, out, _ = run("keys", "list")
    assert (code, "alice" in out, "no" in out.split()) == (0, True, True)


# -- runs that are cut -------------------------------------------------------------------------


CHANGING = ("add", "revoke", "_have_accepted", "_have_refused", "_tell")
"""The functions of `named_keys` that change something; the others only look."""


@contextlib.contextmanager
def cut_at(line: int) -> Iterator[None]:
    """Lose the connection before the given executed line of those functions, counted from 1."""
    seen: set[tuple[FrameType, int]] = set()

    def follow(frame: FrameType, event: str, _: Any) -> Any:
        code = frame.f_code
        if code.co_filename != proxy.__file__ or code.co_name not in CHANGING:
            return None
        if event != "line" or (frame, frame.f_lineno) in seen:
            return follow
        seen.add((frame, frame.f_lineno))
        if len(seen) == line:
            raise Unreachable("the connection was lost", where="spark1")
        return follow

    before = sys.gettrace()
    sys.settrace(follow)
    try:
        yield
    finally:
        sys.settrace(before)


def names(run) -> list[str]:
    code, out, err = run("keys", "list", "--json")
    assert code == 0, err
    return [key["name"] for key in json.loads(out)["keys"]]


def test_a_revocation_cut_at_any_line_leaves_the_key_listed_or_refused(run, head, guarded):
    for line in count(1):
        key = added(run, "bob")
        with cut_at(line):
            code, _, err = run("keys", "revoke", "bob")
        if code == 0:
            break
        assert "the connection was lost" in err, f"line {line}"
        listed = names(run)
        if listed:
            assert run("keys", "revoke", "bob")[0] == 0, f"cut at line {line}"
        assert status(guarded, key) == 401, f"cut at line {line}, then listed {listed}"
    assert line > 5, "it was never cut"
    assert (status(guarded, key), names(run)) == (401, [])


def test_an_addition_cut_at_any_line_leaves_no_unlisted_key_in_force(
    run, head, guarded, monkeypatch
):
    for line in count(1):
        key = f"{proxy.PREFIX}{line}"
        monkeypatch.setattr(proxy, "new_key", lambda key=key: key)
        with cut_at(line):
            code, _, err = run("keys", "add", "bob")
        if code == 0:
            break
        assert "the connection was lost" in err, f"line {line}"
        listed = names(run)
        assert status(guarded, key) == 401 or listed == ["bob"], f"cut at line {line}"
        if listed:
            assert run("keys", "revoke", "bob")[0] == 0, f"cut at line {line}"
        assert status(guarded, key) == 401, f"cut at line {line}, then revoked"
    assert line > 5, "it was never cut"
    assert (status(guarded, key), names(run)) == (200, ["bob"])


def test_a_key_of_the_running_proxy_that_no_file_has_is_listed_and_revoked(run, head, guarded):
    key = added(run, "bob")
    file = head / Path(proxy.NAMED_KEYS).name
    file.write_text(f"{proxy.NAMED_HEADER}\n")
    (listed,) = json.loads(run("keys", "list", "--json")[1])["keys"]
    assert (listed["name"], listed["in_force"], listed["kept"]) == ("bob", True, False)
    assert "until the proxy restarts" in run("keys", "list")[1]
    code, _, err = run("keys", "add", "bob")
    assert (code, "there is a key 'bob' already" in err) == (2, True)
    assert run("keys", "revoke", "bob")[0] == 0
    assert (status(guarded, key), names(run)) == (401, [])


def test_a_key_that_was_put_into_the_file_by_hand_is_listed_and_revoked(run, head, guarded):
    """HAProxy takes lines of other forms than ours."""
    digest = hashlib.sha256(b"by-hand").hexdigest().upper()
    file = head / Path(proxy.NAMED_KEYS).name
    added(run, "bob")
    with file.open("a") as opened:
        opened.write(f"{digest}   some one\n")
    assert sorted(names(run)) == ["bob", "some one"]
    assert run("keys", "revoke", "some one")[0] == 0
    assert names(run) == ["bob"]
    assert digest not in file.read_text()


def test_a_key_is_revoked_while_no_proxy_runs(run, head, guarded, monkeypatch):
    added(run, "bob")
    monkeypatch.setattr(proxy, "ADMIN_SOCKET", "/tmp/no-proxy/admin.sock")
    assert run("keys", "revoke", "bob")[0] == 0
    assert " bob/" not in (head / Path(proxy.NAMED_KEYS).name).read_text()


def test_a_proxy_that_does_not_answer_leaves_the_key_listed(run, head, guarded, monkeypatch):
    key = added(run, "bob")
    with (
        socket.socket(socket.AF_UNIX) as mute,
        tempfile.TemporaryDirectory(dir="/tmp") as folder,
        monkeypatch.context() as meanwhile,
    ):
        meanwhile.setattr(proxy, "ADMIN_SOCKET", f"{folder}/mute.sock")
        meanwhile.setattr(proxy, "ANSWERS_S", 0.5)
        mute.bind(f"{folder}/mute.sock")
        mute.listen(8)
        code, _, err = run("keys", "revoke", "bob")
        assert (code, "does not answer" in err) == (1, True)
    assert (status(guarded, key), names(run)) == (200, ["bob"])


@pytest.mark.parametrize("name", ["", "a b", "a/b", "-a", "inventory", "x" * 65, "a;b", "a\nb"])
def test_a_name_that_the_proxy_would_read_otherwise_is_refused(name):
    with pytest.raises(UsageError, match="is not a name for a key"):
        proxy.check_name(name)

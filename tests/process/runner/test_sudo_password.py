"""sudo gets one try at the password, and nothing else that it could take for one."""

from __future__ import annotations

import stat
import sys
from functools import partial

import pytest
from pipe_channel import PipeChannel

from spark_cluster.errors import Failed
from spark_cluster.runner import wire
from spark_cluster.runner.node_connection import PROMPT, why_no_agent
from spark_cluster.runner.session import Session

SUDO = """
import os, sys
log = open({log!r}, "a")
prompt, argv = sys.argv[3], sys.argv[5:]
for attempt in range({tries}):
    os.write(2, prompt.encode())
    line = b""
    while not line.endswith(b"\\n"):
        byte = os.read(0, 1)
        if not byte:
            break
        line += byte
    if not line:
        os.write(2, b"sudo: no password was provided")
        break
    print(line.decode().rstrip(), file=log, flush=True)
    if line == b"right\\n":
        os.execv(sys.executable, [sys.executable, *argv[1:]])
    os.write(2, b"Sorry, try again.\\n")
if {tries}:
    sys.exit("sudo: 3 incorrect password attempts")
os.execv(sys.executable, [sys.executable, *argv[1:]])
"""


@pytest.fixture
def become(tmp_path, agents_home, monkeypatch):
    """`become("password", tries=3)`: a session through something that asks as sudo does, and the
    lines that it took for passwords."""
    monkeypatch.setenv("HOME", str(agents_home))
    started = []

    def start(password, tries=3):
        sudo, log = tmp_path / "sudo", tmp_path / "log"
        log.touch()
        sudo.write_text(f"#!{sys.executable} -IS\n" + SUDO.format(log=str(log), tries=tries))
        sudo.chmod(sudo.stat().st_mode | stat.S_IXUSR)
        argv = wire.argv("test", says_ready=True)
        channel = PipeChannel([str(sudo), "-S", "-p", PROMPT, "--", *argv])
        explain = partial(why_no_agent, "spark1", "me")
        session = Session(
            "spark1",
            channel,
            as_root=False,
            root=str(tmp_path),
            password=password,
            explain=explain,
        )
        started.append(session)
        return session, log

    yield start
    for session in started:
        session.close()


def test_a_right_password(become):
    session, log = become("right")
    assert session.run(["echo", "hello"]).stdout == "hello\n"
    assert log.read_text() == "right\n"


def test_requests_that_were_sent_before_sudo_had_the_password(become):
    session, _ = become("right")
    pending = [session.submit("run", argv=["echo", str(i)]) for i in range(3)]
    assert [p.wait()["stdout"] for p in pending] == ["0\n", "1\n", "2\n"]


def test_a_wrong_password_is_tried_once(become):
    session, log = become("wrong")
    with pytest.raises(Failed, match="sudo does not accept the password of me"):
        session.run(["true"])
    session.close()  # it has ended by now
    assert log.read_text() == "wrong\n"


def test_sudo_that_wants_no_password_leaves_it_to_the_agent(become):
    session, log = become("right", tries=0)
    assert session.run(["echo", "hello"]).stdout == "hello\n"
    assert log.read_text() == ""

"""Commands on a node: each has a limit that holds, is ended whole, and its output is bounded."""

import contextlib
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from cases import each_case
from factories import put
from hostile import user
from hung_processes import ended, frozen_disk, lives, pid_in, state
from waiting import FAR_S, HANG_S, until, with_a_limit

from spark_cluster.agent import main, operations
from spark_cluster.agent.operations import AgentNode, Laptop, carry_out
from spark_cluster.node import output, processes
from spark_cluster.node.host import Host
from spark_cluster.resources import ResourceError

SHIPPED_GRACES = processes.TERM_GRACE + processes.KILL_GRACE

FAR = FAR_S / 2
"""Seconds within which nothing returns that waits for what it must not wait for."""


@pytest.fixture(autouse=True)
def graces(monkeypatch):
    """A process that takes a signal is waited for: a busy machine may be late with its end."""
    monkeypatch.setattr(processes, "TERM_GRACE", 0.3)
    monkeypatch.setattr(processes, "KILL_GRACE", 30.0)


@pytest.fixture
def given_up(monkeypatch):
    """For what SIGKILL does not take."""
    monkeypatch.setattr(processes, "KILL_GRACE", 0.3)


@pytest.fixture
def host(tmp_path):
    return Host(root=tmp_path)


def test_a_child_that_holds_the_outputs_is_not_waited_for(host, tmp_path):
    """`communicate` reads to the end of the pipes, which what a command left behind holds open."""
    began = time.monotonic()
    script = f"setsid sleep {FAR_S} & echo $! > {tmp_path}/pid; echo hi"
    assert host.run(("sh", "-c", script), timeout=FAR).stdout == "hi\n"
    assert time.monotonic() - began < FAR
    pid = pid_in(tmp_path / "pid")
    assert lives(pid), "what a command leaves behind on purpose stays: it may be a daemon"
    os.kill(pid, signal.SIGTERM)


@pytest.mark.parametrize(
    ("name", "mode", "word", "said"),
    [
        ("garbage", 0o755, "", "exec format error"),
        ("garbage", 0o644, "", "permission denied"),
        ("garbage/command", 0o755, "", "not a directory"),
        ("none", 0o755, "", "no such command or folder"),
        ("garbage", 0o755, "x" * 4_000_000, "argument list too long"),
    ],
    ids=lambda value: str(value)[:20],
)
def test_a_command_that_cannot_be_started(host, tmp_path, name, mode, word, said):
    put(tmp_path / "garbage", b"\x7fELF garbage", mode)
    command = f"{tmp_path}/{name}"
    with pytest.raises(ResourceError, match=f"{re.escape(command)}: {said}"):
        host.run((command, word))


def test_a_node_that_can_start_no_process(host, monkeypatch):
    def full(*_args, **_options):
        raise BlockingIOError(11, "Resource temporarily unavailable")  # fork names no file

    monkeypatch.setattr(processes.subprocess, "Popen", full)
    with pytest.raises(ResourceError, match="true: resource temporarily unavailable"):
        host.run(("true",))


@each_case(__file__, "endless.json")
def test_a_limit_ends_all_that_was_started(host, tmp_path, case):
    pid = tmp_path / "pid"
    text = case.format(pid=pid, far=FAR_S)
    began = time.monotonic()

    def attempt(limit_s):
        with pytest.raises(ResourceError, match=f"sh: not done after {limit_s:g} s"):
            host.run(("sh", "-c", text), timeout=limit_s)
        return pid.exists() and pid.read_text()

    with_a_limit(attempt)
    assert time.monotonic() - began < FAR
    ended(pid_in(pid))


def test_large_input_to_one_that_does_not_read(host):
    with pytest.raises(ResourceError, match="not done after 1 s"):
        host.run(("sleep", str(FAR_S)), stdin=b"x" * 1_000_000, timeout=1)
    assert host.run(("true",), stdin=b"x" * 1_000_000).status == 0
    assert len(host.run(("cat",), stdin=b"x" * 1_000_000).stdout) == 1_000_000


# -- what SIGKILL does not take ------------------------------------------------------------------


def test_uninterruptible_sleep_is_given_up(host, given_up):
    found = []

    def attempt(limit_s):
        with frozen_disk() as disk:
            with pytest.raises(ResourceError, match=f"sh: not done after {limit_s:g} s") as caught:
                host.run(disk.command, timeout=limit_s)
            found.append(caught.value)
            return disk.holds()

    with_a_limit(attempt)
    assert "does not end, not even by SIGKILL (process " in found[-1].message
    assert "is in uninterruptible sleep: the kernel or a driver holds it" in found[-1].message
    assert "journalctl -k" in found[-1].hint


def test_what_does_not_take_a_signal_is_given_up(host, given_up, monkeypatch, tmp_path):
    """The same where no disk can be frozen."""
    script = f"echo $$ > {tmp_path}/pid; exec sleep {FAR_S}"
    with monkeypatch.context() as patch:
        patch.setattr(processes.os, "kill", lambda *_: None)
        with pytest.raises(ResourceError, match="sleep does not end, not even by SIGKILL"):
            host.run(("sh", "-c", script), timeout=0.5)
    os.kill(pid_in(tmp_path / "pid"), signal.SIGKILL)


def gathered(tmp_path, **request):
    laptop = Laptop(lambda _: None, lambda _: [], lambda _: "", None)
    return carry_out(AgentNode(tmp_path), {"op": "gather", **request}, laptop)


def test_the_remainder_of_the_facts_comes_when_one_program_hangs(tmp_path, given_up):
    answer = {}

    def attempt(limit_s):
        with frozen_disk() as disk:
            commands = {"gpu": list(disk.command), "date": ["echo", "today"]}
            files = {"hosts": "/etc/hosts"}
            answer.update(gathered(tmp_path, commands=commands, files=files, timeout=limit_s))
            return answer["commands"]["date"] and disk.holds()

    with_a_limit(attempt)
    assert answer["commands"]["gpu"] is None
    assert answer["commands"]["date"]["stdout"] == "today\n"
    assert "not even by SIGKILL" in answer["late"]["gpu"]
    assert set(answer["late"]) == {"gpu"}


def test_a_program_that_hangs_is_told_from_one_that_is_missing(tmp_path):
    commands = {"gpu": ["sleep", str(FAR_S)], "kernel_log": ["nothing-such"]}
    answer = gathered(tmp_path, commands=commands, timeout=0.3)
    assert answer["commands"] == {"gpu": None, "kernel_log": None}
    assert answer["late"] == {"gpu": "sleep: not done after 0.3 s"}


@pytest.mark.skipif(sys.platform != "linux", reason="/proc/sys is Linux's")
def test_the_kernels_settings_are_read():
    """The kernel reads less than 4 MiB of one at once; a lab's node has files in their place."""
    files = {"kernel": "/proc/sys/kernel/osrelease", "swappiness": "/proc/sys/vm/swappiness"}
    answer = gathered(Path("/"), files=files)
    assert answer["files"]["kernel"].strip() == os.uname().release
    assert answer["files"]["swappiness"].strip().isdigit()


def test_a_glob_that_takes_too_long_is_said_to(tmp_path, monkeypatch):
    monkeypatch.setattr(operations, "FILE_S", 0.05)
    for number in range(4000):
        (tmp_path / f"{number}.txt").write_text("x")
    answer = gathered(tmp_path, trees={"c": "/*.txt"})
    assert "c" in answer["late"] or len(answer["trees"]["c"]) == 4000


def test_files_after_one_that_hangs_are_read(tmp_path, monkeypatch):
    monkeypatch.setattr(operations, "FILE_S", 0.3)
    os.mkfifo(tmp_path / "hangs")  # nobody ever writes to it
    (tmp_path / "text").write_text("here")
    answer = gathered(tmp_path, files={"a": "/hangs", "b": "/text"}, trees={"c": "/te*"})
    assert answer["files"] == {"a": None, "b": "here"}
    assert answer["trees"] == {"c": {"/text": "here"}}
    assert answer["late"] == {"a": "/hangs: reading it hangs"}
    (tmp_path / "hangs").open("w").close()  # the reader ends


# -- output --------------------------------------------------------------------------------------


def test_pieces_of_any_size_are_kept_in_bounded_memory():
    kept = output.Kept(1000)
    for number in range(100_000):
        kept.add(b"%d " % number)
    assert len(kept._head) + len(kept._tail) <= 2000
    assert kept.text().startswith("0 1 2 ")
    assert kept.text().endswith(" 99998 99999 ")
    short = output.Kept(1000)
    short.add(b"caf\xc3")
    short.add(b"\xa9")
    assert (short.text(), short.left_out) == ("café", 0)


def test_a_line_without_end_is_reported_in_parts(monkeypatch):
    monkeypatch.setattr(output, "LINE_LIMIT", 100)
    heard = []
    lines = output.Lines(heard.append)
    for _ in range(50):
        lines.add(b"x" * 30)
    lines.end()
    assert "".join(heard) == "x" * 1500
    assert max(map(len, heard)) < 200


# -- promises about constants --------------------------------------------------------------------


def test_forty_seconds_after_the_laptops_last_word_the_lock_is_free():
    """With the values as they ship; `graces` has made two of them smaller here."""
    assert SHIPPED_GRACES + processes.TICK < main.LEAVE_S
    assert main.GONE_AFTER + main.LOOK_EVERY + main.LEAVE_S < 40


def test_what_is_between_two_programs_is_looked_at_again(monkeypatch):
    """In execve it has no environment and no arguments for a moment; its parent may have ended."""
    environment = {**os.environ, processes.MARK: "this-one"}
    with subprocess.Popen(["sleep", str(FAR_S)], env=environment, start_new_session=True) as left:
        looks = []

        def read(pid, name, really=processes._read):
            if pid == left.pid:
                looks.append(name)
            return b"" if pid == left.pid and len(looks) <= 6 else really(pid, name)

        monkeypatch.setattr(processes, "_read", read)
        try:
            found = processes.process(left.pid)
            strangers = found._replace(pid=2**30, session=2**30)  # one that has ended
            assert left.pid in {p.pid for p in processes.belonging(strangers, "this-one")}
            assert len(looks) > 6
        finally:
            left.kill()


@user.needs_root
def test_another_users_process_is_not_looked_into(monkeypatch):
    """Its environment can lie in a file of a file system of its own, which never answers."""
    read, really = [], processes._read

    def seen(pid, name):
        read.append(pid)
        return really(pid, name)

    monkeypatch.setattr(processes, "_read", seen)
    with user.running("print(flush=True); time.sleep(600)") as theirs:
        found = processes.process(theirs.pid)
        strangers = found._replace(pid=2**30, session=2**30)  # one that has ended
        assert processes.belonging(strangers, "this-one") == []
        assert theirs.pid not in read


def test_a_parent_that_waits_for_its_child_of_vfork_is_looked_at_again(monkeypatch, tmp_path):
    """It is in uninterruptible sleep until the child has another program: a child that opens a
    pipe before it does so holds it there."""
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    code = (
        "import os, sys, time\n"
        "opened = (os.POSIX_SPAWN_OPEN, 0, sys.argv[1], os.O_RDONLY, 0)\n"
        "os.posix_spawn('/bin/true', ['true'], {}, file_actions=[opened])\n"
        f"time.sleep({FAR_S})\n"
    )
    command = [sys.executable, "-c", code, str(pipe)]
    environment = {**os.environ, processes.MARK: "this-one"}

    def free():
        with contextlib.suppress(OSError):  # nobody waits for it any more
            os.close(os.open(pipe, os.O_WRONLY | os.O_NONBLOCK))

    with subprocess.Popen(command, env=environment, start_new_session=True) as left:
        try:
            until(lambda: state(left.pid) == processes.BLOCKED, what="uninterruptible sleep")
            found = processes.process(left.pid)
            looks = []

            def process(pid, really=processes.process):
                looks.extend([pid] if pid == left.pid else [])
                if len(looks) >= 3:  # again, until the child is there to be freed
                    free()
                return really(pid)

            monkeypatch.setattr(processes, "process", process)
            monkeypatch.setattr(processes, "UNKNOWN_S", HANG_S / 4)  # a busy machine takes long
            strangers = found._replace(pid=2**30, session=2**30)  # one that has ended
            assert left.pid in {p.pid for p in processes.belonging(strangers, "this-one")}
        finally:
            left.kill()
            free()

"""A laptop that is gone frees the node: whatever runs there, however it went, in bounded time.

No agent here is killed by the test's own end of the pipe: each has to end by itself.
"""

import contextlib
import fcntl
import os
import signal
import subprocess
import threading
from pathlib import Path
from typing import Any

import pytest
from cases import cases
from fork_server import server
from hung_processes import ended, frozen_disk, limit_once, peak_mib, pid_in
from waiting import FAR_S, HANG_S, until

from spark_cluster.agent import frames
from spark_cluster.resources import Command, File, Resource
from spark_cluster.runner.delivery import document

REPOSITORY = Path(__file__).parents[3]

LIMITS = {
    "main.ALIVE_EVERY": 0.1,
    "main.GONE_AFTER": 2.0,
    "main.LOOK_EVERY": 0.1,
    "main.LEAVE_S": 3.0,
    "processes.TERM_GRACE": 0.3,
    "processes.KILL_GRACE": 0.3,
}


class RawAgent:
    """An agent whose laptop is the test, which gives a sign of life until it shall be silent.

    Args:
        root: where the node's file system begins.
        first: code that it runs before it starts.
        limits: constants of the agent's modules, `main.GONE_AFTER` for one.
    """

    def __init__(self, root: Path, first: str = "", **limits: float) -> None:
        self.root = root
        values = {**LIMITS, **{k.replace("__", "."): v for k, v in limits.items()}}
        text = (
            f"import sys\nsys.path.insert(0, {str(REPOSITORY)!r})\n"
            "from spark_cluster.agent import main, operations\n"
            "from spark_cluster.node import processes, units\n"
            + "".join(f"{name} = {value!r}\n" for name, value in values.items())
            + first
            + f"main.main(sys.stdin.buffer, [], {str(root)!r})\n"
        )
        self.process = server().start(text, stderr="ours")
        self._silent = threading.Event()
        self._sending = threading.Lock()
        threading.Thread(target=self._stay_alive, daemon=True).start()

    def _stay_alive(self) -> None:
        with contextlib.suppress(OSError, ValueError):  # it has ended, or its input was closed
            while not self._silent.wait(0.2):
                self.send("alive")

    def send(self, op: str, **what: Any) -> None:
        with self._sending:
            self.process.stdin.write(frames.pack({"op": op, **what}))
            self.process.stdin.flush()

    def apply(self, *resources: Resource) -> None:
        self.send("apply", req=1, resources=document(resources).resources, run="r1")

    def fall_silent(self) -> None:
        """Say nothing any more by itself."""
        self._silent.set()

    def next(self, event: str) -> dict[str, Any]:
        """The next event of this kind; signs of life are answered on the way."""
        while (found := frames.read(self.process.stdout)) is not None:
            if found["event"] == event:
                return found
            if found["event"] == "alive":
                self.send("alive")
        raise AssertionError(f"the agent ended without {event}")

    def lock(self) -> None:
        self.send("lock", req=1000, owner={"run": "r1"})
        assert "locked_by" not in self.next("done")
        assert not self.lock_is_free()

    def lock_is_free(self) -> bool:
        handle = os.open(self.root / "run/spark-cluster/locks/run", os.O_RDWR)
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return True
        except BlockingIOError:
            return False
        finally:
            os.close(handle)

    def hang_up(self) -> None:
        """End its input, as sshd does when the connection is cut."""
        self.fall_silent()
        with self._sending:
            self.process.stdin.close()

    def drain(self) -> None:
        """Read what it says to the end, and answer nothing."""
        self.process.stdout.read()

    def ends(self) -> int:
        """Its exit status, once it has ended by itself."""
        return self.process.wait(timeout=HANG_S)

    def close(self) -> None:
        """End what a failed test left."""
        self.fall_silent()
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
            with contextlib.suppress(subprocess.TimeoutExpired):
                self.process.wait(timeout=10)
            self.process.kill()
        for pipe in (self.process.stdin, self.process.stdout):
            if pipe is not None:
                with contextlib.suppress(OSError):
                    pipe.close()
        self.process.wait()


@pytest.fixture
def start(tmp_path):
    """`start(main__GONE_AFTER=1.0)`: a real agent on a scratch root."""
    started = []

    def begin(**limits):
        started.append(RawAgent(tmp_path, **limits))
        return started[-1]

    yield begin
    for agent in started:
        agent.close()


def hung_up(agent):
    """The connection was cut, and sshd closed the agent's input."""
    agent.hang_up()


def silent(agent):
    """The laptop sleeps: it reads nothing and says nothing, and the connection stays."""
    agent.fall_silent()


def half_open(agent):
    """The agent's messages are taken (by the kernel of a laptop that froze), and never answered."""
    agent.fall_silent()
    threading.Thread(target=agent.drain, daemon=True).start()


def asked_to_end(agent):
    """Somebody on the node ends it there."""
    agent.process.send_signal(signal.SIGTERM)


GOES = [hung_up, silent, half_open, asked_to_end]

SCRIPTS = cases(__file__, "endless.json")
"""Commands that do not end by themselves, and write their number into `pid`."""
OF_HANG_UP = ["plain", "ignores-term", "own-session", "closed-outputs", "says-much"]


@pytest.mark.parametrize(
    ("goes", "op", "script"),
    [
        *((hung_up, op, script) for op in ("run", "stream") for script in OF_HANG_UP),
        *((goes, op, "ignores-term") for goes in GOES[1:] for op in ("run", "stream")),
        (silent, "stream", "says-much"),
    ],
)
def test_whatever_runs_is_ended_and_the_lock_is_free(start, tmp_path, goes, op, script):
    agent = start()
    agent.lock()
    text = SCRIPTS[script].format(pid=tmp_path / "pid", far=FAR_S)
    agent.send(op, req=1, argv=["sh", "-c", text], timeout=FAR_S)
    pid = pid_in(tmp_path / "pid")
    goes(agent)
    agent.ends()
    assert agent.lock_is_free()
    ended(pid)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_while_it_is_leaving_changes_nothing(start, tmp_path, capfd, number):
    """It waits for a command that ignores SIGTERM, which is told to end as the agent leaves."""
    agent = start(main__LEAVE_S=HANG_S, processes__TERM_GRACE=2.0)
    agent.lock()
    script = (  # without `touch`: a process that begins now is told to end, too
        f"trap ': > {tmp_path}/told' TERM; echo $$ > {tmp_path}/pid; while :; do sleep 1; done"
    )
    agent.send("run", req=1, argv=["sh", "-c", script], timeout=FAR_S)
    pid = pid_in(tmp_path / "pid")
    agent.hang_up()
    until((tmp_path / "told").exists)
    agent.process.send_signal(number)
    assert agent.ends() in (0, 1), "whichever of its threads is the first to have left"
    assert agent.lock_is_free()
    ended(pid)
    assert capfd.readouterr().err == ""


@pytest.mark.parametrize(
    ("goes", "op"), [(hung_up, "run"), (silent, "stream"), (hung_up, "gather"), (silent, "gather")]
)
def test_a_program_in_uninterruptible_sleep_does_not_keep_the_lock(start, goes, op):
    with frozen_disk() as disk:
        agent = start()
        agent.lock()
        argv = list(disk.command)
        what = {"commands": {"gpu": argv}} if op == "gather" else {"argv": argv}
        agent.send(op, req=1, timeout=FAR_S, **what)
        until(disk.holds, what="the process in uninterruptible sleep")
        goes(agent)
        agent.ends()
        assert agent.lock_is_free()


def test_a_document_in_the_middle(start, tmp_path):
    agent = start()
    agent.lock()
    text = SCRIPTS["ignores-term"].format(pid=tmp_path / "pid")
    stubborn = Command("stubborn", ("sh", "-c", text), creates="/none", timeout_s=FAR_S)
    agent.apply(File("/a", content="1"), stubborn, File("/b", content="2"))
    pid = pid_in(tmp_path / "pid")
    agent.hang_up()
    agent.ends()
    assert agent.lock_is_free()
    ended(pid)
    assert (tmp_path / "a").exists()
    assert not (tmp_path / "b").exists()


def test_what_must_finish_finishes_with_the_lock_held(start, tmp_path):
    agent = start(main__LEAVE_S=0.5)
    agent.lock()
    script = (
        f"touch {tmp_path}/begun; while ! test -e {tmp_path}/way; do sleep 0.05; done; "
        f"touch {tmp_path}/made"
    )
    command = Command("apt", ("sh", "-c", script), creates="/made", must_finish=True)
    agent.apply(command, File("/b", content="2"))
    until((tmp_path / "begun").exists)
    agent.hang_up()
    with pytest.raises(Exception, match="timed out"):
        agent.process.wait(timeout=1.5)  # three times as long as anything else would take
    assert not agent.lock_is_free()
    (tmp_path / "way").touch()
    agent.ends()
    assert agent.lock_is_free()
    assert (tmp_path / "made").exists()
    assert not (tmp_path / "b").exists()
    journal = (tmp_path / "var/lib/spark-cluster/journal/r1/changes.jsonl").read_text()
    assert '"converged"' in journal


def test_what_must_finish_has_a_limit_of_its_own(start, tmp_path):
    """It comes after the laptop has gone, and the agent waits for it."""
    agent = start(first=limit_once(tmp_path / "limit"), main__LEAVE_S=HANG_S)
    agent.lock()
    text = SCRIPTS["ignores-term"].format(pid=tmp_path / "pid")
    command = Command("stuck", ("sh", "-c", text), creates="/m", must_finish=True)
    agent.apply(command)
    pid = pid_in(tmp_path / "pid")
    agent.hang_up()
    (tmp_path / "limit").touch()
    agent.ends()
    ended(pid)


# -- a reader that stops reading -----------------------------------------------------------------


def test_a_full_pipe_does_not_freeze_the_watchdog(start, tmp_path):
    """Ctrl-Z on `logs -f`: the pipe is full, and each writer waits with it."""
    agent = start(operations__STREAM_AHEAD=1 << 40)
    agent.lock()
    for number in range(3):
        agent.send("stream", req=number, argv=["yes", "x" * 4000])
    agent.fall_silent()
    agent.ends()
    assert agent.lock_is_free()


# -- memory --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "script",
    ["head -c 45000000 /dev/zero", "yes 'a line of text' | head -c 300000000"],
    ids=["45-MB-of-NUL", "300-MB-of-text"],
)
def test_an_output_of_any_length_is_bounded_in_memory_and_said_to_be_cut(start, script):
    agent = start(main__GONE_AFTER=HANG_S)
    agent.send("run", req=1, argv=["true"])
    agent.next("done")
    before = peak_mib(agent.process.pid)
    agent.send("run", req=2, argv=["sh", "-c", f"{script}; exit 3"], timeout=FAR_S)
    done = agent.next("done")
    assert done["status"] == 3
    assert done["left_out"] > 30_000_000
    assert "MB left out" in done["stdout"]
    assert len(done["stdout"]) < 9 << 20
    assert peak_mib(agent.process.pid) - before < 200

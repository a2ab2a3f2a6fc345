"""The limit of long work: kept on the monotonic clock, with or without an agent, by all of it."""

import json
import os
import signal
import threading
import time
from functools import partial

import pytest
from cases import cases
from factories import put
from hung_processes import ended, limit_once, pid_in
from test_units import gate, is_told  # noqa: F401
from waiting import FAR_S, until, with_a_limit

from spark_cluster.node import units, worker
from spark_cluster.node.values import Secret
from spark_cluster.resources import ResourceError

STEP_S = 400 * 24 * 3600.0
"""By how much the wall's clock is set forward, seconds."""


@pytest.fixture
def clock(monkeypatch):
    """`clock(seconds)`: the wall's clock is set, for this process."""
    real = time.time

    def step(seconds):
        monkeypatch.setattr(worker.time, "time", lambda: real() + seconds)

    return step


def waits(folder):
    """A script that waits until `folder/way` is there."""
    return (
        f"echo $$ > {folder}/pid; while ! test -e {folder}/way; do sleep 0.02; done; echo finished"
    )


def lose_watcher(host, argv, **options):
    """Begin work and lose who waits for it, once its command runs."""
    watcher = host()
    pid = watcher.root / "pid"
    work = partial(units.run, watcher, "key", argv, **options)
    assert is_told(watcher, work, lambda: pid.exists() and pid.read_text().strip())
    return int(pid.read_text())


@pytest.mark.parametrize("step", [STEP_S, -STEP_S])
def test_a_clock_step_ends_no_work(host, systemd, clock, step):
    watcher = host()
    done = []
    argv = ("sh", "-c", waits(systemd.root))
    thread = threading.Thread(target=lambda: done.append(units.run(watcher, "key", argv)))
    thread.start()
    pid_in(systemd.root / "pid")
    clock(step)
    thread.join(1.0)  # it looks at its limit every half second
    assert thread.is_alive()
    (systemd.root / "way").touch()
    thread.join()
    assert (done[0].status, done[0].stdout) == (0, "finished\n")


@pytest.mark.parametrize("step", [STEP_S, -STEP_S])
def test_a_clock_step_takes_no_result_away(host, systemd, clock, step):
    """For what must not be done twice, such as flashing a firmware."""
    argv = ("sh", "-c", waits(systemd.root))
    lose_watcher(host, argv)
    (systemd.root / "way").touch()
    (folder,) = systemd.folders
    until(lambda: not units._running(folder))
    clock(step)
    later = host()
    assert units.run(later, "key", argv, reuse_result=True).stdout == "finished\n"
    assert "this is its result" in later.notes[0]
    assert [unit["starts"] for unit in systemd.units()] == [1]


def test_ages_of_an_earlier_boot(clock):
    """The monotonic clock began anew, so the wall's has to do; the future is now."""
    said = {**worker.now(), "boot": "an earlier one", "monotonic": 1e9}
    assert worker.age(said) < 60
    clock(3600)
    assert 3599 < worker.age(said) < 3660
    clock(-3600)
    assert worker.age(said) == 0
    assert worker.age({}) > 1e9, "of what tells no moment nothing is known: it is old"


def test_work_that_was_cut_by_a_reboot_is_begun_again_whatever_its_limit_was(host, systemd):
    argv = ("sh", "-c", waits(systemd.root))
    pid = lose_watcher(host, argv, timeout=1000)
    (unit,) = systemd.units()
    for one in (unit["pid"], pid):
        os.kill(int(one), signal.SIGKILL)
    (folder,) = systemd.folders
    until(lambda: not units._running(folder))
    begun = json.loads((folder / "begun").read_text())
    begun |= {"boot": "an earlier one", "monotonic": 1e9}
    (folder / "begun").write_text(json.dumps(begun))
    (systemd.root / "way").touch()
    assert units.run(host(), "key", argv, timeout=1000).stdout == "finished\n"


@pytest.mark.parametrize("script", ["ignores-term", "own-session"])
def test_the_limit_holds_when_no_one_watches(host, systemd, script, alter_worker):
    graces = (
        "from spark_cluster.node import processes\n"
        "processes.TERM_GRACE = processes.KILL_GRACE = 0.3\n" + limit_once(systemd.root / "limit")
    )
    alter_worker(graces)
    text = cases(__file__, "endless.json")[script]
    argv = ("sh", "-c", text.format(pid=systemd.root / "pid"))
    pid = lose_watcher(host, argv, timeout=4)
    (systemd.root / "limit").touch()
    ended(pid)
    (folder,) = systemd.folders
    until(lambda: not units._running(folder))
    assert "sh: not done after 4 s" in json.loads((folder / "status").read_text())["error"]


def test_the_limit_is_reported_to_who_watches(host, systemd):
    def attempt(limit_s):
        with pytest.raises(ResourceError, match=f"sh: not done after {limit_s:g} s"):
            units.run(host(), "key", ("sh", "-c", waits(systemd.root)), timeout=limit_s)
        pid = systemd.root / "pid"
        return pid.exists() and pid.read_text()

    with_a_limit(attempt)
    assert systemd.folders == []
    ended(pid_in(systemd.root / "pid"))


def test_a_worker_that_keeps_no_limit_is_ended_with_all_of_its_unit(
    host, systemd, alter_worker, monkeypatch
):
    """The watcher waits a little longer than the worker does, and stops the unit then."""
    monkeypatch.setattr(units, "ENDING_S", 0.2)
    monkeypatch.setattr(units.processes, "TERM_GRACE", 0.1)
    monkeypatch.setattr(units.processes, "KILL_GRACE", 0.1)
    alter_worker(
        "running = Running\nRunning = lambda *a, timeout, **k: running(*a, timeout=1e6, **k)\n"
    )
    with pytest.raises(ResourceError, match="sleep: not done after 1 s"):
        units.run(host(), "key", ("sleep", str(FAR_S)), timeout=1)
    (unit,) = systemd.units()
    ended(unit["pid"])  # a killed process of a busy machine takes a moment to go
    assert systemd.folders == []


def test_systemd_has_the_last_limit(host, systemd):
    units.run(host(), "key", ("true",), timeout=100)
    options = systemd.units()[0]["options"]
    assert "--property=RuntimeMaxSec=160" in options
    assert "--property=KillMode=control-group" in options
    assert "--property=TimeoutStopSec=10" in options


def test_a_unit_that_never_begins_leaves_no_secret(host, systemd, monkeypatch):
    monkeypatch.setattr(units, "BEGIN_S", 0.2)
    for name in ("systemd-run", "systemctl"):
        systemd.command(name, "#!/bin/sh\nexit 0\n")
    with pytest.raises(ResourceError, match="does not begin"):
        units.run(host(), "key", ("true",), env={"TOKEN": Secret("hunter2")})
    assert systemd.folders == []


def test_what_a_killed_agent_left_of_a_unit_that_never_began_goes(host, systemd):
    """SIGKILL between the file with the secrets and the start of the unit."""
    folder = systemd.root / "var/lib/spark-cluster/units/0123456789abcdef"
    put(folder / "work", "hunter2")
    put(folder / "asked", json.dumps(worker.now()))
    units.run(host(), "other", ("true",))
    assert folder.exists(), "it may be about to begin"
    said = worker.now()
    said["monotonic"] -= 3 * units.BEGIN_S
    (folder / "asked").write_text(json.dumps(said))
    units.run(host(), "other", ("true",))
    assert not folder.exists()


def test_the_reason_of_a_failure_is_there_whatever_was_said_before_it(host):
    """More than the disk may have, and the reason in the moment in which it gets too much."""
    script = (
        "head -c 70000000 /dev/zero | tr '\\0' x >&2; echo >&2; "
        "echo 'E: the reason why it failed' >&2; exit 7"
    )
    told = []
    done = units.run(host(), "key", ("sh", "-c", script), on_output=told.append)
    assert done.status == 7
    assert done.stderr.endswith("xxx\nE: the reason why it failed\n")
    assert len(done.stderr) == worker.RESULT_LIMIT
    assert told[-1] == "E: the reason why it failed"

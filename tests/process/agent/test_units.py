"""Long work in units: it outlives its watcher, is found again, and tells how it ended, once."""

import json
import os
import threading
from functools import partial

import pytest
from factories import put
from waiting import FAR_S, until

from spark_cluster.errors import Unreachable
from spark_cluster.node import units
from spark_cluster.node.processes import Cancelled
from spark_cluster.node.values import Secret
from spark_cluster.resources import Command, Package, ResourceError
from spark_cluster.resources.package import apt
from spark_cluster.runner.delivery import document


@pytest.fixture
def gate(systemd):
    """A command that says `begun`, waits for `open()`, says `finished`, and ends with 3."""

    class Gate:
        begun, way = systemd.root / "begun", systemd.root / "way"
        script = (
            f"echo begun; touch {begun}; "
            f"while test -e {begun} && ! test -e {way}; do sleep 0.02; done; "
            "echo finished; echo so-so >&2; exit 3"
        )
        argv = ("sh", "-c", script)

        def open(self):
            self.way.touch()

        def wait(self):
            until(self.begun.exists)

    yield Gate()
    (systemd.root / "way").touch()  # whatever of it still waits goes its way


def opens(gate, tell):
    """A `note` of a host that opens the gate when it says that the work still goes on."""

    def note(text):
        tell(text)
        if "is still running there" in text:
            gate.open()

    return note


def is_told(watcher, work, begun):
    """Do work in a thread and lose the laptop once `begun()`; whether the watcher was told so."""
    told = []

    def watch():
        try:
            work()
        except Cancelled as error:
            told.append(error)

    thread = threading.Thread(target=watch)
    thread.start()
    until(begun)
    watcher.processes.cancel()
    thread.join()
    return bool(told)


def abandoned(host, gate, **options):
    """Begin the gate's work and lose the watcher."""
    watcher = host()
    assert is_told(
        watcher, lambda: units.run(watcher, "key", gate.argv, **options), gate.begun.exists
    )


def test_status_outputs_and_lines_while_they_come(host, systemd):
    heard = []
    script = "echo one; echo two >&2; printf 'half\\rdone'; exit 4"
    done = units.run(host(), "key", ("sh", "-c", script), on_output=heard.append)
    assert (done.status, done.stdout, done.stderr) == (4, "one\nhalf\rdone", "two\n")
    assert sorted(heard) == ["done", "half", "one", "two"]
    assert systemd.folders == []
    (unit,) = systemd.units()
    assert "--collect" in unit["options"]


def test_lines_are_progress_now_and_then(host, monkeypatch):
    watcher = host()
    units.run(watcher, "key", ("sh", "-c", "seq 1000"))
    assert 1 <= len(watcher.lines) < 20


def test_stdin_and_environment_stay_private(host, systemd, gate):
    out = systemd.root / "out"
    script = f'umask 077; cat > {out}; printf %s "$TOKEN" >> {out}; {gate.script}'
    environment = {"TOKEN": Secret("hunter2")}
    work = {"stdin": b"hunter1", "env": environment}
    thread = threading.Thread(target=lambda: units.run(host(), "key", ("sh", "-c", script), **work))
    thread.start()
    gate.wait()
    (folder,) = systemd.folders
    assert folder.stat().st_mode & 0o777 == 0o700
    assert not (folder / "work").exists()
    gate.open()
    thread.join()
    assert out.read_text() == "hunter1hunter2"
    assert "hunter" not in json.dumps(systemd.units())


def test_a_command_that_cannot_be_started(host, systemd):
    with pytest.raises(ResourceError, match="/none/such: no such command or folder"):
        units.run(host(), "key", ("/none/such",))
    assert systemd.folders == []


def test_an_exception_that_nothing_foresaw_is_reported(host, systemd, alter_worker):
    """Not "was ended from outside": the worker lives to tell."""
    alter_worker("def Running(*a, **k): raise RuntimeError('boom')\n")
    with pytest.raises(ResourceError, match="RuntimeError: boom") as caught:
        units.run(host(), "key", ("true",))
    assert "please report it" in caught.value.hint


def test_other_work_is_other_work(host, systemd, gate):
    abandoned(host, gate)
    assert units.run(host(), "other key", ("true",)).status == 0
    assert units.run(host(), "key", ("echo", "x")).stdout == "x\n"
    gate.open()
    assert units.run(host(), "key", gate.argv).status == 3
    assert len(systemd.units()) == 3


def ended_unwatched(host, systemd, gate):
    abandoned(host, gate)
    gate.open()
    (folder,) = systemd.folders
    until(lambda: not units._running(folder))
    return folder


def test_a_result_that_no_one_saw_is_taken_once(host, systemd, gate):
    ended_unwatched(host, systemd, gate)
    later = host()
    done = units.run(later, "key", gate.argv, reuse_result=True)
    assert (done.status, done.stdout) == (3, "begun\nfinished\n")
    assert "while no run watched, with status 3; this is its result" in later.notes[0]
    assert [unit["starts"] for unit in systemd.units()] == [1]
    units.run(host(), "key", gate.argv, reuse_result=True)
    assert [unit["starts"] for unit in systemd.units()] == [2]


def test_a_result_that_no_one_saw_is_not_taken_by_what_can_be_done_again(host, systemd, gate):
    ended_unwatched(host, systemd, gate)
    units.run(host(), "key", gate.argv)
    assert [unit["starts"] for unit in systemd.units()] == [2]


@pytest.mark.parametrize("asked", [True, False], ids=["asked for", "never asked for"])
def test_an_old_result_says_nothing_and_goes_some_day(host, systemd, gate, asked):
    path = ended_unwatched(host, systemd, gate) / "status"
    status = json.loads(path.read_text())
    status["monotonic"] -= units.STALE_S + 1 if asked else 8 * units.STALE_S
    path.write_text(json.dumps(status))
    units.run(host(), "key" if asked else "other", gate.argv, reuse_result=True)
    assert [unit["starts"] for unit in systemd.units()] == ([2] if asked else [1, 1])
    assert asked or systemd.folders == []


def test_work_that_is_killed_while_it_is_watched(host, systemd, gate):
    def kill():
        gate.wait()
        os.kill(systemd.units()[0]["pid"], 9)

    threading.Thread(target=kill).start()
    with pytest.raises(ResourceError, match="key: sh was ended from outside") as caught:
        units.run(host(), "key", gate.argv)
    assert "journalctl -u spark-cluster-" in caught.value.hint


def test_work_that_shall_not_survive_is_ended(host, systemd, gate):
    abandoned(host, gate, detach=False)
    (unit,) = systemd.units()
    until(lambda: not os.path.exists(f"/proc/{unit['pid']}/exe"))
    assert systemd.folders == []


def begin(host, begun, **options):
    watcher = host()
    work = partial(units.run, watcher, "key", ("true",), stdin=b"hunter2", **options)
    assert is_told(watcher, work, begun)


@pytest.mark.parametrize("detach", [False, True])
def test_a_unit_that_is_about_to_begin(host, systemd, gate, detach, alter_worker):
    waits = (
        f"import os, time\nopen({str(gate.begun)!r}, 'w').close()\n"
        f"while not os.path.exists({str(gate.way)!r}): time.sleep(0.02)\n"
    )
    alter_worker(waits)
    begin(host, lambda: gate.begun.exists() and systemd.units(), detach=detach)
    (unit,) = systemd.units()
    if detach:
        gate.open()
        (folder,) = systemd.folders
        until((folder / "status").exists)
    else:
        assert systemd.folders == []
        until(lambda: not os.path.exists(f"/proc/{unit['pid']}/exe"))


@pytest.mark.parametrize("detach", [False, True])
def test_a_unit_whose_start_is_still_being_asked_for(host, systemd, detach):
    asked, told = systemd.root / "asked", systemd.root / "told"
    systemd.command("systemd-run", f"#!/bin/sh\ntouch {asked}; exec sleep {FAR_S}\n")
    systemd.command("systemctl", f'#!/bin/sh\necho "$@" >> {told}\n')
    begin(host, asked.exists, detach=detach)
    assert told.exists() is not detach
    if not detach:
        assert told.read_text().startswith("stop --no-block spark-cluster-")
        assert systemd.folders == []


def test_what_cannot_be_begun(host, systemd):
    with pytest.raises(ResourceError, match="no user 'nobody-there'"):
        units.run(host(), "key", ("true",), user="nobody-there")
    systemd.command("systemd-run", "#!/bin/sh\necho no bus >&2; exit 1\n")
    with pytest.raises(ResourceError, match=r"starting a unit for key: .*no bus"):
        units.run(host(), "key", ("true",), stdin=b"secret")
    assert systemd.folders == []


def test_the_work_is_for_root_alone(host, systemd):
    """It holds secrets, until it has begun."""
    work = systemd.root / "var/lib/spark-cluster/units/*/work"
    systemd.command("systemd-run", f"#!/bin/sh\nstat -c 'mode %a' {work} >&2; exit 1\n")
    with pytest.raises(ResourceError, match="mode 600"):
        units.run(host(), "key", ("true",), stdin=b"secret")


def test_nothing_is_begun_for_a_laptop_that_is_gone(host, systemd):
    gone = host()
    gone.processes.cancel()
    with pytest.raises(Cancelled):
        units.run(gone, "key", ("true",))
    assert systemd.units() == []


def test_a_full_disk_on_which_nothing_could_be_said(host, monkeypatch):
    usage = type("Usage", (), {"free": 0})
    monkeypatch.setattr(units.shutil, "disk_usage", lambda _: usage)
    with pytest.raises(ResourceError, match="no space left on the disk of"):
        units.run(host(), "key", ("sh", "-c", "exit 100"))


def test_without_systemd_it_is_an_ordinary_command(host, systemd):
    (systemd.root / "run/systemd/system").rmdir()
    done = units.run(host(), "key", ("sh", "-c", "echo x; exit 2"))
    assert (done.status, done.stdout) == (2, "x\n")
    assert systemd.units() == []


# -- over a real agent that dies -------------------------------------------------------------------


def submit(session, *resources):
    packed = document(resources)
    return session.submit("apply", resources=packed.resources, run="r1")


def kill_agent(session, pending):
    session._channel._process.kill()
    with pytest.raises(Unreachable):
        pending.wait()


def test_the_next_agent_goes_on_with_the_work_of_one_that_was_killed(agent, systemd, gate):
    root = systemd.root
    script = gate.script.replace("exit 3", f"touch {root}/made")
    command = Command("flash it", ("sh", "-c", script), long=True, creates="/made")
    first = agent()
    pending = submit(first, command)
    gate.wait()
    kill_agent(first, pending)
    events = []
    note = opens(gate, str)
    pending = submit(agent(), command)
    assert pending.wait(lambda e: (events.append(e), note(str(e.get("text")))))["ok"]
    assert events[-1]["verdict"] == "change"
    assert any("is still running there" in e["text"] for e in events if e["event"] == "note")
    assert any(e["text"] in ("begun", "finished") for e in events if e["event"] == "progress")
    assert [unit["starts"] for unit in systemd.units()] == [1]


def test_a_command_without_condition_is_not_run_twice(agent, systemd, gate):
    command = Command("flash it", ("sh", "-c", gate.script), long=True, also_ok=(3,))
    first = agent()
    pending = submit(first, command)
    gate.wait()
    kill_agent(first, pending)
    gate.open()
    (folder,) = systemd.folders
    until(lambda: not units._running(folder))
    events = []
    assert submit(agent(), command).wait(events.append)["ok"]
    assert "this is its result" in next(e["text"] for e in events if e["event"] == "note")
    assert [unit["starts"] for unit in systemd.units()] == [1]


def test_apt_goes_on_and_is_waited_for(host, systemd, gate):
    systemd.command("apt-get", f"#!/bin/sh\n{gate.script.replace('exit 3', 'exit 0')}\n")
    first = host()
    first.current = Package("tree").id
    assert is_told(first, lambda: apt(first, "install", "x"), gate.begun.exists)
    later = host()
    later.current = first.current
    later.note = opens(gate, later.notes.append)
    assert apt(later, "install", "x").status == 0
    assert [unit["starts"] for unit in systemd.units()] == [1]


def test_the_proxies_of_a_node_are_those_of_apt(host, systemd):
    """sudo leaves them out of what PAM takes from the file."""
    put(
        systemd.root / "etc/environment",
        'PATH="/x"\n# http_proxy=no\nhttp_proxy="http://proxy.lan:3128"  # ours\n'
        "export HTTPS_PROXY=http://proxy.lan:3129\r\nno_proxy='localhost, .lan'\nall_proxy=\n",
    )
    systemd.command("apt-get", "#!/bin/sh\nenv\n")
    one = host()
    one.current = Package("tree").id
    found = dict(line.split("=", 1) for line in apt(one, "update").stdout.splitlines())
    assert {name: found[name] for name in found if name.lower().endswith("_proxy")} == {
        **dict.fromkeys(("http_proxy", "HTTP_PROXY"), "http://proxy.lan:3128"),
        **dict.fromkeys(("https_proxy", "HTTPS_PROXY"), "http://proxy.lan:3129"),
        **dict.fromkeys(("no_proxy", "NO_PROXY"), "localhost, .lan"),
    }
    assert found["PATH"] != "/x"

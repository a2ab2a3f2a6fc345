"""`setup` on a terminal, against a real SSH server that takes a password and a real mDNS responder
on the loopback; this machine is the node, and nothing is changed on it."""

import getpass
import os
import socket
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from unittest import mock

import pytest
from cases import each_row
from factories import read_inventory
from json_schema import document as fits
from password_sshd import PASSWORD, PasswordSshd
from program import Program
from terminal import Terminal

from spark_cluster import Cluster
from spark_cluster.cli import cli
from spark_cluster.cli.app import App
from spark_cluster.config import discovery
from spark_cluster.config.discovery import answers_in

CHECKOUT = Path(__file__).parents[3]
OTHER_KEY = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIGOJY3p6rXnYJvUxOGJBSuqAVgEcwTGDkRQx0cDwZzrp"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "home/.ssh").mkdir(parents=True, mode=0o700)
    (tmp_path / "project").mkdir()
    return tmp_path


@pytest.fixture
def sshd(folder: Path) -> Iterator[PasswordSshd]:
    """The node: this machine, with a home of its own."""
    (folder / "node").mkdir()
    python = str(Path(sys.executable).parent)
    server = PasswordSshd(
        environment={"PATH": f"{python}:/usr/bin:/bin", "HOME": str(folder / "node")}
    )
    yield server
    server.close()


@pytest.fixture
def setup(folder: Path) -> Iterator[Callable[..., Terminal]]:
    """`setup("--nodes", ...)`: begun on a terminal."""
    begun: list[Terminal] = []
    environment = {**os.environ, "PYTHONPATH": str(CHECKOUT), "HOME": str(folder / "home"),
                   "COLUMNS": "200", "TERM": "xterm"}  # fmt: skip
    environment.pop("SSH_AUTH_SOCK", None)

    def begin(*words: str) -> Terminal:
        argv = ["-m", "spark_cluster", "setup", *words]
        begun.append(Terminal(argv, folder / "project", environment))
        return begun[-1]

    yield begin
    for terminal in begun:
        terminal.close()


@pytest.fixture
def announced(sshd: PasswordSshd) -> Iterator[str]:
    """The name of a Spark that announces its sshd on the loopback, where others may, too."""
    from zeroconf import ServiceInfo, Zeroconf

    responder = Zeroconf(interfaces=["127.0.0.1"])
    packed = [socket.inet_aton("127.0.0.1")]
    name = f"spark-{sshd.port:04x}"
    service = discovery.SERVICE
    info = ServiceInfo(
        service, f"{name}.{service}", sshd.port, addresses=packed, server=f"{name}.local."
    )
    responder.registry.async_add(info)
    yield name
    responder.close()


def inventory(folder: Path) -> Path:
    return folder / "project/inventory.yaml"


def test_from_nothing_to_the_login_and_again(setup, folder, sshd, announced):
    """Found, trusted, a wrong password and the right one; a second one finds what is done."""
    (folder / "home/.ssh/id_ed25519.pub").write_text("ssh-ed25519 AAAA me\n")
    first = setup("--interface", "127.0.0.1")
    listed = [line for line in first.expect("Which of them").splitlines() if announced in line]
    first.type("")  # whoever announces a name is not taken by pressing Enter
    first.expect("Which of them")
    first.type(listed[0].split()[0])
    first.answer("User on the Sparks", "me")
    first.expect("$ spark-cluster init --node 127.0.0.1 --user me --port")
    first.expect("$ spark-cluster trust")
    first.answer("accept it?", "y")
    first.answer("Password of me@127.0.0.1: ", "wrong")
    first.expect("does not accept the password")
    first.answer("Password of me@127.0.0.1: ", PASSWORD)
    first.expect("spark1: logged in")
    if os.geteuid():  # root needs no sudo; who runs this may be anyone
        first.answer("without a password from now on?", "y")
    first.answer("Run `provision`?", "n")
    first.expect("later: spark-cluster provision --ask-password")
    first.answer("Number", "2")
    first.answer("Number", "1")
    assert "tok/s (" in first.expect("Which one")
    first.type("2")
    first.answer("Run `up`?", "n")
    first.expect("not done: provision, up. Go on with:")
    assert first.end() == 0
    assert PASSWORD not in first.shown
    assert sshd.passwords == ["wrong", PASSWORD]
    answers = answers_in(inventory(folder))
    assert (answers.user, answers.port) == ("me", sshd.port)
    assert PASSWORD not in inventory(folder).read_text()

    again = setup()
    again.expect("the inventory names spark1 (127.0.0.1)")
    again.expect("trusted already")
    again.answer("Password of me@127.0.0.1: ", "\x03")
    again.expect("step login is not done. Go on with:\n  spark-cluster setup")
    assert again.end() == 130
    assert answers_in(inventory(folder)) == answers


def test_a_host_key_that_has_changed_stops_before_the_password(setup, folder, sshd):
    known = folder / "home/.ssh/known_hosts"
    known.write_text(f"[127.0.0.1]:{sshd.port} {OTHER_KEY}\n")
    begun = setup("--nodes", "127.0.0.1", "--port", str(sshd.port), "--user", "me")
    begun.expect("CHANGED")
    begun.expect("step trust is not done. Go on with:\n  spark-cluster trust")
    begun.expect(f"spark-cluster setup --nodes 127.0.0.1 --user me --port {sshd.port}")
    assert begun.end() == 1
    assert sshd.passwords == []


@pytest.fixture
def program(program: Program, monkeypatch: pytest.MonkeyPatch) -> Program:
    monkeypatch.setattr(discovery, "LISTEN_S", 0.1)
    monkeypatch.setattr(discovery, "of_this_machine", list)
    return program


def test_check_changes_nothing_and_shows_every_command(program):
    done = program("setup", "--check", "--nodes", "192.0.2.1,192.0.2.2", "--want", "coding",
                   "--for", "throughput", "--json")  # fmt: skip
    assert done.returncode == 0, done.stderr
    steps = {step["name"]: step for step in fits("setup", done.stdout)["steps"]}
    assert list(steps) == ["nodes", "trust", "login", "provision", "model", "up"]
    assert steps["nodes"]["commands"] == [
        "spark-cluster init --node 192.0.2.1 --node 192.0.2.2 --yes"
    ]
    assert steps["model"]["commands"][0].endswith(
        "--recipe qwen3.6-35b-a3b-nvfp4-mtp --yes --force"
    )
    assert steps["up"]["commands"] == ["spark-cluster up --replicas 2"]
    assert {step["state"] for step in steps.values()} == {"would run"}
    assert not (program.folder / "inventory.yaml").exists()


@pytest.mark.parametrize(
    ("words", "status"), [(["--check", "--recipe", "gpt-oss-20b"], 0), (["--yes"], 3)]
)
def test_no_password_is_kept_afterwards(program, closed_port, monkeypatch, words, status):
    """A program that calls `setup` and goes on is asked again."""
    caller = App(Cluster(project=program.folder))
    caller.cluster.dialer.remember_password("spark1", PASSWORD)
    nodes = ("--nodes", "127.0.0.1", "--port", str(closed_port))
    argv = ["--project", str(program.folder), "setup", *nodes, *words]
    assert (cli.main(argv, standalone_mode=False, obj=caller) or 0) == status
    monkeypatch.setattr(sys, "stdin", mock.Mock(isatty=lambda: True))
    monkeypatch.setattr(getpass, "getpass", lambda _question: "typed")
    ask = caller.cluster.prompts.ask
    assert ask("the sudo password of spark1") == "typed"
    assert ask("the login password of spark1") == "typed"


def test_in_a_script_the_first_failure_ends_it(program, closed_port):
    done = program("setup", "--yes", "--nodes", "127.0.0.1", "--port", str(closed_port),
                   "--recipe", "gpt-oss-20b", "--json")  # fmt: skip
    assert done.returncode == 3
    document = fits("setup", done.stdout)
    assert document["ok"] is False
    assert [(s["name"], s["state"]) for s in document["steps"]] == [
        ("nodes", "done"), ("trust", "failed"),
    ]  # fmt: skip
    assert "refused the connection" in done.stderr
    assert "step trust is not done. Go on with:" in done.stderr
    found = read_inventory(program.folder / "inventory.yaml")
    assert found.serve.recipe == "gpt-oss-20b"


@each_row(__file__, "setup.toml", "what_cannot_be_set_up_is_told_and_nothing_is_written")
def test_what_cannot_be_set_up_is_told_and_nothing_is_written(program, before, words, says):
    path = program.folder / "inventory.yaml"
    path.write_text(before) if before else None
    done = program("setup", *words.split())
    assert done.returncode == 2
    for text in says:
        assert text in done.stdout + done.stderr
    assert (path.read_text() if path.exists() else "") == before


def test_answers_of_an_inventory_that_was_edited(program):
    assert program("init", "--node", "a.local", "--user", "me", "--sudo-password", "SUDO_PW",
                   "--port", "2222", "--yes").returncode == 0  # fmt: skip
    path = program.folder / "inventory.yaml"
    answers = answers_in(path)
    assert (answers.addresses, answers.port, answers.sudo_password) == (
        ("a.local",), 2222, "SUDO_PW",
    )  # fmt: skip
    path.write_text(path.read_text() + "\n# mine\n")
    assert answers_in(path) is None
    refused = program("init", "--node", "a.local", "--sudo-password", "hunter-2", "--force")
    assert refused.returncode == 2
    assert "hunter-2" not in refused.stderr

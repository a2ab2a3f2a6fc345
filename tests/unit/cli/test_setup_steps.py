"""The steps of `setup` one by one, with the program's own commands, in this process."""

import contextlib
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import click
import pytest
from factories import load_inventory, put

from spark_cluster import Cluster
from spark_cluster.cli import cli, setup
from spark_cluster.cli.app import App
from spark_cluster.cli.opened import FirstLogin
from spark_cluster.cli.setup import Login
from spark_cluster.cli.setup_flow import Asker, Flow, StepFailed, chosen, own_answers, write
from spark_cluster.config.discovery import Answers, Candidate, Peer
from spark_cluster.errors import UsageError
from spark_cluster.runner.ssh import KeysRefused

ONE = Answers(("192.0.2.1",), "me")


class Says(Asker):
    """A user who says yes to everything, or no."""

    answer = True

    def consent(self, question: str, *, default: bool = True) -> bool:
        return self.answer

    def offer(self, question: str) -> bool:
        return self.answer


@pytest.fixture
def flow(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Flow:
    """In a project whose inventory was written for one Spark."""
    monkeypatch.setenv("HOME", str(tmp_path))
    made = Flow(cli, App(Cluster(project=tmp_path)), Says(yes=False))
    with made.step("nodes", "which") as step:
        write(made, step, ONE, new=True)
    return made


def nodes_of(flow: Flow) -> list[str]:
    found = load_inventory(None, flow.app.project)
    return [node.address for node in found.nodes.values()]


def login_of(flow: Flow) -> Login:
    return Login(flow, None, passwordless_sudo=False)


def second(flow: Flow, *peers: Peer) -> bool:
    login = login_of(flow)
    login.peers = peers
    with flow.step("login", "log in") as step:
        return setup._second(flow, step, login)


def test_the_spark_at_the_cable_becomes_the_second_node(flow):
    assert second(flow, Peer("spark-1b3b", "192.0.2.2"))
    assert nodes_of(flow) == ["192.0.2.1", "192.0.2.2"]
    assert flow.count == 2
    assert "--node 192.0.2.1 --node 192.0.2.2" in flow.steps[-1].commands[0]


def test_it_is_only_named_where_no_one_may_take_it(flow, tmp_path, capsys):
    assert not second(flow, Peer("", None, "4c:bb:47:e9:0a:10"))
    assert "4c:bb:47:e9:0a:10" in capsys.readouterr().out
    flow.ask = Says(yes=True)
    assert not second(flow, Peer("spark-1b3b", "192.0.2.2"))
    assert "--nodes 192.0.2.1,192.0.2.2" in capsys.readouterr().out
    flow.ask = Says(yes=False)
    path = tmp_path / "inventory.yaml"
    path.write_text(path.read_text() + "# mine\n")
    assert not second(flow, Peer("spark-1b3b", "192.0.2.2"))
    assert nodes_of(flow) == ["192.0.2.1"]


@pytest.fixture
def logins(monkeypatch: pytest.MonkeyPatch) -> Callable[..., list[str]]:
    """Nodes that answer as told, in place of SSH; returns the passwords they are offered."""

    def prepare(accepts: dict[str, str], *, sudo_asks: bool, typed: list[str]) -> list[str]:
        offered: list[str] = []
        monkeypatch.setattr(setup.getpass, "getpass", lambda _: typed.pop(0))

        def answer(dialer, nodes, password=None):
            found = {}
            for node in nodes:
                wanted = dialer.target(replace(node, login_password=password))
                given = wanted.login_password()
                offered.extend([f"{node.name} {given}"] if given else [])
                found[node.name] = (
                    FirstLogin(sudo_asks, ())
                    if given == accepts[node.name]
                    else KeysRefused("no key", where=node.name)
                )
            return found

        monkeypatch.setattr(setup, "log_in", answer)
        return offered

    monkeypatch.setattr("sys.stdin.isatty", lambda: True)
    return prepare


def log_in(flow: Flow, *, fails: bool = False) -> Login:
    """Take the step of the login, which ends here where it fails."""
    login = login_of(flow)
    with contextlib.ExitStack() as stack:
        stopped = stack.enter_context(pytest.raises(StepFailed)) if fails else None
        login.log_in(stack.enter_context(flow.step("login", "log in")))
    if stopped is not None:
        assert (stopped.value.status, flow.steps[-1].state) == (3, "failed")
    return login


@pytest.fixture
def key(tmp_path: Path) -> None:
    put(tmp_path / ".ssh/id_ed25519.pub", "ssh-ed25519 AAAA me\n")


def test_each_node_keeps_the_password_that_it_took(flow, logins, key):
    with flow.step("nodes", "which") as step:
        write(flow, step, Answers(("192.0.2.1", "192.0.2.2"), "me"))
    offered = logins({"spark1": "one", "spark2": "two"}, sudo_asks=True, typed=["one", "two"])
    login = log_in(flow)
    assert offered == ["spark1 one", "spark2 one", "spark2 two"]
    ask = flow.app.cluster.prompts.ask
    assert ask("the sudo password of spark1") == "one"
    assert ask("the login password of spark2") == "two"
    assert login.options == ["--ask-password"]
    answers = own_answers(flow)
    assert answers.passwordless_sudo, "the user said yes"


def test_three_wrong_passwords_are_enough(flow, logins):
    logins({"spark1": "right"}, sudo_asks=False, typed=["a", "b", "c"])
    log_in(flow, fails=True)


def test_no_password_is_asked_for_where_nothing_is_asked(flow, logins, capsys, tmp_path):
    offered = logins({"spark1": "right"}, sudo_asks=True, typed=[])
    flow.ask = Asker(yes=True)
    log_in(flow, fails=True)
    assert "--password-env" in capsys.readouterr().out
    flow.ask = Asker(yes=False, check=True)
    assert (log_in(flow).options, offered) == (["--ask-password"], [])
    assert "asks for the password: spark1" in capsys.readouterr().out
    assert not (tmp_path / ".ssh").exists(), "no key is made in check mode"
    assert flow.steps[-1].commands[0].startswith("ssh-keygen")


def test_without_passwordless_sudo_the_inventory_says_where_it_comes_from(flow, logins, key):
    logins({"spark1": "one"}, sudo_asks=True, typed=["one"])
    flow.ask = type("No", (Says,), {"answer": False})(yes=False)
    log_in(flow)
    assert load_inventory(None, flow.app.project).head.become.password.prompt


@click.group()
@click.option("--project", expose_value=False)
def root() -> None:
    """Commands that end in every way that one can end."""


@root.command()
@click.argument("how")
def ends(how: str) -> None:
    if how == "interrupted":
        raise KeyboardInterrupt
    if how == "exits":
        raise SystemExit(4)
    if how == "fails":
        raise UsageError("no", where="here")
    click.get_current_context().exit(0 if how == "well" else 5)


@pytest.mark.parametrize(
    ("how", "status"), [("interrupted", 130), ("exits", 4), ("fails", 2), ("badly", 5), ("x y", 5)]
)
def test_how_a_command_ends_is_told_with_the_way_on(how, status, capsys, tmp_path):
    flow = Flow(root, App(Cluster(project=tmp_path)), Asker(yes=True))
    with pytest.raises(StepFailed) as stopped, flow.step("up", "serve it") as step:
        flow.run(step, "ends", how)
    assert stopped.value.status == status
    flow.show_way_on(stopped.value)
    shown = capsys.readouterr().out
    again = f"spark-cluster --project {tmp_path}"
    assert f"{again} ends {how}" in shown or f"{again} ends '{how}'" in shown
    assert f"{again} setup" in shown


def test_what_goes_well_goes_on(tmp_path, capsys):
    flow = Flow(root, App(Cluster(project=tmp_path)), Asker(yes=True))
    with flow.step("up", "serve it") as step:
        flow.run(step, "ends", "well")
    assert (step.state, step.commands) == ("done", [flow.line("ends", "well")])
    flow.show_end()
    shown = capsys.readouterr().out
    assert "it serves" in shown
    assert "clients" not in shown, "`up` has said it"


def test_what_served_before_ends_with_the_next_commands(tmp_path, capsys):
    put(tmp_path / "inventory.yaml", "nodes:\n  a: {address: 192.0.2.1, roles: [head]}\n")
    flow = Flow(root, App(Cluster(project=tmp_path, limit="a")), Asker(yes=True))
    with flow.step("up", "serve it") as step:
        flow.nothing_to_do(step, "`status` finds nothing wrong")
    flow.show_end()
    assert f"\nspark-cluster --project {tmp_path} -l a clients " in capsys.readouterr().out


FOUND = [Candidate(f"{name}.local", "", "", True) for name in "ab"]


@pytest.mark.parametrize("text", ["", "3", "1,1", "0"])
def test_choices_that_cannot_be(text):
    with pytest.raises(UsageError):
        chosen(text, FOUND)


def test_choices_are_numbers_or_addresses():
    assert [one.address for one in chosen("2, 192.0.2.9", FOUND)] == ["b.local", "192.0.2.9"]

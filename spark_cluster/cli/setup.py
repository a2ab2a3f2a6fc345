"""`setup`: a guided path from nothing to a verified endpoint; its login."""

from __future__ import annotations

import getpass
import subprocess
from collections.abc import Collection
from dataclasses import replace
from pathlib import Path

import click

from spark_cluster.cli.app import App
from spark_cluster.cli.opened import FirstLogin, log_in, public_key
from spark_cluster.cli.options import DeclaredCommand, Port
from spark_cluster.cli.setup_flow import (
    Asker,
    Flow,
    SetupStep,
    StepFailed,
    model,
    nodes,
    own_answers,
    write,
)
from spark_cluster.config.discovery import DEFAULT_RECIPE, Answers, Peer
from spark_cluster.config.inventory import InventoryNode
from spark_cluster.config.secret import SecretReference
from spark_cluster.errors import Failed, SparkClusterError, Unreachable, worst
from spark_cluster.plan.proposal import Preference, Want
from spark_cluster.runner.dialer import Dialer
from spark_cluster.runner.ssh import KeysRefused

TRIES = 3
"""Passwords that are tried: sshd drops an address that fails more often for a while."""


class Login:
    """The logins of a run of `setup`.

    Args:
        variable: environment variable with the password; None asks on the terminal.
        passwordless_sudo: as the options say; None asks where it matters.

    Attributes:
        with_password: some node takes no key, or its sudo asks: `provision` needs the password.
        peers: machines at the other ends of the head's cables.
    """

    def __init__(self, flow: Flow, variable: str | None, *, passwordless_sudo: bool) -> None:
        self.flow = flow
        self.variable = variable
        self.passwordless_sudo = passwordless_sudo
        self.with_password = False
        self._last: str | None = None
        self.peers: tuple[Peer, ...] = ()

    @property
    def options(self) -> list[str]:
        """The options of `provision` for a first contact."""
        if not self.with_password:
            return []
        return ["--password-env", self.variable] if self.variable else ["--ask-password"]

    @property
    def _dialer(self) -> Dialer:
        return self.flow.app.cluster.dialer

    def log_in(self, step: SetupStep) -> None:
        """Log in to every node, and see to what `provision` and `up` need for it.

        Raises:
            StepFailed: a node does not let us in.
            SparkClusterError: there is no key, and none is to be made.
        """
        nodes = [node for node in self.flow.app.nodes if not node.is_local]
        found = self._all(nodes)
        asks = [name for name, login in found.items() if login.sudo_asks]
        for name, login in found.items():
            sudo = "sudo asks for a password" if login.sudo_asks else "sudo works"
            self.flow.note("ok", f"{name}: logged in, {sudo}")
        if asks:
            self._sudo(step, asks)
        if self.with_password:
            self._key(step, nodes)
        self.peers = next(iter(found.values())).peers if len(found) == 1 else ()

    def _all(self, nodes: list[InventoryNode]) -> dict[str, FirstLogin]:
        """Log in everywhere, first by key, then with the password."""
        found: dict[str, FirstLogin] = {}
        refused = self._log_in(nodes, found)
        self._must(refused, only=KeysRefused)
        if refused and not self.variable and self.flow.ask.silent:
            return self._not_asked(found, refused)
        if refused and self._last is not None:  # of the other node: a user has the same on both
            refused = self._log_in(nodes, found, self._remembered(refused, self._last))
        for _ in range(1 if self.variable else TRIES):
            if not refused:
                return found
            self.with_password = True
            if self.variable:
                password = SecretReference(env=self.variable)
            else:
                password = self._remembered(refused, self._asked(nodes, refused))
            refused = self._log_in(nodes, found, password)
            if refused and not self.variable:
                self._show(refused)
        self._must(refused)
        return found

    def _not_asked(
        self, found: dict[str, FirstLogin], refused: dict[str, SparkClusterError]
    ) -> dict[str, FirstLogin]:
        """Say that the password would be asked for.

        Raises:
            StepFailed: --yes leaves no one to ask.
        """
        if not self.flow.ask.check:
            self._show(refused)
            self.flow.text("With --yes the password comes from a variable: --password-env NAME")
            raise StepFailed(Unreachable.exit_code, self.flow.again)
        self.with_password = True
        self.flow.note("info", f"asks for the password: {', '.join(refused)} takes no key of yours")
        return found

    def _asked(self, nodes: list[InventoryNode], refused: Collection[str]) -> str:
        missing = [node for node in nodes if node.name in refused]
        users = ", ".join(f"{node.user or getpass.getuser()}@{node.address}" for node in missing)
        if self._last is None:
            self.flow.text("No key of yours is accepted yet: the password is needed once, and kept "
                           "nowhere.")  # fmt: skip
        self._last = getpass.getpass(f"Password of {users}: ")
        return self._last

    def _remembered(self, names: Collection[str], password: str) -> SecretReference:
        """Have a password for nodes as if it were typed for each; return where it comes from."""
        for name in names:
            self._dialer.remember_password(name, password)
        return SecretReference(prompt=True)

    def _log_in(
        self,
        nodes: list[InventoryNode],
        found: dict[str, FirstLogin],
        password: SecretReference | None = None,
    ) -> dict[str, SparkClusterError]:
        """Log in to the nodes that are not among what was `found`; return who refused and why."""
        missing = [node for node in nodes if node.name not in found]
        outcomes = log_in(self._dialer, missing, password)
        errors = {n: o for n, o in outcomes.items() if isinstance(o, SparkClusterError)}
        found |= {n: o for n, o in outcomes.items() if not isinstance(o, SparkClusterError)}
        return errors

    def _must(
        self, refused: dict[str, SparkClusterError], only: type[SparkClusterError] | None = None
    ) -> None:
        """Raises:
        StepFailed: a node refused for another reason than the one that is expected.
        """
        fatal = {n: e for n, e in refused.items() if only is None or not isinstance(e, only)}
        if fatal:
            self._show(fatal)
            raise StepFailed(worst(fatal.values()), self.flow.again)

    def _show(self, refused: dict[str, SparkClusterError]) -> None:
        for name, error in refused.items():
            self.flow.note("fail", f"{name}: {error.message}")
            if error.hint:
                self.flow.say("  {}", self.flow.app.to_paste(error.hint))

    def _sudo(self, step: SetupStep, asks: list[str]) -> None:
        """See to a sudo that asks: the inventory says where its password comes from, or
        `provision` lets the user do without.
        """
        known = all(node.become.password for node in self.flow.app.nodes if node.name in asks)
        answers = own_answers(self.flow)
        if not self.with_password and not known and not self.variable and not self.flow.ask.silent:
            self._remembered(asks, getpass.getpass(f"Password for sudo on {', '.join(asks)}: "))
        if known and not self.with_password:
            return  # as for every other command
        self.with_password = True
        if answers is None or known or answers.passwordless_sudo:
            return
        free = self.passwordless_sudo or (
            not self.flow.ask.silent
            and self.flow.ask.consent(
                "May this user use sudo there without a password from now on? Otherwise every "
                "command asks for it.",
                default=False,
            )
        )
        source = None if free else (self.variable or "prompt")
        write(self.flow, step, replace(answers, sudo_password=source, passwordless_sudo=free))

    def _key(self, step: SetupStep, nodes: list[InventoryNode]) -> None:
        """Have a key that `provision` installs.

        Raises:
            Failed: there is none.
        """
        if all(public_key(node, search=True) for node in nodes):
            return
        path = nodes[0].identity_file or Path.home() / ".ssh" / "id_ed25519"
        argv = ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(path)]
        step.commands.append(f"ssh-keygen -q -t ed25519 -N '' -f {path}")
        if self.flow.ask.check:
            self.flow.say("[bold cyan]$ {}[/]", step.commands[-1])
            return
        if path.exists() or not self.flow.ask.consent(
            "You have no SSH key to log in with from now on. Make one, without a passphrase?"
        ):
            raise Failed(
                "there is no public key that could be installed",
                hint=f"ssh-keygen -t ed25519 -f {path} makes one (ssh-keygen -y prints that of a "
                "private key)",
            )
        self.flow.say("[bold cyan]$ {}[/]", step.commands[-1])
        path.parent.mkdir(mode=0o700, exist_ok=True)
        try:
            subprocess.run(argv, check=True, timeout=60, stdin=subprocess.DEVNULL)
        except (OSError, subprocess.SubprocessError) as error:
            raise Failed(f"ssh-keygen made no key: {error}", hint="make one by hand") from None


WOULD_ASK = (
    "the addresses of the Sparks      --nodes ADDRESS[,ADDRESS]",
    "the user there                   --user NAME",
    "the password, at first contact   --password-env NAME",
    "what to serve                    --want chat|coding|vision|embedding, or --recipe NAME",
    "for one user, or for many        --for latency|throughput",
)


def _typed(ctx: click.Context) -> list[str]:
    """Return the options of a command as they were typed, without those of every command."""
    words = []
    for option in ctx.command.params:
        value = ctx.params.get(option.name or "")
        if value is True:
            words.append(option.opts[-1])
        elif value not in {None, "", False}:
            words += [option.opts[-1], str(value)]
    return words


@click.command(cls=DeclaredCommand)
def setup(
    ctx: click.Context,
    app: App,
    *,
    addresses: str = "",
    user: str | None,
    identity_file: str | None,
    port: Port | None,
    interface: str | None,
    password_env: str | None,
    passwordless_sudo: bool,
    want: Want | None,
    speed: Preference | None,
    recipe: str | None,
    yes: bool,
    check: bool,
) -> int:
    """Go from nothing to a verified endpoint, step by step.

    Finds Sparks on the local network, writes inventory.yaml, accepts host keys (trust), logs in
    with the password once, makes the nodes ready (provision), proposes what to serve, and serves
    it (up). Every step shows the command that it runs. Run again, setup continues where it stopped.
    --yes also accepts new host keys.

    Args:
        addresses (--nodes ADDRESS[,ADDRESS]): Management addresses of the Sparks, the head first
            (default: search the network).
        user (NAME): User to log in as (default: as ~/.ssh/config says).
        identity_file (FILE): Private key (default: agent and ~/.ssh).
        port: Port of the nodes' sshd.
        interface (ADDRESS): Address of the one interface of this machine on which to look for
            Sparks.
        password_env (NAME): Environment variable with the login password, instead of a question.
        passwordless_sudo: Have `provision` let the user use sudo without a password.
        want: What the model is for (with --yes: chat).
        speed (--for): Compare recipes for one user, or for 16 at once (with --yes: latency).
        recipe (NAME): What to serve, instead of a proposal.
        yes (-y, --yes): Ask nothing: consent to every step.
        check: Change nothing; show the steps and their commands.
    """
    asker = Asker(yes, check)
    asker.must_be_able(WOULD_ASK)
    flow = Flow(ctx.find_root().command, app, asker, _typed(ctx))
    words = tuple(filter(None, (word.strip() for word in addresses.split(","))))
    asked = Answers(words, user, identity_file, recipe or DEFAULT_RECIPE, port)
    login = Login(flow, password_env, passwordless_sudo=passwordless_sudo)
    status = 0
    try:
        with flow.step("nodes", "which Sparks") as step:
            nodes(flow, step, asked, interface)
        _all(flow, login, (recipe, want, speed))
        flow.show_end()
    except StepFailed as stopped:
        flow.show_way_on(stopped)
        status = stopped.status
    finally:
        flow.app.cluster.prompts.forget()
    if flow.app.as_json:
        flow.app.print_json({"ok": status == 0, "check": check, "steps": flow.steps})
    return status


def _all(flow: Flow, login: Login, wish: tuple[str | None, Want | None, Preference | None]) -> None:
    """Go through the steps that follow when there is an inventory.

    Raises:
        StepFailed: one of them did not succeed.
    """
    with flow.step("trust", "their host keys") as step:
        _trust(flow, step)
    with flow.step("login", "log in") as step:
        _log_in(flow, step, login)
    with flow.step("provision", "make them ready") as step:
        _provision(flow, step, login)
    served = None if any(wish) or not flow.was_there else _served(flow)
    with flow.step("model", "what to serve") as step:
        if served:
            flow.nothing_to_do(step, served)
        else:
            chosen = model(flow, step, *wish)
    with flow.step("up", "serve it") as step:
        if served:
            flow.nothing_to_do(step, "`status` finds nothing wrong")
        else:
            question = "Run `up`? The first time it downloads the image and the model."
            flow.offer(step, question, "up", *chosen)


def _served(flow: Flow) -> str | None:
    """Return what serves already, in words; None when nothing does, or something is wrong."""
    found = flow.document("status")
    if found is None or found.get("state") != "serving":
        return None
    return f"{found['model']} is served at {found['endpoint']}"


def _trust(flow: Flow, step: SetupStep) -> None:
    if not flow.ask.silent:
        flow.text("A name on the network is no proof. Compare the fingerprint with the node's own: "
                  "ssh-keygen -lf /etc/ssh/ssh_host_ed25519_key.pub prints it there.")  # fmt: skip
    flow.run(step, "trust", *(["--yes"] if flow.ask.yes else []))


def _log_in(flow: Flow, step: SetupStep, login: Login) -> None:
    """Log in, and take in the Spark at the other end of the cable if there is one."""
    if flow.ask.check and flow.app.cluster.inventory_is_missing:
        step.state = "would run"
        flow.say("  logs in by key, else with the password, which is asked for once")
        return
    login.log_in(step)
    if _second(flow, step, login):
        _trust(flow, step)
        login.log_in(step)


def _second(flow: Flow, step: SetupStep, login: Login) -> bool:
    """Propose the Spark at the other end of the only node's cable; return whether it is taken."""
    answers = own_answers(flow)
    for peer in login.peers:
        if peer.address is None:
            who = peer.host or f"a machine ({peer.mac})"
            flow.note("info", f"{who} is at the other end of its cable; its management address is "
                      "not known: name both with --nodes to use them together")  # fmt: skip
        elif answers is None or flow.ask.silent:
            flow.note("info", f"{peer.host} ({peer.address}) is at the other end of its cable; to "
                      f"use both: --nodes {flow.app.nodes[0].address},{peer.address}")  # fmt: skip
        elif flow.ask.offer(
            f"{peer.host} ({peer.address}) is at the other end of its cable. Use both?"
        ):
            both = (*answers.addresses, peer.address)
            write(flow, step, replace(answers, addresses=both))
            flow.count = len(both)
            return True
    return False


def _provision(flow: Flow, step: SetupStep, login: Login) -> None:
    words = ["provision", *login.options]
    if not flow.ask.check and not login.with_password:
        found = flow.document("provision", "--check")
        if found is not None and found.get("ok") and not found.get("changed"):
            flow.nothing_to_do(step, "the nodes are ready: provision --check would change nothing")
            return
    question = "Run `provision`? It installs what is missing, and can be reverted."
    flow.offer(step, question, *words)

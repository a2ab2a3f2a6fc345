"""The login of `setup`: the password is asked for once, and kept by this process only."""

from __future__ import annotations

import getpass
import subprocess
from collections.abc import Collection
from dataclasses import replace
from pathlib import Path

from spark_cluster.cli.console import styled
from spark_cluster.cli.first_login import FirstLogin, log_in, public_key
from spark_cluster.cli.setup_choices import own_answers, write
from spark_cluster.cli.setup_flow import Flow, Step, Stopped
from spark_cluster.config.inventory import InventoryNode
from spark_cluster.config.secret import Secret
from spark_cluster.discovery import Peer
from spark_cluster.errors import Failed, SparkClusterError, Unreachable
from spark_cluster.runner.dialer import Dialer
from spark_cluster.runner.ssh_errors import KeysRefused

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

    def log_in(self, step: Step) -> None:
        """Log in to every node, and see to what `provision` and `up` need for it.

        Raises:
            Stopped: a node does not let us in.
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
        found, refused = self._logged_in(nodes)
        self._must(refused, only=KeysRefused)
        if refused and not self.variable and self.flow.ask.silent:
            return self._not_asked(found, refused)
        if refused and self._last is not None:  # of the other node: a user has the same on both
            more, refused = self._logged_in(*self._with(nodes, refused, self._last))
            found.update(more)
        for _ in range(1 if self.variable else TRIES):
            if not refused:
                return found
            self.with_password = True
            password = None if self.variable else self._asked(nodes, refused)
            more, refused = self._logged_in(*self._with(nodes, refused, password))
            found.update(more)
            if refused and not self.variable:
                self._show(refused)
        self._must(refused)
        return found

    def _not_asked(
        self, found: dict[str, FirstLogin], refused: dict[str, SparkClusterError]
    ) -> dict[str, FirstLogin]:
        """Say that the password would be asked for.

        Raises:
            Stopped: --yes leaves no one to ask.
        """
        if not self.flow.check:
            self._show(refused)
            self.flow.text("With --yes the password comes from a variable: --password-env NAME")
            raise Stopped(Unreachable.exit_code, self.flow.line("setup"))
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

    def _with(
        self, nodes: list[InventoryNode], refused: Collection[str], password: str | None
    ) -> tuple[list[InventoryNode], Secret]:
        """Return the nodes that are left, and where their password comes from."""
        missing = [node for node in nodes if node.name in refused]
        if password is None:
            return missing, Secret(env=self.variable)
        for node in missing:
            self._dialer.remember_password(node.name, password)
        return missing, Secret(prompt=True)

    def _logged_in(
        self, nodes: list[InventoryNode], password: Secret | None = None
    ) -> tuple[dict[str, FirstLogin], dict[str, SparkClusterError]]:
        """Log in to nodes; return what was found, and who refused and why."""
        outcomes = log_in(self._dialer, nodes, password)
        errors = {n: o for n, o in outcomes.items() if isinstance(o, SparkClusterError)}
        return {n: o for n, o in outcomes.items() if not isinstance(o, SparkClusterError)}, errors

    def _must(
        self, refused: dict[str, SparkClusterError], only: type[SparkClusterError] | None = None
    ) -> None:
        """Raises:
        Stopped: a node refused for another reason than the one that is expected.
        """
        fatal = {n: e for n, e in refused.items() if only is None or not isinstance(e, only)}
        if fatal:
            self._show(fatal)
            status = max(error.exit_code for error in fatal.values())
            raise Stopped(status, self.flow.line("setup"))

    def _show(self, refused: dict[str, SparkClusterError]) -> None:
        for name, error in refused.items():
            self.flow.note("fail", f"{name}: {error.message}")
            if error.hint:
                self.flow.say(f"  {error.hint}")

    def _sudo(self, step: Step, asks: list[str]) -> None:
        """See to a sudo that asks: the inventory says where its password comes from, or
        `provision` lets the user do without.
        """
        known = all(node.become.password for node in self.flow.app.nodes if node.name in asks)
        answers = own_answers(self.flow)
        if not self.with_password and not known and not self.variable and not self.flow.ask.silent:
            password = getpass.getpass(f"Password for sudo on {', '.join(asks)}: ")
            for name in asks:
                self._dialer.remember_password(name, password)
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

    def _key(self, step: Step, nodes: list[InventoryNode]) -> None:
        """Have a key that `provision` installs.

        Raises:
            Failed: there is none.
        """
        if all(public_key(node, search=True) for node in nodes):
            return
        path = nodes[0].identity_file or Path.home() / ".ssh" / "id_ed25519"
        argv = ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(path)]
        step.commands.append(f"ssh-keygen -q -t ed25519 -N '' -f {path}")
        if self.flow.check:
            self.flow.say(styled("[bold cyan]$ {}[/]", step.commands[-1]))
            return
        if path.exists() or not self.flow.ask.consent(
            "You have no SSH key to log in with from now on. Make one, without a passphrase?"
        ):
            raise Failed(
                "there is no public key that could be installed",
                hint=f"ssh-keygen -t ed25519 -f {path} makes one (ssh-keygen -y prints that of a "
                "private key)",
            )
        self.flow.say(styled("[bold cyan]$ {}[/]", step.commands[-1]))
        path.parent.mkdir(mode=0o700, exist_ok=True)
        try:
            subprocess.run(argv, check=True, timeout=60, stdin=subprocess.DEVNULL)
        except (OSError, subprocess.SubprocessError) as error:
            raise Failed(f"ssh-keygen made no key: {error}", hint="make one by hand") from None

"""A program of the node, run exactly as declared: what containers and units have in common, and the
units, systemd services of our own."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import re
import shutil
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar

from spark_cluster.node import paths
from spark_cluster.node.containers import DECLARED, declared
from spark_cluster.node.engine_caches import folder_of, prepare
from spark_cluster.node.host import Host
from spark_cluster.node.values import Missing, ResourceError, Secret
from spark_cluster.resources.base import (
    Resource,
    State,
    absolute,
    checks,
    differences,
    like,
    one_of,
)
from spark_cluster.resources.file import unified

# What a Container and a Unit have in common: a program's declaration, its secrets, its life.

LOOK_EVERY_S = 0.2


@dataclass(frozen=True)
class Program(Resource):
    """Base of what runs a program as declared, and makes it again when anything changes.

    The fields are explained where they are declared for users: in Container and Unit.
    """

    kind: ClassVar[str]
    """What it is, in messages."""
    shown_by: ClassVar[str]
    """The command that would show a secret given in any text but those of secret files."""
    variable: ClassVar[str] = r"[A-Za-z_][A-Za-z0-9_]*"
    """Pattern of the names of variables."""
    sources: ClassVar[str]
    """What to declare before it, for a path that is missing."""

    env: Mapping[str, str] = field(default_factory=dict, kw_only=True)
    secret_files: Mapping[str, Secret] = field(default_factory=dict, kw_only=True)
    mounts: tuple[str, ...] = field(default=(), kw_only=True)
    devices: tuple[str, ...] = field(default=(), kw_only=True)
    labels: Mapping[str, str] = field(default_factory=dict, kw_only=True)
    stop_timeout_s: int = field(default=10, kw_only=True)
    restart_when: tuple[Resource | str, ...] = field(default=(), kw_only=True)
    state: str = field(default="running", kw_only=True)

    @property
    def command(self) -> tuple[str, ...]:
        """The program and its arguments."""
        raise NotImplementedError

    @property
    def spec(self) -> str:
        """Digest of all that makes this program what it is (secrets are compared on the node)."""
        raise NotImplementedError

    def validate(self) -> None:
        for where, value in self._texts():
            self.must(
                not isinstance(value, Secret),
                f"{where} is a secret, which `{self.shown_by}` would show; give it in "
                "secret_files and let the program read that file",
            )
            text = isinstance(value, str)
            self.must(text, f"{where} is {value!r}; write it as text: '{value}'")
            self.must("\0" not in str(value), f"{where} is {value!r}, which has a NUL character")
        for name in self.env:
            self.must(re.fullmatch(self.variable, name), f"{name!r} is not the name of a variable")
        for mount in self.mounts:
            source, target, mode = split_mount(mount)
            known = mode in ("", "ro", "rw")
            self.must(known, f"mount {mount!r} is not SOURCE:TARGET or SOURCE:TARGET:ro")
            for what, path in (("source", source), ("target", target)):
                fault = absolute(path)
                self.must(not fault, f"{what} of mount {mount!r}: {fault}")
        for path, secret in self.secret_files.items():
            self.must(not absolute(path), f"secret_files: {absolute(path)}")
            told = isinstance(secret, Secret)
            self.must(told, f"secret_files {path}: wrap the value in Secret(...)")

    def desired(self) -> State:
        if self.state == "absent":
            return {"state": "absent", "secrets": "none"}
        secrets = "as declared" if self.secret_files else "none"
        return {"state": self.state, "spec": self.spec[:12], **self.also, "secrets": secrets}

    def converge(self, host: Host, actual: State) -> None:
        present = self.state != "absent"
        if present:
            self.need_sources(host)
        if actual["state"] != "absent":
            self.end(host)
        # Only now, with no program left: one that still ran would have read the old secret while
        # the file has the new one, and a run that dies in between would leave it so.
        if present or not self.shares_secrets(host):
            self._write_secrets(host, self.secret_files if present else {})
        if present:
            self.start(host)
        else:
            self.forget(host)

    def state_after(self, host: Host) -> State:
        after = self.observe(host)
        if self.state == "running" and after["state"] != "running" and (error := self.fault(host)):
            raise error  # it ended since the last look of `start`
        return after

    # -- what differs --------------------------------------------------------------------------

    @property
    def also(self) -> State:
        """What else is desired of one that is there."""
        return {}

    @property
    def needs(self) -> Iterable[str]:
        """Paths that must be on the node, besides the sources of the mounts."""
        return ()

    def shares_secrets(self, host: Host) -> bool:
        """Return whether the secrets of this name are those of another program, which may run."""
        return False

    def end(self, host: Host) -> None:
        """End the program that is there, whoever made it."""
        raise NotImplementedError

    def start(self, host: Host) -> None:
        """Make and start it; the one before it is gone."""
        raise NotImplementedError

    def fault(self, host: Host) -> ResourceError | None:
        """Look at it; if it is not up, end it and return how it ended."""
        raise NotImplementedError

    def forget(self, host: Host) -> None:
        """Remove what is left of one that has been ended."""

    def ended_at_once(self, status: object, log: Iterable[str], shown_by: str) -> ResourceError:
        """Return the error of a program that ended right after its start.

        Args:
            status: its exit status; None or empty where it is not known.
            log: its last lines.
            shown_by: the command that shows all of the log, before the program's name.
        """
        with_status = "" if status in (None, "") else f" with status {status}"
        return ResourceError(
            f"{self.kind} {self.name} ended right after its start{with_status}; its log ends:"
            + end_of(log),
            f"`{shown_by} {self.name}` on the node has all of it",
        )

    # -- node ----------------------------------------------------------------------------------

    def need_sources(self, host: Host) -> None:
        """Raise Missing for a path that is not on the node and that no earlier resource will make:
        what runs the program would only fail later."""
        for path in (*(split_mount(mount)[0] for mount in self.mounts), *self.needs):
            if not host.path(path).exists() and not host.will_provide(f"path:{path}"):
                driver = "its driver makes it; see `spark-cluster doctor`"
                raise Missing(
                    f"path:{path}",
                    f"{self.kind} {self.name}: {path} does not exist on the node",
                    driver if path.startswith("/dev/") else self.sources,
                )

    def secrets(self, host: Host) -> str:
        """Return whether the files on the node are those declared: `as declared`, `others`,
        `none`."""
        folder = host.path(f"{paths.SECRETS}/{self.name}")
        if not folder.is_dir():
            return "none"
        found = {p.name: p.read_bytes() for p in folder.iterdir()}
        declared = {_file(path): value.encode() for path, value in self.secret_files.items()}
        return "as declared" if found == declared and declared else "others"

    def _write_secrets(self, host: Host, files: Mapping[str, Secret]) -> None:
        """Replace the program's files, in a folder that only root enters; without files it goes.

        Not through `host.write`: the journal would keep the old ones.
        """
        folder = host.path(f"{paths.SECRETS}/{self.name}")
        with contextlib.suppress(FileNotFoundError):
            shutil.rmtree(folder)
        if not files:
            return
        folder.parent.mkdir(parents=True, exist_ok=True)
        folder.parent.chmod(0o700)
        folder.mkdir(mode=0o700)
        for path, value in files.items():
            flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL
            with os.fdopen(os.open(folder / _file(path), flags, 0o600), "wb") as out:
                out.write(value.encode())
                out.flush()
                os.fsync(out.fileno())

    def _texts(self) -> Iterable[tuple[str, object]]:
        for number, word in enumerate(self.command):
            yield f"command[{number}]", word
        yield from ((f"env {name}", value) for name, value in self.env.items())
        yield from ((f"label {name}", value) for name, value in self.labels.items())


def secret_path(program: str, path: str) -> str:
    """Return where the node keeps the secret file that a program sees as `path`."""
    return f"{paths.SECRETS}/{program}/{_file(path)}"


def _file(path: str) -> str:
    """The name on the node of the file that a program sees as `path`."""
    return f"{path.rsplit('/', 1)[1]}-{hashlib.sha256(path.encode()).hexdigest()[:8]}"


def split_mount(mount: str) -> tuple[str, str, str]:
    """Return source, target and mode (empty when none is given) of `SOURCE:TARGET[:MODE]`."""
    source, _, rest = mount.partition(":")
    target, _, mode = rest.partition(":")
    return source, target, mode


def must_stay(fault: Callable[[], ResourceError | None], for_s: float) -> None:
    """Look at a program that was started, once at least; raise what one of the looks finds.

    Args:
        for_s: seconds.
    """
    until = time.monotonic() + for_s
    while True:
        time.sleep(LOOK_EVERY_S)
        if error := fault():
            raise error
        if time.monotonic() >= until:
            return


def end_of(log: Iterable[str], otherwise: str = " (nothing)") -> str:
    """Return the last lines of a log as they stand below a message."""
    return "".join(f"\n    {line}" for line in log) or otherwise


# Asking systemd on a node, for the resources that stand on it.


def show(host: Host, unit: str, properties: str) -> dict[str, str]:
    """Return properties of a unit, `LoadState` among them.

    Args:
        unit: its full name, such as `docker.service`.
        properties: their names, with commas.

    Raises:
        ResourceError: systemd does not answer.
    """
    done = host.run(("systemctl", "show", unit, "-p", properties))
    known = dict(line.split("=", 1) for line in done.stdout.splitlines() if "=" in line)
    if done.status != 0 or "LoadState" not in known:
        raise ResourceError(
            f"systemd does not answer for {unit}: {done.stderr.strip()}",
            "nodes must have been booted with systemd",
        )
    return known


def systemctl(host: Host, *arguments: str) -> None:
    """Run `systemctl ...`.

    Raises:
        ResourceError: it failed.
    """
    host.run(("systemctl", *arguments), timeout=120).check("systemctl " + " ".join(arguments))


def end_of_log(host: Host, unit: str) -> list[str]:
    """Return the last 15 lines that a unit wrote."""
    log = host.run(("journalctl", "-u", unit, "-n", "15", "--no-pager", "-o", "cat"))
    return log.stdout.strip().splitlines()


STAYS_S = 2.0
"""Seconds that a program must run after its start; it is looked at at least once."""

RESOLV_CONF = (
    *("systemd/resolve/stub-resolv.conf", "systemd/resolve/resolv.conf"),
    *("NetworkManager/resolv.conf", "resolvconf/resolv.conf"),
)
"""Where /etc/resolv.conf may lead to, below /run."""

SANDBOX = (
    *("NoNewPrivileges=yes", "PrivateTmp=yes", "ProtectSystem=strict", "ProtectHome=read-only"),
    *("ProtectKernelTunables=yes", "ProtectKernelModules=yes", "ProtectControlGroups=yes"),
    *("CapabilityBoundingSet=CAP_IPC_LOCK CAP_SYS_NICE", "RestrictSUIDSGID=yes"),
    # Root may open the node's disks and, by /proc/PID/root, see the folders of another process
    # that has no more capabilities; from a user namespace it may not, and it may make no other.
    *("DevicePolicy=closed", "PrivateUsers=yes", "RestrictNamespaces=yes"),
    # A socket takes connections below a read-only mount, too: of /run there is nothing but how
    # names are looked up, and the sockets of root's that are elsewhere are hidden.
    "TemporaryFileSystem=/run:ro",
    "BindReadOnlyPaths=" + " ".join(f"-/run/{name}" for name in RESOLV_CONF),
    "InaccessiblePaths=-/var/lib/incus -/var/lib/kubelet -/var/lib/lxd -/var/snap",
)
"""What a container keeps from a program, too: it writes its mounts only, has the devices that are
declared only, and reaches no daemon of the node by a socket that has a path. It still is root, who
reads root's files and can end root's processes; and sockets with abstract names are the network's.
"""

RESTARTS = ("no", "always", "on-failure")
_PROPERTIES = "LoadState,ActiveState,SubState,UnitFileState,NRestarts,ExecMainStatus"


@dataclass(frozen=True)
class Unit(Program):
    """A long-running program as an installed systemd service, made again when anything changes.

    It is converged when it runs, is started at boot, and was made of the same declaration. Its
    temporary folders are its own, of the others it may write its mounts only, it sees nothing of
    /run and no devices but those declared, and it and all that it starts can gain no privileges.

    Args:
        unit: its name, without `.service`.
        command: the program (absolute, or as `search_path` finds it) and its arguments.
        search_path: folders of programs before the system's.
        env: variables; anyone who may ask systemd reads them, so Secrets are refused.
        secret_files: path that the program sees to a Secret; kept in a file that only root reads.
        mounts: `SOURCE:TARGET` or `SOURCE:TARGET:ro`, absolute; the source must exist. The
            program sees the source there; `ro` guards it where both are the same path, too.
        caches: a folder that the program sees as its own, and a name: `images/NAME` below it is
            made and mounted in its place.
        devices: device nodes that it may open besides null, random and the like: a path, or
            `char-NAME` as in /proc/devices, with `*`.
        limits: of systemd, such as `MEMLOCK: infinity` for `LimitMEMLOCK=`.
        user: who the program runs as.
        restart: `no`, `always` or `on-failure`.
        labels: kept in the unit's file, for whoever asks what it is.
        description: as `systemctl status` shows it.
        stop_timeout_s: seconds it has to end before it is killed.
        restart_when: resources of the same document whose change restarts it.
        state: `running` or `absent`.

    Raises:
        Missing: no mount source, no program of an absolute path, no systemd.
        ResourceError: it did not start, or ended within two seconds (with the end of its log).

    Example:
        Unit("spark-vllm", ("vllm", "serve", "/srv/models/m"), search_path=("/opt/vllm/bin",),
             limits={"MEMLOCK": "infinity"}, restart_when=(venv,))
    """

    reverts = "the program stays as it is; its file is restored"
    kind, shown_by = "unit", "systemctl show"
    sources = "declare a Directory, File or VirtualEnvironment before it"
    valid = checks(
        unit=like("[A-Za-z0-9][A-Za-z0-9_.-]*", "the name of a service"),
        devices=like(r"(/dev/|char-|block-)[\w/*.-]+", "/dev/NAME or char-NAME"),
        restart=like("|".join(RESTARTS), f"one of {', '.join(RESTARTS)}"),
        state=one_of("running", "absent"),
    )

    unit: str
    command: tuple[str, ...] = ()
    search_path: tuple[str, ...] = field(default=(), kw_only=True)
    caches: tuple[str, str] | None = field(default=None, kw_only=True)
    limits: Mapping[str, str] = field(default_factory=dict, kw_only=True)
    user: str = field(default="root", kw_only=True)
    restart: str = field(default="always", kw_only=True)
    description: str = field(default="", kw_only=True)

    def validate(self) -> None:
        told = self.state == "absent" or self.command
        self.must(told, "command is a list of strings: the program and its arguments")
        super().validate()
        for name, value in self.limits.items():
            known = re.fullmatch("[A-Z]+", name) and re.fullmatch("[0-9A-Za-z:]+", str(value))
            self.must(known, f"limit {name}: {value!r} is not one of systemd's")

    def provides(self) -> tuple[str, ...]:
        return (f"running:{self._full}",) if self.state == "running" else ()

    @property
    def also(self) -> State:
        return {"at_boot": True}

    @property
    def needs(self) -> tuple[str, ...]:
        return self.command[:1] if self.command[0].startswith("/") else ()

    def observe(self, host: Host) -> State:
        text = host.read(self._file)
        secrets = self.secrets(host)
        if self.state == "absent" and text is None:  # it was ended before its file went
            return {"state": "absent", "secrets": secrets}
        if host.which("systemctl") is None:
            raise Missing("command:systemctl", "this node has no systemd")
        known = self._show(host)
        state: State = {**_state_of(known, text), "secrets": secrets}
        if self.state == "running" and differences(state, self.desired()):
            self.need_sources(host)
        return state

    def forget(self, host: Host) -> None:
        host.remove(self._file)
        systemctl(host, "daemon-reload")

    def diff(self, host: Host, actual: State) -> str:
        after = self.text if self.state == "running" else ""
        return unified(self._file, host.read(self._file) or b"", after.encode())

    @property
    def text(self) -> str:
        """The unit's file."""
        return self._text({**self._declaration(), "spec": self.spec})

    @property
    def spec(self) -> str:
        return hashlib.sha256(self._text(self._declaration()).encode()).hexdigest()

    # -- the file ------------------------------------------------------------------------------

    @property
    def _full(self) -> str:
        return f"{self.unit}.service"

    @property
    def _file(self) -> str:
        return f"{paths.SYSTEMD_UNITS}/{self._full}"

    def _declaration(self) -> dict[str, Any]:
        return {
            "command": list(self.command),
            "env": dict(sorted(self.env.items())),
            "labels": dict(sorted(self.labels.items())),
        }

    def _text(self, declared: Mapping[str, Any]) -> str:
        path = ":".join((*self.search_path, "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin"))
        # Its own temporary folder: root's home is as little its own as in a container.
        env = {"PATH": path, "HOME": "/tmp", **self.env}  # noqa: S108
        lines = [
            "[Unit]",
            f"Description={_plain(self.description or self.unit)}",
            *("Wants=network-online.target", "After=network-online.target"),
            *("StartLimitIntervalSec=0", "", "[Service]", "Type=exec", f"User={self.user}"),
            # `env` looks the program up in the PATH of the unit, systemd in its own.
            "ExecStart=/usr/bin/env -- " + " ".join(map(quoted_argument, self.command)),
            *(f"Environment={_quoted(f'{k}={v}')}" for k, v in sorted(env.items())),
            *(f"Limit{name}={value}" for name, value in sorted(self.limits.items())),
            *(f"Restart={self.restart}", "RestartSec=2", f"TimeoutStopSec={self.stop_timeout_s}"),
            *("KillMode=mixed", f"SyslogIdentifier={self.unit}", *SANDBOX),
            *(f"DeviceAllow={device} rw" for device in self.devices),
            *self._binds(),
            *("", "[Install]", "WantedBy=multi-user.target", ""),
            "[X-Spark-Cluster]",
            DECLARED + json.dumps(declared, sort_keys=True),
        ]
        return "\n".join(lines) + "\n"

    def _binds(self) -> list[str]:
        lines = []
        if self.caches is not None:
            root, name = self.caches
            lines.append(f"BindPaths={_bound(folder_of(root, name), root)}")
        for mount in self.mounts:
            source, target, mode = split_mount(mount)
            if source == target and mode != "ro":
                lines.append(f"ReadWritePaths={_quoted(source)}")
            else:
                kind = "BindReadOnlyPaths" if mode == "ro" else "BindPaths"
                lines.append(f"{kind}={_bound(source, target)}")
        folders = {path.rsplit("/", 1)[0] for path in self.secret_files}
        outermost = (f for f in folders if not any(f.startswith(f"{o}/") for o in folders))
        for folder in sorted(outermost):
            lines.append(f"TemporaryFileSystem={_quoted(f'{folder}:ro')}")
        for path in sorted(self.secret_files):
            source = secret_path(self.unit, path)
            lines.append(f"BindReadOnlyPaths={_bound(source, path)}")
        return lines

    # -- node ----------------------------------------------------------------------------------

    def _show(self, host: Host) -> dict[str, str]:
        return show(host, self._full, _PROPERTIES)

    def end(self, host: Host) -> None:
        host.progress(f"stopping {self.unit}")
        patience = self.stop_timeout_s + 60.0
        host.run(("systemctl", "disable", "--now", self._full), timeout=patience)
        host.run(("systemctl", "reset-failed", self._full))  # fails where nothing had failed
        if self._show(host)["ActiveState"] in ("active", "activating", "deactivating", "reloading"):
            raise ResourceError(f"unit {self.unit} is still there after it was stopped")

    def start(self, host: Host) -> None:
        if self.caches is not None:
            prepare(host, *self.caches)
        host.write(self._file, self.text.encode(), mode=0o644)
        systemctl(host, "daemon-reload")
        systemctl(host, "enable", self._full)
        host.progress(f"starting {self.unit}")
        done = host.run(("systemctl", "start", self._full), timeout=120)
        if done.status:
            raise self._ended(host, done.stderr.strip())
        must_stay(lambda: self.fault(host), STAYS_S)

    def fault(self, host: Host) -> ResourceError | None:
        known = self._show(host)
        is_up = known["ActiveState"] == "active" and known.get("NRestarts", "0") == "0"
        return None if is_up else self._ended(host, "")

    def _ended(self, host: Host, output: str) -> ResourceError:
        """Stop the restarts of a program that ended at once, and report its output."""
        status = self._show(host).get("ExecMainStatus", "")
        host.run(("systemctl", "stop", self._full), timeout=self.stop_timeout_s + 60.0)
        lines = end_of_log(host, self._full) or [output or "(nothing)"]
        return self.ended_at_once(status, lines, "journalctl -u")


def _state_of(known: Mapping[str, str], text: bytes | None) -> State:
    """State and digest of a unit; `absent` without a file of ours."""
    if text is None and known["ActiveState"] in ("inactive", "failed"):
        return {"state": "absent"}
    active = known["ActiveState"]
    state: State = {
        "state": "running" if active == "active" else f"{active} ({known.get('SubState', '?')})",
        "restarts": int(known.get("NRestarts") or 0),
        "spec": str(declared(text or b"").get("spec", ""))[:12] or "made by someone else",
        "at_boot": known.get("UnitFileState") == "enabled",
    }
    if active != "active":
        state["exit_code"] = int(known.get("ExecMainStatus") or 0)
    return state


def _plain(text: str) -> str:
    return " ".join(text.split()).replace("%", "%%")


def _quoted(text: str) -> str:
    """As systemd reads a value: C escapes, and `%` begins what it replaces (syntax)."""
    escaped = text.replace("\\", "\\\\").replace('"', '\\"').replace("%", "%%")
    return '"' + escaped.replace("\n", "\\n").replace("\r", "\\r").replace("\t", "\\t") + '"'


def _bound(source: str, target: str) -> str:
    """A pair of paths; systemd takes a colon within quotes for a part of the path."""
    return f"{_quoted(source)}:{_quoted(target)}"


def quoted_argument(text: str) -> str:
    """Return a word of a command line as systemd reads it literally; `$` begins a variable there
    (systemd.service(5), "Command lines")."""
    return _quoted(text).replace("$", "$$")

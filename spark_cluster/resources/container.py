"""A Docker container that runs exactly as declared, of the image that its reference means now."""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from spark_cluster.node import confinement, paths
from spark_cluster.node.containers import ContainerState, rights
from spark_cluster.node.dockerd import container, docker
from spark_cluster.node.engine_caches import folder_of, prepare, short
from spark_cluster.node.host import Host
from spark_cluster.node.values import ResourceError, Unknown
from spark_cluster.resources.base import State, absolute, checks, differences, like, one_of
from spark_cluster.resources.file import unified
from spark_cluster.resources.image import need_image
from spark_cluster.resources.unit import Program, must_stay, secret_path, split_mount

ID = "IMAGE-ID"
"""Stands in the arguments for the id of the image, which is known on the node."""
SPEC, ARGV = "spark-cluster.spec", "spark-cluster.argv"
STAYS_S = 2.0
"""Seconds of `stays_s`: what cannot start ends within them."""

MADE = ("created", "running", "restarting", "paused", "exited")
"""States in which a container of the state `created` is left."""

RESTARTS = ("no", "always", "unless-stopped", "on-failure")

_SINGLE = ("network", "ipc", "pid", "gpus", "shm_size", "user", "workdir", "entrypoint")
"""Fields that are an option of `docker run` each."""


@dataclass(frozen=True)
class Container(Program):
    """A container, created again whenever something of it is not as declared.

    It is converged when it runs, was made by the same arguments, and its image is the one that
    the reference names now. A stopped container is created again as well, so that a mount
    or device that changed meanwhile is right again. With the state `created` another program
    starts and stops it: it is made, and left as it is while its arguments and image are the same.

    Args:
        container: its name.
        image: reference of an image on the node; nothing is pulled here.
        command: arguments after the image.
        entrypoint: a program instead of the image's own.
        env: variables; anyone who may ask Docker reads them, so Secrets are refused.
        secret_files: path in the container to a Secret; kept on the node in a file that only root
            reads, and mounted read-only. A program in the container must run as root to read it.
        mounts: `SOURCE:TARGET` or `SOURCE:TARGET:ro`, absolute; the source must exist.
        caches: a folder that the program sees as its own: `images/ID` below it, with the first
            digits of the image's id, is made and mounted in its place.
        network, ipc, pid: `host`, `container:NAME`, or another mode that Docker knows; None leaves
            Docker's own. With `container:NAME` it is made again after that container was.
        gpus: `all`, or as `docker run --gpus` takes it. With `all` systemd is told of the driver's
            devices: what only the toolkit's hook has added, its next reload takes away (source:
            nvidia-container-toolkit-48).
        devices: `/dev/x`, or `/dev/x:/dev/y`.
        cap_add: capabilities, e.g. `IPC_LOCK`.
        cap_drop: capabilities of Docker's default that it does not get; `ALL` leaves `cap_add`.
        security_opt: e.g. `no-new-privileges`.
        ulimits: name to `SOFT[:HARD]`, -1 for no limit.
        shm_size: of /dev/shm, e.g. `16g`; not with ipc="host".
        user: who the program runs as.
        workdir: the folder it starts in.
        init: a small process 1 that reaps.
        restart: `no`, `always`, `unless-stopped` or `on-failure`.
        labels: more labels.
        stays_s: seconds that it must run after its start; it is looked at at least once.
        stop_timeout_s: seconds it has to end before it is killed.
        restart_when: resources of the same document whose change creates it again.
        only_labelled: with `absent`, a container without this label is another's and stays.
        state: `running`, `created` or `absent`.

    Raises:
        Missing: no image, no mount source, no device, no docker.
        ResourceError: it did not start, or ended within two seconds (with the end of its log).

    Example:
        Container("ray-head", "vllm:0.32", ("ray", "start", "--head", "--block"), ipc="host",
                  mounts=("/srv/models:/models:ro",), gpus="all", restart_when=(env_file,))
    """

    reverts = "the container stays as it is"
    kind, shown_by, variable = "container", "docker inspect", "[A-Za-z_][A-Za-z0-9_.-]*"
    sources = "declare a Directory or File for it"
    valid = checks(
        container=like("[a-zA-Z0-9][a-zA-Z0-9_.-]+", "a name that Docker takes"),
        restart=like(f"({'|'.join(RESTARTS)})(:.*)?", f"one of {', '.join(RESTARTS)}"),
        devices=lambda device: absolute(device.partition(":")[0]),
        caches=absolute,
        state=one_of("running", "created", "absent"),
    )

    container: str
    image: str = ""
    command: tuple[str, ...] = ()
    entrypoint: str | None = field(default=None, kw_only=True)
    caches: str = field(default="", kw_only=True)
    network: str | None = field(default="host", kw_only=True)
    ipc: str | None = field(default=None, kw_only=True)
    pid: str | None = field(default=None, kw_only=True)
    gpus: str | None = field(default=None, kw_only=True)
    cap_add: tuple[str, ...] = field(default=(), kw_only=True)
    cap_drop: tuple[str, ...] = field(default=(), kw_only=True)
    security_opt: tuple[str, ...] = field(default=(), kw_only=True)
    ulimits: Mapping[str, str | int] = field(default_factory=dict, kw_only=True)
    shm_size: str | None = field(default=None, kw_only=True)
    user: str | None = field(default=None, kw_only=True)
    workdir: str | None = field(default=None, kw_only=True)
    init: bool = field(default=True, kw_only=True)
    restart: str = field(default="unless-stopped", kw_only=True)
    stays_s: float = field(default=STAYS_S, kw_only=True)
    only_labelled: str = field(default="", kw_only=True)

    def validate(self) -> None:
        self.must(self.state == "absent" or self.image, "no image is given")
        idle = self.only_labelled and self.state != "absent"
        self.must(not idle, f"only_labelled has no effect with state={self.state!r}")
        unused = self.shm_size and self.ipc == "host"
        self.must(not unused, "shm_size has no effect with ipc='host'")
        super().validate()
        for path in (*self.mounts, *self.secret_files, self.caches):
            plain = "," not in path and '"' not in path
            self.must(plain, f"Docker takes no comma or quote in a mount: {path!r}")

    def provides(self) -> tuple[str, ...]:
        return (f"container:{self.container}",) if self.state != "absent" else ()

    @property
    def also(self) -> State:
        return {"image": "current", "rights": "as declared"}

    @property
    def needs(self) -> list[str]:
        return [device.partition(":")[0] for device in self.devices]

    def observe(self, host: Host) -> State:
        if self.state == "absent" and host.which("docker") is None:
            return {"state": "absent", "secrets": self.secrets(host)}
        found = container(host, self.container)
        if self.only_labelled and found is not None and self.only_labelled not in found.labels:
            found = None
        state = {**_state_of(found), "secrets": self.secrets(host)}
        if self.state == "absent":
            return state
        if self.state == "created" and state["state"] in MADE:
            state["state"] = "created"
        if found is not None:
            same = found.image == self._image_id(host)
            state["image"] = "current" if same else "not the one that the reference names now"
            state["rights"] = self._rights(host, found.rights)
        else:
            self._image_id(host)
        maker = host.will_provide(f"image:{self.image}")
        if maker is not None:
            raise Unknown(f"after: {maker}")
        if differences(state, self.desired()):
            self.need_sources(host)
        return state

    def diff(self, host: Host, actual: State) -> str:
        before = json.loads(actual.get("argv") or "[]")
        after = self.argv if self.state != "absent" else ()
        texts = ("".join(f"{word}\n" for word in words).encode() for words in (before, after))
        return unified(f"docker run {self.container}", *texts)

    @property
    def argv(self) -> tuple[str, ...]:
        """The arguments after `docker run -d`, without our labels, always in one order.

        Of the image's id, which the node knows, it has `ID`: another image is told anyway.
        """
        words = ["--name", self.container, "--pull", "never", "--restart", self.restart]
        words += ["--stop-timeout", str(self.stop_timeout_s)]
        if self.init:
            words.append("--init")
        for option in _SINGLE:
            value = getattr(self, option)
            if value is not None:
                words += [f"--{option.replace('_', '-')}", value]
        own = (f"{folder_of(self.caches, ID)}:{self.caches}",) if self.caches else ()
        files = sorted(self.secret_files)
        secrets = (f"{secret_path(self.container, path)}:{path}:ro" for path in files)
        repeated: tuple[tuple[str, Iterable[str]], ...] = (
            ("--device", self.devices),
            ("--cap-drop", self.cap_drop),
            ("--cap-add", self.cap_add),
            ("--security-opt", self.security_opt),
            ("--ulimit", _pairs(self.ulimits)),
            ("--mount", map(_mount, (*own, *self.mounts, *secrets))),
            ("--label", _pairs(self.labels)),
            ("--env", _pairs(self.env)),
        )
        words += [word for option, values in repeated for one in values for word in (option, one)]
        return (*words, self.image, *self.command)

    @property
    def spec(self) -> str:
        return hashlib.sha256(json.dumps(self.argv).encode()).hexdigest()

    # -- node ----------------------------------------------------------------------------------

    def secrets(self, host: Host) -> str:
        others = self.state == "absent" and self.shares_secrets(host)
        return "none" if others else super().secrets(host)

    def shares_secrets(self, host: Host) -> bool:
        """Return whether there is a unit of this name, which may still run."""
        return host.read(f"{paths.SYSTEMD_UNITS}/{self.container}.service") is not None

    def _rights(self, host: Host, found: str) -> str:
        """Return what the container may do, as Docker says it; or that it is as declared.

        Raises:
            Unknown: check mode, and the container whose process ids it shares is made again.
        """
        pid, owner = self.pid or "", (self.pid or "").removeprefix("container:")
        if owner != pid:  # Docker keeps the id of that container
            if maker := host.will_provide(f"container:{owner}"):
                raise Unknown(f"after: {maker}")
            shared = container(host, owner)
            pid = f"container:{shared.id if shared is not None else ''}"
        declared = {
            "PidMode": pid,
            "CapAdd": self.cap_add,
            "CapDrop": self.cap_drop,
            "SecurityOpt": self.security_opt,
        }
        return "as declared" if found == rights(declared) else found

    def _image_id(self, host: Host) -> str:
        return need_image(host, self.image, f"container {self.container}").id

    def end(self, host: Host) -> None:
        seconds = str(self.stop_timeout_s)
        host.progress(f"stopping {self.container}")
        patience = self.stop_timeout_s + 60.0
        docker(host, "stop", "-t", seconds, self.container, timeout=patience)
        done = docker(host, "rm", "-f", self.container, timeout=patience)
        until = time.monotonic() + patience
        while container(host, self.container) is not None:
            if time.monotonic() > until or "in progress" not in done.stderr:
                done.check(f"removing {self.container}")
                raise ResourceError(f"container {self.container} is still there after its removal")
            time.sleep(0.5)

    def start(self, host: Host) -> None:
        labels = ("--label", f"{SPEC}={self.spec}", "--label", f"{ARGV}={json.dumps(self.argv)}")
        host.progress(f"starting {self.container}")
        verb = ("run", "-d") if self.state == "running" else ("create",)
        done = docker(host, *verb, *labels, *self._argv_here(host), timeout=120)
        if done.status != 0:
            docker(host, "rm", "-f", self.container)
            done.check(f"starting container {self.container}")
        if self.state == "created":
            return
        must_stay(lambda: self.fault(host), self.stays_s)

    def fault(self, host: Host) -> ResourceError | None:
        found = self._found(host)
        is_up = found["state"] == "running" and not found.get("restarts")
        return None if is_up else self._ended(host, found)

    def _found(self, host: Host) -> State:
        return _state_of(container(host, self.container))

    def _argv_here(self, host: Host) -> tuple[str, ...]:
        """Return the arguments with the folder of this image's caches, which is made, and rules
        for this node's GPU, not its devices: without one of these nothing starts after a boot."""
        numbers = confinement.devices(host).values() if self.gpus == "all" else ()
        rules = (("--device-cgroup-rule", f"c {number} rwm") for number in numbers)
        argv = (*(word for rule in rules for word in rule), *self.argv)
        if not self.caches:
            return argv
        image = self._image_id(host)
        name = short(image)
        prepare(host, self.caches, name, image)
        shared = f"source={folder_of(self.caches, ID)},"
        own = f"source={folder_of(self.caches, name)},"
        return tuple(word.replace(shared, own) for word in argv)

    def _ended(self, host: Host, found: State) -> ResourceError:
        """Stop the restarts of a container that ended at once, and report its output."""
        log = docker(host, "logs", "--tail", "20", self.container)
        docker(host, "stop", "-t", "0", self.container)
        if found["state"] == "running":  # again: how it ended is known only now
            found = self._found(host)
        tail = (log.stdout + log.stderr).strip().splitlines()[-20:]
        return self.ended_at_once(found.get("exit_code"), tail, "docker logs")


def _pairs(values: Mapping[str, object]) -> list[str]:
    return [f"{name}={value}" for name, value in sorted(values.items())]


def _mount(mount: str) -> str:
    source, target, mode = split_mount(mount)
    return f"type=bind,source={source},target={target}" + (",readonly" if mode == "ro" else "")


def _state_of(found: ContainerState | None) -> State:
    """State, exit status, number of restarts and labels of a container."""
    if found is None:
        return {"state": "absent"}
    state: State = {
        "state": found.status,
        "restarts": found.restarts,
        "spec": found.label(SPEC)[:12] or "made by someone else",
        "argv": found.label(ARGV),
    }
    if not found.running:
        state["exit_code"] = found.exit_code
        if found.error:
            state["error"] = found.error
    return state

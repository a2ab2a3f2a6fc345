"""Rules on containers run by hand; for a recipe `up` takes care of all of it."""

from __future__ import annotations

import re

from spark_cluster.config.facts import Facts
from spark_cluster.config.recipe import is_for_models, why_refused
from spark_cluster.config.secret import is_secret_setting
from spark_cluster.issues.match import Edit
from spark_cluster.issues.rules import Case, Found, rule

CAPABILITIES = ("ALL", "SYS_ADMIN", "SYS_MODULE", "SYS_RAWIO", "SYS_PTRACE", "DAC_READ_SEARCH")
"""With any of them a container is root on the node."""

SYSTEM_UID_MAX = 999
"""The last uid of a system user, whose semaphores logind leaves alone (source:
systemd-docs-logind)."""

OWN_UID = ("$(id -u)", "`id -u`", "$UID", "${UID}")
"""How a shell writes the uid of who types the command."""

ANY = ("", "0.0.0.0", "::", "[::]")  # noqa: S104  (what is looked for, not what is bound)
LOOPBACK = ("127.0.0.1", "localhost", "[::1]", "::1")


@rule("secret-in-sight")
def secret_in_sight(case: Case) -> Found | None:
    """Values that come from the shell are in sight in the end all the same; but written ones are
    in its history too. The value itself is never shown."""
    env = case.launch.env
    written = [name for name, value in env.items() if value and is_secret_setting(name, value)]
    if written and case.in_docker:
        return Found(f"-e {written[0]}=...")
    if "api-key" in case.flags and case.launch.text("api-key") != "":
        return Found("--api-key ...", fix="VLLM_API_KEY from an --env-file that only you can read")
    return None


@rule("mount-of-the-system")
def mount_of_the_system(case: Case) -> Found | None:
    """In a recipe it is no finding: such a recipe is refused as a whole."""
    for volume in case.launch.volumes:
        # Next to a container of one's own, models are data.
        read_only = volume.read_only or is_for_models(f"{volume.source}/model")
        why = why_refused(volume.source, read_only=read_only)
        if why:
            mode = ":ro" if volume.read_only else ""
            return Found(f"-v {volume.source}:{volume.target}{mode}: {why}")
    return None


@rule("container-owns-the-node")
def container_owns_the_node(case: Case) -> Found | None:
    wide = [f"--cap-add {c}" for c in case.docker("cap-add") if _capability(c) in CAPABILITIES]
    wide += [f"--security-opt {o}" for o in case.docker("security-opt") if "unconfined" in o]
    wide += ["--pid host"] if "host" in case.docker("pid") else []
    wide += ["--privileged"] if case.docker("privileged") else []
    return Found(", ".join(wide)) if wide else None


def _capability(name: str) -> str:
    return name.upper().removeprefix("CAP_")


@rule("open-to-the-network")
def open_to_the_network(case: Case) -> Found | None:
    if _has_key(case):
        return None
    host_network = "host" in case.docker("network")
    if case.in_docker and not host_network:
        return _published(case)
    host = case.launch.text("host")
    if host in LOOPBACK:
        return None
    edit = Edit("flag", "host", "127.0.0.1")
    if host in ANY and host:
        return Found(f"--host {host} without a key", edit=edit)
    shown = f"--host {host}" if host else "no --host: every address"
    return Found(f"{shown}, without a key", severity="info", edit=edit)


def _published(case: Case) -> Found | None:
    for port in case.docker("publish"):
        address, inner = _address(port)
        if address in ANY:
            edit = Edit("docker", "publish", f"127.0.0.1:{inner}", replaces=port)
            return Found(f"-p {port} without a key", edit=edit)
    return None


def _address(port: str) -> tuple[str, str]:
    """Split `0.0.0.0:8002:8000` into address and ports; the address may be missing."""
    plain, _, _ = port.partition("/")
    found = re.fullmatch(r"(?:(?P<address>\[[^\]]*\]|[^:]*):)?(?P<rest>[\d-]*:[\d-]+)", plain)
    if found is None:
        return ("", f"{plain}:{plain}") if plain.isdigit() else ("?", plain)
    return found["address"] or "", found["rest"]


def _has_key(case: Case) -> bool:
    in_env = any("VLLM_API_KEY" in name for name in case.launch.env)
    return in_env or "api-key" in case.flags or bool(case.docker("env-file"))


@rule("pair-without-host-network")
def without_host_network(case: Case) -> Found | None:
    given = case.docker("network")
    return Found(f"--network {given[0]}" if given else "no --network host")


@rule("logind-removes-ipc")
def removed_ipc(case: Case) -> Found | None:
    """Only logind knows the node's users: of a name in the image nothing is said."""
    wrong = next((user for user in case.docker("user") if _logs_in(user.partition(":")[0])), None)
    return Found(f"--user {wrong} with --ipc host") if wrong else None


def _logs_in(user: str) -> bool:
    """Return True for a uid that logind takes for a person's, or the shell's own user."""
    if user.isascii() and user.isdigit():
        return int(user) > SYSTEM_UID_MAX
    return user in OWN_UID


@rule("pair-without-memlock")
def without_memlock(case: Case) -> Found | None:
    limits = [limit.replace(" ", "") for limit in case.docker("ulimit")]
    if any(limit.startswith("memlock=-1") for limit in limits):
        return None
    given = [limit for limit in limits if limit.startswith("memlock=")]
    edit = Edit("docker", "ulimit", "memlock=-1", replaces=given[0] if given else None)
    shown = f"--ulimit {given[0]}" if given else "no --ulimit memlock=-1"
    return Found(shown, edit=edit)


# Rules on two nodes that serve together.

OWN = ("VLLM_HOST_IP", "NCCL_SOCKET_IFNAME", "GLOO_SOCKET_IFNAME")
"""What each node sets to its own fabric address or interface."""

FIND_OR_FAIL = ("NCCL_SOCKET_IFNAME", "GLOO_SOCKET_IFNAME", "TP_SOCKET_IFNAME")
"""Variables that name an interface, without which the ranks do not start."""

_NGC = re.compile(r"nvcr\.io/nvidia/vllm:(\d+)\.(\d+)")


@rule("tp-without-executor")
def tp_without_executor(case: Case) -> Found | None:
    backend = case.launch.text("distributed-executor-backend")
    nodes = case.launch.number("nnodes") or 1
    if case.launch.tp < 2 or backend == "ray" or nodes >= case.launch.tp:
        return None
    shown = f" with {backend}" if backend else ""
    return Found(f"--tensor-parallel-size {case.launch.tp}{shown} on one GPU")


@rule("image-without-ray")
def image_without_ray(case: Case) -> Found | None:
    launch = case.launch
    backend = launch.executor or launch.text("distributed-executor-backend")
    if backend != "ray" or launch.dockerfile:
        return None
    ngc = _NGC.match(case.image)
    since = ngc is not None and (int(ngc[1]), int(ngc[2])) >= (26, 5)
    official = case.image.partition(":")[0] == "vllm/vllm-openai"
    return Found(f"image {case.image}, nodes joined by Ray") if since or official else None


@rule("nccl-one-twin")
def one_twin(case: Case) -> Found | None:
    value = case.launch.env.get("NCCL_IB_HCA", "")
    if not value or "$" in value or value.startswith("^"):
        return None
    names = [part.partition(":")[0] for part in value.lstrip("=").split(",") if part]
    if len(names) != 1 or not names[0].startswith(("rocep1", "roceP2")):
        return None
    port = names[0].removeprefix("roceP2p1").removeprefix("rocep1")
    both = f"rocep1{port},roceP2p1{port}"
    return Found(
        f"NCCL_IB_HCA={value}", edit=Edit("env", "NCCL_IB_HCA", both), fix=f"NCCL_IB_HCA={both}"
    )


@rule("pair-environment")
def pair_environment(case: Case) -> Found | None:
    missing = [name for name in OWN if name not in case.launch.env]
    return Found("no " + ", ".join(missing)) if missing else None


@rule("interface-not-found")
def interface_not_found(case: Case) -> Found | None:
    """Judge where the nodes' interfaces are known; `spark-cluster up` gives each node its own."""
    serving = case.facts[: max(case.launch.nodes, case.launch.tp)]
    for variable in FIND_OR_FAIL:
        wanted = case.launch.env.get(variable, "")
        lacking = [f for f in serving if f.interfaces and not _has_interface(f, wanted)]
        if lacking:
            names = ", ".join(facts.hostname or "a node" for facts in lacking)
            links = dict.fromkeys(
                hca.interface for facts in lacking for hca in facts.hcas if hca.up
            )
            seen = f"; of the link: {', '.join(links)}" if links else ""
            return Found(f"{variable}={wanted}, not an interface of {names}{seen}")
    return None


def _has_interface(facts: Facts, wanted: str) -> bool:
    """Return whether a variable finds an interface on a node.

    A list of names; to NCCL a name is a prefix unless `=` stands before them, and `^` takes those
    that are not named, which always leaves some. To say no must be certain, so a prefix does.
    """
    if not wanted or "$" in wanted or wanted.startswith("^"):
        return True
    names = tuple(name for name in wanted.removeprefix("=").split(",") if name)
    return any(interface.name.startswith(names) for interface in facts.interfaces)

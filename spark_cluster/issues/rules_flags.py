"""Rules on flags, variables and containers: what contradicts, is not pinned, or opens the node."""

from __future__ import annotations

import difflib
import re
from collections.abc import Mapping
from typing import Any

from packaging.specifiers import SpecifierSet

from spark_cluster.config.engines import MOST_FLAGS, dialect
from spark_cluster.config.facts import Facts
from spark_cluster.config.recipe import is_for_models, why_refused
from spark_cluster.config.secret import is_secret_setting
from spark_cluster.issues.entries import Edit, Severity
from spark_cluster.issues.rules import Case, RuleFinding, rule, written
from spark_cluster.models.naming import table
from spark_cluster.node.processes import SYSTEM_UID_MAX

MOVING = re.compile(
    r"^(?:latest|main|master|dev|stable|nightly)(?:[-_](?:arm64|aarch64|cu\d+|tf5))*$"
)
"""Tags that name whatever is newest."""

COMMIT = re.compile(r"[0-9a-f]{40}$")
"""A revision that cannot move."""

SITE = re.compile(r"/(?:dist|site)-packages/vllm/.+\.py$")
KNOWN_SITE = {"vllm/vllm-openai": "/usr/local/lib/python3.12/dist-packages/vllm/"}
"""Where images keep vLLM (source: muninn-gemma4-26b)."""

_CLONE = re.compile(r"git clone\b[^&|;\n]*vllm")
_COMMIT = re.compile(r"\b[0-9a-f]{7,40}\b|git checkout|--branch[ =]v?\d|--revision|-b v\d")
_COMPILATION = ("compilation-config", "cudagraph-capture-sizes", "max-cudagraph-capture-size")
FIRST_START_S = 600
"""A first start compiles for about five minutes (Gemma-4-31B NVFP4 on a single DGX Spark)."""


@rule("image-not-pinned")
def image_not_pinned(case: Case) -> RuleFinding | None:
    launch = case.launch
    if not launch.image or launch.digest or launch.dockerfile:
        return None
    folder, _, name = launch.image.rpartition("/")
    _, _, tag = name.partition(":")
    if not folder and tag and not MOVING.match(tag):
        return None  # a name without a registry: an image of one's own
    moves = not tag or MOVING.match(tag)
    found = f"image {launch.image}" + ("" if tag else ", which means :latest")
    return RuleFinding(found, severity="warning" if moves else "info")


@rule("command-given-twice")
def given_twice(case: Case) -> RuleFinding | None:
    if not case.launch.given_twice:
        return None
    return RuleFinding(f"image {case.image}, then `vllm serve`")


@rule("unknown-flag")
def unknown_flag(case: Case) -> RuleFinding | None:
    """A flag that no release has but one of nearly that name, or that came later or went earlier
    than the release that is started, or than the newest where that is not known.

    Of a build by someone else less is certain.
    """
    told = [
        found for flag in sorted(case.flags)[:MOST_FLAGS] if (found := _why_unknown(flag, case))
    ]
    if not told:
        return None
    is_certain = not case.built_by_owner and any(one.severity == "error" for one in told)
    return RuleFinding(
        "; ".join(one.what for one in told),
        severity="error" if is_certain else "warning",
        edit=next((one.edit for one in told if one.edit), None),
        fix="; ".join(one.fix for one in told if one.fix),
    )


def _why_unknown(flag: str, case: Case) -> RuleFinding | None:
    """Why the engine does not take a flag; None where it does, or where nothing is known."""
    read = table(f"{case.launch.engine}_options", "issues")
    flag = dialect(case.launch.engine).own(flag)
    name = flag.partition(".")[0].replace("_", "-").removeprefix("no-")
    if name in read["options"]:
        text = case.outside(f"--{flag}", read["options"][name])
        return _flag_outside(flag, text, read["instead"].get(flag, {}), case) if text else None
    known = (*read["options"], *read["beside"])
    if len(name) < 3 or any(one.startswith(name) for one in known):
        return None  # a short form, one of other builds, or an abbreviation, which argparse takes
    near = difflib.get_close_matches(name, read["options"], n=1, cutoff=0.88)
    if near:
        return RuleFinding(f"--{flag} is not known: --{near[0]} is", severity="error")
    was_read = SpecifierSet(read["options_of"], prereleases=False)
    is_read = case.version is not None and case.version in was_read
    text = f"--{flag} is in no release that was read ({read['options_of']})"
    return RuleFinding(text, severity="error") if is_read and not case.built_by_owner else None


def _flag_outside(flag: str, text: str, instead: Mapping[str, Any], case: Case) -> RuleFinding:
    """Return the finding on a flag that the release does not have.

    Args:
        instead: what the engine's own source has in its place: the flag `to` which its value goes,
            or the one `value`; whether it is safe to `drop`; what else there is to `say`.
    """
    to, fix, edit = instead.get("to"), instead.get("say", ""), None
    if instead.get("drop") or to in case.flags:
        edit = Edit("flag", flag, None)
        fix = f"leave --{flag} out: {fix or f'--{to} is given'}"
    elif to:
        edit = Edit("flag", to, instead.get("value", case.flags.get(flag)), replaces=flag)
        fix = written(f"--{to}", edit.value)
    known = case.version is not None and not case.version.is_prerelease
    return RuleFinding(text, severity="error" if known else "warning", edit=edit, fix=fix)


PLUGINS = {
    "tool-call-parser": "tool-parser-plugin",
    "reasoning-parser": "reasoning-parser-plugin",
}
"""Flags to which another one adds values."""

FEW = 8
"""Values that a finding lists."""

_UNFILLED = re.compile(r"[$<{]")
"""In a value that the shell or somebody else's template fills in."""


@rule("wrong-flag-value")
def wrong_flag_value(case: Case) -> RuleFinding | None:
    """A value that no release of the engine takes, or none but others than the one that is started.

    Where the release is not known, or someone else built or patched it, less is certain.
    """
    given = {flag: value for flag, value in case.flags.items() if isinstance(value, str)}
    given = {flag: value for flag, value in given.items() if PLUGINS.get(flag) not in case.flags}
    if method := case.launch.speculative.get("method"):
        given["speculative-config.method"] = str(method)
    told = [text for pair in given.items() if (text := _why_refused(*pair, case))]
    if not told:
        return None
    is_patched = any(SITE.search(volume.target) for volume in case.launch.volumes)
    is_certain = case.version is not None and not case.built_by_owner and not is_patched
    return RuleFinding("; ".join(told), severity="error" if is_certain else "warning")


def _why_refused(flag: str, value: str, case: Case) -> str:
    """Why the engine does not take a value of a flag; empty as for a flag."""
    read = table(f"{case.launch.engine}_options", "issues")
    flag = dialect(case.launch.engine).own(flag)
    was_read = SpecifierSet(read["values_of"], prereleases=True)
    if case.version is not None and case.version not in was_read:
        return ""
    taken = {_plain(one): (one, span) for one, span in read["values"].get(flag, {}).items()}
    if not taken or _UNFILLED.search(value):
        return ""
    if found := taken.get(_plain(value)):
        return case.outside(f"--{flag} {value}", found[1])
    near = difflib.get_close_matches(_plain(value), taken, n=1, cutoff=0.75)
    if near:
        return f"--{flag} {value} is not known: {taken[near[0]][0]} is"
    few = ", ".join(one for one, _ in taken.values()) if len(taken) <= FEW else "see its --help"
    return f"--{flag} {value} is not known ({few})"


@rule("variable-not-read")
def variable_not_read(case: Case) -> RuleFinding | None:
    """A variable of vLLM that the release does not have: it says so in its log and goes on."""
    read = table("vllm_options", "issues")["variables"]
    told = []
    for name in case.launch.env:
        if name in read and case.version is not None:
            told.append(case.outside(name, read[name]))
        elif name in read or not name.startswith("VLLM_"):
            continue  # such as LLM_API_KEY of the author's own
        elif near := difflib.get_close_matches(name, read, n=1, cutoff=0.9):
            told.append(f"{name} is not known: {near[0]} is")
    what = "; ".join(filter(None, told))
    severity: Severity = "info" if case.built_by_owner else "warning"
    return RuleFinding(what, severity=severity) if what else None


def _plain(value: str) -> str:
    """Return a value as vLLM compares the names of kernels."""
    return value.lower().replace("-", "_")


@rule("revision-not-pinned")
def revision_not_pinned(case: Case) -> RuleFinding | None:
    moving = [f"{name} at {r}" for name, r in case.launch.revisions.items() if not COMMIT.match(r)]
    return RuleFinding(", ".join(moving)) if moving else None


@rule("image-overlay-not-pinned")
def overlay_not_pinned(case: Case) -> RuleFinding | None:
    text = case.launch.dockerfile.replace("\\\n", " ")
    clone = _CLONE.search(text)
    if clone is None or _COMMIT.search(text[clone.start() :]):
        return None
    return RuleFinding(clone[0].strip()[:80])


@rule("patch-path")
def patch_path(case: Case) -> RuleFinding | None:
    place = KNOWN_SITE.get(case.image.partition(":")[0])
    patches = [v.target for v in case.launch.volumes if SITE.search(v.target)]
    wrong = [target for target in patches if place and not target.startswith(place)]
    return RuleFinding(f"{wrong[0]}; {case.image} has vLLM in {place}") if wrong else None


@rule("patched-file")
def patched_file(case: Case) -> RuleFinding | None:
    """A patch fits one version: with an image that moves it is known to fail."""
    patches = [v for v in case.launch.volumes if SITE.search(v.target)]
    if not patches or case.launch.digest:
        return None
    _, _, tag = case.image.rpartition("/")[2].partition(":")
    moves = bool(case.image) and (not tag or MOVING.match(tag) is not None)
    found = f"{patches[0].source.rpartition('/')[2]} over {patches[0].target.rpartition('/')[2]}"
    shown = f"{found}; {case.image or 'the image'} is not pinned"
    return RuleFinding(shown, severity="error" if moves else "info")


@rule("tool-choice-without-parser")
def tool_choice_without_parser(case: Case) -> RuleFinding | None:
    known = case.family.startswith("gemma4")
    edit = Edit("flag", "tool-call-parser", "gemma4") if known else None
    return RuleFinding("--enable-auto-tool-choice alone", edit=edit)


@rule("eager-and-compilation")
def eager_and_compilation(case: Case) -> RuleFinding | None:
    given = [flag for flag in _COMPILATION if flag in case.flags]
    given += [flag for flag in ("O", "cc") if flag in case.flags]
    if not given:
        return None
    shown = ", ".join(f"--{flag}" for flag in given)
    return RuleFinding(f"--enforce-eager with {shown}", edit=Edit("flag", given[0], None))


@rule("batched-tokens-below-seqs")
def batched_below_seqs(case: Case) -> RuleFinding | None:
    batched, seqs = case.launch.number("max-num-batched-tokens"), case.launch.number("max-num-seqs")
    if batched is None or seqs is None:
        return None
    each = 1 + case.launch.drafted_tokens
    if batched >= seqs * each:
        return None
    need = int(seqs * each)
    found = f"--max-num-batched-tokens {batched:g} for {seqs:g} requests of {each} tokens a step"
    return RuleFinding(
        found,
        severity="error" if batched < seqs else "warning",
        edit=Edit("flag", "max-num-batched-tokens", max(need, 2048)),
    )


@rule("batched-tokens-below-context")
def batched_below_context(case: Case) -> RuleFinding | None:
    batched = case.launch.number("max-num-batched-tokens")
    length = case.launch.number("max-model-len")
    if batched is None or length is None or batched >= length:
        return None
    return RuleFinding(f"--max-num-batched-tokens {batched:g}, --max-model-len {length:g}")


@rule("compile-cache-lost")
def compile_cache_lost(case: Case) -> RuleFinding | None:
    root = case.launch.env.get("VLLM_CACHE_ROOT", "/root/.cache/vllm")
    kept = any(f"{root}/".startswith(v.target.rstrip("/") + "/") for v in case.launch.volumes)
    return None if kept else RuleFinding(f"no volume holds {root}")


@rule("ready-wait-short")
def ready_wait_short(case: Case) -> RuleFinding | None:
    wait = case.launch.ready_timeout_s
    if wait is None or wait >= FIRST_START_S:
        return None
    return RuleFinding(f"ready_timeout_s: {wait:g}")


@rule("moe-setting-on-dense")
def moe_setting_on_dense(case: Case) -> RuleFinding | None:
    flags = [name for name in case.flags if name == "moe-backend"]
    env = [n for n in case.launch.env if "MOE" in n.split("_") and n.startswith("VLLM_")]
    seen = [written(f"--{name}", case.flags[name]) for name in flags]
    seen += [written(name, case.launch.env[name]) for name in env]
    if not seen:
        return None
    kind, name = ("flag", flags[0]) if flags else ("env", env[0])
    edit = Edit("flag" if kind == "flag" else "env", name, None)
    return RuleFinding(", ".join(seen), edit=edit, fix=f"leave {' and '.join(flags + env)} out")


# Rules on containers run by hand; for a recipe `up` takes care of all of it.

CAPABILITIES = ("ALL", "SYS_ADMIN", "SYS_MODULE", "SYS_RAWIO", "SYS_PTRACE", "DAC_READ_SEARCH")
"""With any of them a container is root on the node."""

OWN_UID = ("$(id -u)", "`id -u`", "$UID", "${UID}")
"""How a shell writes the uid of who types the command."""

ANY = ("", "0.0.0.0", "::", "[::]")  # noqa: S104  (what is looked for, not what is bound)
LOOPBACK = ("127.0.0.1", "localhost", "[::1]", "::1")


@rule("secret-in-sight")
def secret_in_sight(case: Case) -> RuleFinding | None:
    """Values that come from the shell are in sight in the end all the same; but written ones are
    in its history too. The value itself is never shown."""
    env = case.launch.env
    written = [name for name, value in env.items() if value and is_secret_setting(name, value)]
    if written and case.in_docker:
        return RuleFinding(f"-e {written[0]}=...")
    if "api-key" in case.flags and case.launch.text("api-key") != "":
        return RuleFinding(
            "--api-key ...", fix="VLLM_API_KEY from an --env-file that only you can read"
        )
    return None


@rule("mount-of-the-system")
def mount_of_the_system(case: Case) -> RuleFinding | None:
    """In a recipe it is no finding: such a recipe is refused as a whole."""
    for volume in case.launch.volumes:
        # Next to a container of one's own, models are data.
        read_only = volume.read_only or is_for_models(f"{volume.source}/model")
        why = why_refused(volume.source, read_only=read_only)
        if why:
            mode = ":ro" if volume.read_only else ""
            return RuleFinding(f"-v {volume.source}:{volume.target}{mode}: {why}")
    return None


@rule("container-owns-the-node")
def container_owns_the_node(case: Case) -> RuleFinding | None:
    wide = [f"--cap-add {c}" for c in case.docker("cap-add") if _capability(c) in CAPABILITIES]
    wide += [f"--security-opt {o}" for o in case.docker("security-opt") if "unconfined" in o]
    wide += ["--pid host"] if "host" in case.docker("pid") else []
    wide += ["--privileged"] if case.docker("privileged") else []
    return RuleFinding(", ".join(wide)) if wide else None


def _capability(name: str) -> str:
    return name.upper().removeprefix("CAP_")


@rule("open-to-the-network")
def open_to_the_network(case: Case) -> RuleFinding | None:
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
        return RuleFinding(f"--host {host} without a key", edit=edit)
    shown = f"--host {host}" if host else "no --host: every address"
    return RuleFinding(f"{shown}, without a key", severity="info", edit=edit)


def _published(case: Case) -> RuleFinding | None:
    for port in case.docker("publish"):
        address, inner = _address(port)
        if address in ANY:
            edit = Edit("docker", "publish", f"127.0.0.1:{inner}", replaces=port)
            return RuleFinding(f"-p {port} without a key", edit=edit)
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


@rule("logind-removes-ipc")
def removed_ipc(case: Case) -> RuleFinding | None:
    """Only logind knows the node's users: of a name in the image nothing is said."""
    wrong = next((user for user in case.docker("user") if _logs_in(user.partition(":")[0])), None)
    return RuleFinding(f"--user {wrong} with --ipc host") if wrong else None


def _logs_in(user: str) -> bool:
    """Return True for a uid that logind takes for a person's, or the shell's own user."""
    if user.isascii() and user.isdigit():
        return int(user) > SYSTEM_UID_MAX
    return user in OWN_UID


@rule("pair-without-memlock")
def without_memlock(case: Case) -> RuleFinding | None:
    limits = [limit.replace(" ", "") for limit in case.docker("ulimit")]
    if any(limit.startswith("memlock=-1") for limit in limits):
        return None
    given = [limit for limit in limits if limit.startswith("memlock=")]
    edit = Edit("docker", "ulimit", "memlock=-1", replaces=given[0] if given else None)
    shown = f"--ulimit {given[0]}" if given else "no --ulimit memlock=-1"
    return RuleFinding(shown, edit=edit)


# Rules on two nodes that serve together.

OWN = ("VLLM_HOST_IP", "NCCL_SOCKET_IFNAME", "GLOO_SOCKET_IFNAME")
"""What each node sets to its own fabric address or interface."""

FIND_OR_FAIL = ("NCCL_SOCKET_IFNAME", "GLOO_SOCKET_IFNAME", "TP_SOCKET_IFNAME")
"""Variables that name an interface, without which the ranks do not start."""

_NGC = re.compile(r"nvcr\.io/nvidia/vllm:(\d+)\.(\d+)")


@rule("tp-without-executor")
def tp_without_executor(case: Case) -> RuleFinding | None:
    backend = case.launch.text("distributed-executor-backend")
    nodes = case.launch.number("nnodes") or 1
    if case.launch.tp < 2 or backend == "ray" or nodes >= case.launch.tp:
        return None
    shown = f" with {backend}" if backend else ""
    return RuleFinding(f"--tensor-parallel-size {case.launch.tp}{shown} on one GPU")


@rule("image-without-ray")
def image_without_ray(case: Case) -> RuleFinding | None:
    launch = case.launch
    backend = launch.executor or launch.text("distributed-executor-backend")
    if backend != "ray" or launch.dockerfile:
        return None
    ngc = _NGC.match(case.image)
    since = ngc is not None and (int(ngc[1]), int(ngc[2])) >= (26, 5)
    official = case.image.partition(":")[0] == "vllm/vllm-openai"
    return RuleFinding(f"image {case.image}, nodes joined by Ray") if since or official else None


@rule("nccl-one-twin")
def one_twin(case: Case) -> RuleFinding | None:
    value = case.launch.env.get("NCCL_IB_HCA", "")
    if not value or "$" in value or value.startswith("^"):
        return None
    names = [part.partition(":")[0] for part in value.lstrip("=").split(",") if part]
    if len(names) != 1 or not names[0].startswith(("rocep1", "roceP2")):
        return None
    port = names[0].removeprefix("roceP2p1").removeprefix("rocep1")
    both = f"rocep1{port},roceP2p1{port}"
    return RuleFinding(
        f"NCCL_IB_HCA={value}", edit=Edit("env", "NCCL_IB_HCA", both), fix=f"NCCL_IB_HCA={both}"
    )


@rule("pair-environment")
def pair_environment(case: Case) -> RuleFinding | None:
    missing = [name for name in OWN if name not in case.launch.env]
    return RuleFinding("no " + ", ".join(missing)) if missing else None


@rule("interface-not-found")
def interface_not_found(case: Case) -> RuleFinding | None:
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
            return RuleFinding(f"{variable}={wanted}, not an interface of {names}{seen}")
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

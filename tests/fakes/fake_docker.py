"""docker over images, a registry and containers that are given as data.

`images` ref to what inspect tells; `registry` ref to image or to the text of a failure; `archives`
name of a file to {ref: image}; `behaviour` container to {dies: status, log, refuses: text};
`manifests` ref to what the registry tells of it. `pids` of a container are its processes. `store`
is the driver of images that `info` names; `unreachable` is the text with which all fails.
"""

import hashlib
import json
import re
import sys
from pathlib import Path
from typing import Any

from common import Refuse, options

RUN_FLAGS = ("-d", "--init")
RUN_VALUED = (
    *("--name", "--pull", "--restart", "--stop-timeout", "--network", "--ipc", "--pid", "--gpus"),
    *("--shm-size", "--user", "--workdir", "--entrypoint", "--device", "--cap-add", "--ulimit"),
    *("--mount", "--label", "--env", "--cap-drop", "--security-opt"),
    "--device-cgroup-rule",
)
LABELS_OFF = ("label=disable",)
"""Docker adds it by itself where containers share ipc or pid."""


def main(state: dict[str, Any], root: Path, command: str, argv: list[str]) -> None:
    for key in ("images", "registry", "archives", "containers", "behaviour", "manifests"):
        state.setdefault(key, {})
    if "unreachable" in state:
        raise Refuse(1, state["unreachable"])
    action, *rest = argv
    if rest and rest[0] == "inspect":
        {"image": inspect, "container": inspect, "manifest": manifest}[action](
            state, action, rest[1:]
        )
        return
    images = (pull, load, save, tag, build, image)
    containers = (run, start, stop, rm, logs, top, container, update)
    known = (*images, *containers, version, info)
    {one.__name__: one for one in known}[action](state, root, rest)


def inspect(state: dict[str, Any], kind: str, rest: list[str]) -> None:
    found, (name,) = options(rest, (), ("-f", "--format"))
    things = state["images" if kind == "image" else "containers"]
    if name not in things:
        sys.stdout.write("[]\n")
        raise Refuse(1, f"Error response from daemon: No such {kind}: {name}")
    if found:
        ((shown,),) = found.values()
        print(things[name][re.fullmatch(r"\{\{\.(Id|Image)\}\}", shown)[1]])
        return
    thing = things[name]
    if kind == "container" and thing.get("left") is not None:
        if thing["left"] == 0:
            restarts = thing["restart"] != "no"
            thing["State"] = {"Status": "restarting" if restarts else "exited", "ExitCode": 3}
        thing["left"] -= 1
    print(json.dumps([thing]))


def manifest(state: dict[str, Any], _kind: str, rest: list[str]) -> None:
    _, (ref,) = options(rest, ("--verbose",), ())
    held = state["registry"].get(ref)
    if isinstance(held, str):
        raise Refuse(1, held)
    if held is None and ref not in state["manifests"]:
        raise Refuse(1, f"no such manifest: {ref}")
    print(state["manifests"].get(ref, "{}"))


def info(state: dict[str, Any], _root: Path, rest: list[str]) -> None:
    if rest == ["--format", "{{.DockerRootDir}}"]:
        return  # the room on this machine's own disk is no matter
    assert rest == ["--format", "{{json .DriverStatus}}"]
    print(json.dumps([["driver-type", state.get("store", "overlay2")]]))


def container(state: dict[str, Any], _root: Path, rest: list[str]) -> None:
    action, *words = rest
    assert action == "ls", rest
    found, _ = options(words, ("--all", "--quiet"), ("--filter", "--format"))
    assert ("--quiet" in found) is (found.get("--format") != ["{{.Names}}"]), rest
    for name, one in state["containers"].items():
        wanted = (text.partition("=") for text in found["--filter"])
        labels = one["Config"]["Labels"]
        known = {"label": labels.__contains__, "name": lambda text, own=name: re.search(text, own)}
        if all(known[kind](text) for kind, _, text in wanted):
            print(one["Id"] if "--quiet" in found else name)


def version(_state: dict[str, Any], _root: Path, rest: list[str]) -> None:
    assert rest == ["--format", "{{.Server.Version}}"]
    print("28.3.3")


def update(state: dict[str, Any], _root: Path, rest: list[str]) -> None:
    found, (name,) = options(rest, (), ("--restart",))
    state["containers"][name]["restart"] = found["--restart"][0]


def top(state: dict[str, Any], _root: Path, rest: list[str]) -> None:
    name, *columns = rest
    assert columns == ["-eo", "pid"], rest
    known = state["containers"].get(name)
    if known is None or known["State"]["Status"] != "running":
        raise Refuse(1, f"Error response from daemon: container {name} is not running")
    print("PID", *known.get("pids", []), sep="\n")


def pull(state: dict[str, Any], _root: Path, rest: list[str]) -> None:
    _, (ref,) = options(rest, (), ("--platform",))
    found = state["registry"].get(ref)
    if found is None:
        raise Refuse(
            1, f"Error response from daemon: manifest for {ref} not found: manifest unknown"
        )
    if isinstance(found, str):
        raise Refuse(1, found)
    for layer in ("0123456789ab", "ba9876543210"):
        print(f"{layer}: Pulling fs layer\n{layer}: Download complete\n{layer}: Pull complete")
    state["images"][ref] = found


def load(state: dict[str, Any], _root: Path, rest: list[str]) -> None:
    found, _ = options(rest, (), ("-i",))
    if found:
        held = state["archives"].get(Path(found["-i"][0]).name)
    else:
        held = json.loads(sys.stdin.read())
    if held is None:
        raise Refuse(1, "open /x: unrecognized image format")
    for ref, one in held.items():
        print(f"Loaded image: {ref}")
        state.setdefault("unnamed", []).append(state["images"].get(ref, one))
        state["images"][ref] = one


def save(state: dict[str, Any], _root: Path, rest: list[str]) -> None:
    (ref,) = rest
    print(json.dumps({ref: {**state["images"][ref], "RepoDigests": []}}))


def tag(state: dict[str, Any], _root: Path, rest: list[str]) -> None:
    known = {one["Id"]: one for one in (*state["images"].values(), *state.get("unnamed", []))}
    state["images"][rest[1]] = (known | state["images"])[rest[0]]


def image(state: dict[str, Any], _root: Path, rest: list[str]) -> None:
    if rest[0] == "ls":
        assert rest[1:] == ["--no-trunc", "--format", "{{.ID}} {{.Repository}}:{{.Tag}}"], rest
        for ref, one in state["images"].items():
            print(one["Id"], ref)
    else:
        assert rest[:2] == ["rm", "--"], rest
        for ref in rest[2:]:
            del state["images"][ref]


def build(state: dict[str, Any], _root: Path, rest: list[str]) -> None:
    found, (context,) = options(rest, ("--force-rm",), ("--network", "--label", "--tag", "--file"))
    assert context == "-" or found["--file"] == ["-"]
    base, *steps = sys.stdin.read().splitlines()
    name = base.split()[1]
    print(f"Step 1/{len(steps) + 1} : {base}")
    if name not in state["images"]:
        raise Refuse(1, f"pull access denied for {name}")
    for number, step in enumerate(steps, start=2):
        print(f"Step {number}/{len(steps) + 1} : {step}")
        if step.startswith("COPY") and (context == "-" or not copied(Path(context), step)):
            raise Refuse(1, "COPY failed: no source files were specified")
        if step == "RUN false":
            raise Refuse(1, "The command '/bin/sh -c false' returned a non-zero code: 1")
    state["made"] = state.get("made", 0) + 1
    labels = dict(item.split("=", 1) for item in found["--label"])
    made = {"Id": f"sha256:{state['made']:064x}", "Config": {"Labels": labels}}
    state["images"][found["--tag"][0]] = {**state["images"][name], **made}


def copied(context: Path, step: str) -> bool:
    """Return whether all sources of a COPY in JSON are in the context."""
    *sources, _ = json.loads(step.removeprefix("COPY "))
    return all((context / source).is_file() for source in sources)


def run(state: dict[str, Any], root: Path, rest: list[str]) -> None:
    found, (ref, *command) = options(rest, RUN_FLAGS, RUN_VALUED)
    name = found["--name"][0]
    if name in state["containers"]:
        raise Refuse(125, f'docker: Conflict. The container name "/{name}" is already in use')
    behaviour = state["behaviour"].get(name, {})
    mounts = [dict(p.partition("=")[::2] for p in m.split(",")) for m in found.get("--mount", [])]
    for mount in mounts:
        if not (root / mount["source"].lstrip("/")).exists():
            raise Refuse(125, f"docker: bind source path does not exist: {mount['source']}")
    labels = dict(item.split("=", 1) for item in found.get("--label", []))
    (pid,) = found.get("--pid", [""])
    owner = pid.removeprefix("container:")
    if owner != pid:  # Docker keeps its id
        if owner not in state["containers"]:
            raise Refuse(125, f"docker: Error response from daemon: No such container: {owner}")
        pid = f"container:{state['containers'][owner]['Id']}"
    shares = [one for one in (*found.get("--ipc", []), pid) if one]
    state["made"] = state.get("made", 0) + 1
    state["containers"][name] = {
        "Id": hashlib.sha256(str(state["made"]).encode()).hexdigest(),
        "Image": state["images"][ref]["Id"],
        "RestartCount": 0,
        "State": {"Status": "running", "ExitCode": 0},
        "Config": {"Labels": labels, "Env": found.get("--env", []), "Cmd": command},
        "HostConfig": {
            "Privileged": False,
            "PidMode": pid,
            "CapAdd": [f"CAP_{one}" for one in found.get("--cap-add", [])] or None,
            "CapDrop": found.get("--cap-drop"),
            "DeviceCgroupRules": found.get("--device-cgroup-rule"),
            "SecurityOpt": [*found.get("--security-opt", []), *LABELS_OFF[: len(shares)]],
        },
        "Mounts": mounts,
        "restart": found["--restart"][0],
        "left": 1 if "dies" in behaviour else None,
    }
    if "refuses" in behaviour:
        state["containers"][name]["State"] = {"Status": "created", "ExitCode": 127}
        raise Refuse(127, f"docker: Error response from daemon: {behaviour['refuses']}")
    print(state["containers"][name]["Id"])


def stop(state: dict[str, Any], _root: Path, rest: list[str]) -> None:
    _, (name,) = options(rest, (), ("-t",))
    state["containers"][name]["State"] |= {"Status": "exited", "ExitCode": 143}
    state["containers"][name]["left"] = None


def start(state: dict[str, Any], _root: Path, rest: list[str]) -> None:
    (name,) = rest
    if refuses := state["behaviour"].get(name, {}).get("refuses"):
        raise Refuse(1, f"Error response from daemon: {refuses}")
    state["started"] = state.get("started", 0) + 1
    at = f"2026-11-20T10:00:{state['started']:02}Z"
    state["containers"][name]["State"] |= {"Status": "running", "ExitCode": 0, "StartedAt": at}


def rm(state: dict[str, Any], _root: Path, rest: list[str]) -> None:
    _, (name,) = options(rest, ("-f",), ())
    del state["containers"][name]


def logs(state: dict[str, Any], _root: Path, rest: list[str]) -> None:
    _, (name,) = options(rest, ("--timestamps",), ("--tail",))
    if name not in state["containers"]:
        raise Refuse(1, f"Error response from daemon: No such container: {name}")
    sys.stderr.write(state["behaviour"].get(name, {}).get("log", ""))

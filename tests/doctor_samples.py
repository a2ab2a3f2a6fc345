"""Answers of two healthy Sparks that serve over their link, from captured texts."""

import copy
import json
import re
import tomllib
from collections.abc import Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

from spark_cluster.config.facts import load_pins
from spark_cluster.doctor.observations import Observations
from spark_cluster.resources import Unit
from spark_cluster.resources.nft_table import normalised

Answer = dict[str, Any]

PARTS = ("commands", "files", "trees", "requests")

PINS = load_pins(Path(__file__).parents[1] / "roles/drivers/pins.json")


@cache
def _read(file: str, number: int) -> dict[str, Any]:
    text = (Path(__file__).parent / "data/doctor" / file).read_text()
    told = {"<n>": number, "<peer>": 3 - number, "<lan>": 2 + number, "<hex>": f"{10 + number:x}"}
    for name, value in told.items():
        text = text.replace(name, str(value))
    return tomllib.loads(text)


def healthy(number: int) -> dict[str, Any]:
    """Return what the file says of node 1 or 2; not to be changed."""
    return _read("healthy.toml", number)


IDS = {"spark-vllm": "a" * 64, "spark-ray": "b" * 64}
IMAGE: str = healthy(1)["container"]["Image"]
STARTED: str = healthy(1)["container"]["State"]["StartedAt"]
UNITS: str = healthy(1)["commands"]["units"]
HCAS: str = healthy(1)["commands"]["hcas"]
LOG = (
    "2026-11-20T14:05:33.366956123Z spark1:1674:1871 [0] NCCL INFO NET/IB : Using "
    "[0]rocep1s0f1:1/RoCE [1]roceP2p1s0f1:1/RoCE [RO]; OOB enp1s0f1np1:192.168.177.11<0>\n"
    "2026-11-20T14:05:34.000000001Z spark1:1674:1871 [0] NCCL INFO Channel 00/0 : 0[0] -> 1[0] "
    "[send] via NET/IB/0\n"
    "2026-11-20T14:06:01.100000000Z (Worker_TP0 pid=1674) INFO 11-20 14:06:01 "
    "[default_loader.py:501] Loading weights took 64.02 seconds\n"
    "2026-11-20T14:08:01.200000000Z INFO:     Application startup complete.\n"
)


def ran(text: str, status: int = 0, stderr: str = "") -> dict[str, Any]:
    """A command that ran."""
    return {"status": status, "stdout": text, "stderr": stderr}


def interface(name: str, *addresses: str, mtu: int = 9000, up: bool = True) -> dict[str, Any]:
    """A row of `ip -j addr`."""
    infos = [
        {"family": "inet", "local": a.split("/")[0], "prefixlen": int(a.split("/")[1])}
        for a in addresses
    ]
    flags = ["BROADCAST", "UP", "LOWER_UP"] if up else ["BROADCAST", "UP", "NO-CARRIER"]
    return {"ifname": name, "mtu": mtu, "flags": flags, "addr_info": infos}


def interfaces(number: int) -> list[dict[str, Any]]:
    """Those of node 1 or 2."""
    return [row_of(**row) for row in healthy(number)["interfaces"]]


def row_of(name: str, addresses: Sequence[str] = (), **more: Any) -> dict[str, Any]:
    """Return `interface` of what a file says."""
    return interface(name, *addresses, **more)


def environment(number: int) -> dict[str, str]:
    """The engine's containers on a node, as Docker lists them."""
    return dict(healthy(number)["environment"])


def container(number: int, name: str, *command: str) -> dict[str, Any]:
    """`docker container inspect`, as far as it is read."""
    found = copy.deepcopy(healthy(number)["container"])
    found |= {"Id": IDS[name], "Name": f"/{name}", "Path": command[0], "Args": list(command[1:])}
    found["Config"]["Env"] = [f"{key}={value}" for key, value in environment(number).items()]
    return found


def containers(number: int) -> list[dict[str, Any]]:
    """Ray on both; the server on the first."""
    ray = ["ray", "start", "--block", f"--node-ip-address=192.168.177.{10 + number}"]
    ray += ["--head", "--port=6379"] if number == 1 else ["--address=192.168.177.11:6379"]
    found = [container(number, "spark-ray", *ray)]
    if number == 1:
        serve = ["vllm", "serve", "/srv/models/gemma", "--max-model-len", "32768"]
        serve += ["--tensor-parallel-size", "2", "--enable-auto-tool-choice"]
        found.append(container(number, "spark-vllm", *serve))
    return found


def ray_nodes(*addresses: str, state: str = "ALIVE") -> str:
    """The reply of the dashboard's /api/v0/nodes."""
    nodes = [{"node_ip": address, "state": state} for address in addresses]
    return json.dumps({"result": True, "msg": "", "data": {"result": {"result": nodes}}})


def commands(number: int) -> dict[str, Any]:
    """Answers of the commands of node 1 or 2."""
    told = healthy(number)
    return {
        **{name: ran(text) for name, text in told["commands"].items()},
        **{name: ran(*said) for name, said in told["failed"].items()},
        "tailscale": None,
        "ip": ran(json.dumps(interfaces(number))),
        "containers": ran(json.dumps(containers(number))),
        "images": ran(json.dumps([{"Id": IMAGE, "Architecture": "arm64"}])),
        "logs": ran("==> spark-ray\n" + (f"==> spark-vllm\n{LOG}" if number == 1 else "")),
    }


def requests(number: int) -> dict[str, Any]:
    """Answers of node 1's or 2's own HTTP services: Ray's dashboard is the head's."""
    if number == 1:
        return {"ray": {"status": 200, "body": ray_nodes("192.168.177.11", "192.168.177.12")}}
    return {"ray": {"status": 0, "body": "", "reason": "[Errno 111] Connection refused"}}


def files(number: int) -> dict[str, str | None]:
    """Files of node 1 or 2."""
    told = healthy(number)
    kept = normalised(told["commands"]["firewall"])
    absent = {"reboot_required": None, "reboot_packages": None}
    return {**told["files"], **absent, "firewall_kept": kept}


def trees(number: int) -> dict[str, dict[str, str]]:
    """Trees of node 1 or 2."""
    return dict(healthy(number)["trees"])


def answer(number: int = 1) -> Answer:
    """All that node 1 (the head) or 2 answers."""
    return {
        "commands": commands(number),
        "files": files(number),
        "trees": trees(number),
        "requests": requests(number),
        "machine": healthy(number)["machine"],
    }


def seen(number: int = 1, *, context: dict[str, Any] | None = None, **changes: Any) -> Observations:
    """A node's observations; `changes` replaces answers by their source's name.

    A text for a command is what it printed, a pair (text, status) a failure; `late` has what the
    agent says of commands that hung.
    """
    told = copy.deepcopy(answer(number))
    told["late"] = changes.pop("late", {})
    for name, value in changes.items():
        place = next((told[part] for part in PARTS if name in told[part]),
                     told["machine"])  # fmt: skip
        if place is told["trees"] and value is None:
            place[name] = {}  # as where there is no such folder
        elif place is told["requests"] and isinstance(value, str):
            place[name] = {"status": 200, "body": value}
        else:
            place[name] = _as_ran(value) if place is told["commands"] else value
    options = {"user": "nvidia", "linked": True, "mtu": 9000, "pins": PINS} | (context or {})
    return Observations(f"spark{number}", told, **options)


def _as_ran(value: Any) -> Any:
    if isinstance(value, str):
        return ran(value)
    return ran(*value) if isinstance(value, tuple) else value


def inspected(number: int, name: str, **changes: Any) -> str:
    """The containers of a node as JSON, with one of them changed.

    Args:
        changes: `State__Status` and `State.Status` reach inside.
    """
    found = containers(number)
    for one in found:
        if one["Name"] == f"/{name}":
            for key, value in changes.items():
                *parents, last = re.split(r"__|\.", key)
                place = one
                for parent in parents:
                    place = place[parent]
                place[last] = value
    return json.dumps(found)


def with_env(number: int, name: str, **variables: str | None) -> str:
    """The containers of a node with one's environment changed; None takes a variable away."""
    env = {k: v for k, v in (environment(number) | variables).items() if v is not None}
    return inspected(number, name, Config__Env=[f"{k}={v}" for k, v in env.items()])


def logged(text: str, *, name: str = "spark-vllm", at: str = "2026-11-20T15:00:00.5Z") -> str:
    """The logs of the head with one more line in one container's."""
    other = "spark-ray" if name == "spark-vllm" else "spark-vllm"
    return f"==> {other}\n==> {name}\n{at} {text}\n"


def on_gpus(number: int, **changes: Any) -> Observations:
    """Node 1 or 2 of `lab up --gpus`, which serve together in a virtual environment."""
    address, env = f"10.90.1.{10 + number}", {"VLLM_HOST_IP": f"10.90.1.{10 + number}"}
    ray = ("ray", "start", "--block", f"--node-ip-address={address}")
    units = {"spark-ray": Unit("spark-ray", (*ray, "--head") if number == 1 else ray, env=env)}
    if number == 1:
        serve = ("vllm", "serve", "/srv/models/paris", "--tensor-parallel-size", "2")
        units["spark-vllm"] = Unit("spark-vllm", serve, env=env, labels={"spark-cluster.tp": "2"})
    known = "ActiveState=active\nNRestarts=0\nExecMainStartTimestamp=Wed 2026-11-25 09:02:38 UTC\n"
    file = _read("gpus.toml", number)
    told = {
        **file["answers"],
        **dict.fromkeys(file["silent"]),
        "ip": json.dumps([row_of(**row) for row in file["interfaces"]]),
        **{name: unit.text + known for name, unit in units.items()},
        "ray": ray_nodes("10.90.1.11", "10.90.1.12"),
    }
    context = {"user": "root", "fabric": ("fabric0",)}
    return replace(seen(number, context=context, **{**told, **changes}), node=f"gpu{number}")

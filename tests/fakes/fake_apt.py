"""apt-get, apt-cache, apt-mark, dpkg and dpkg-query over a mirror that is given as data.

`early` has the node's clock be slow, `held` are the names on hold, `mirror` is what update would
find, `lists` what apt knows, `installed` name to status and version.
"""

import sys
import time
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

from common import Refuse, options

GET = "Could not get lock {}. It is held by process 812 (unattended-upgr)"
FRONTEND = "/var/lib/dpkg/lock-frontend"
LISTS = "/var/lib/apt/lists/lock"


def main(state: dict[str, Any], root: Path, command: str, argv: list[str]) -> None:
    for key in ("mirror", "lists", "installed"):
        state.setdefault(key, {})
    commands = {
        "apt-get": apt_get,
        "apt-cache": apt_cache,
        "apt-mark": apt_mark,
        "dpkg": dpkg,
        "dpkg-query": query,
    }
    commands[command](state, root, argv)


def apt_mark(state: dict[str, Any], _root: Path, argv: list[str]) -> None:
    held = state.setdefault("held", [])
    action, *names = argv
    if action == "showhold":
        print("\n".join(held))
        return
    if state.get("locked", 0) > 0:
        state["locked"] -= 1
        raise Refuse(
            2, "dpkg: error: dpkg frontend lock was locked by another process with pid 812"
        )
    for name in names:
        if name not in state["lists"] and name not in state["installed"]:
            raise Refuse(100, f"E: Unable to locate package {name}\nE: No packages found")
    kept = set(held) - set(names)
    state["held"] = sorted(kept | set(names) if action == "hold" else kept)


def query(state: dict[str, Any], _root: Path, argv: list[str]) -> None:
    assert argv[:2] == ["-W", "-f"], argv
    missing = []
    for name in argv[3:]:
        found = state["installed"].get(name)
        if found is None:
            missing.append(name)
            continue
        print(f"{name}\tamd64\t{found['status']} \t{found['version']}")
    if missing:
        raise Refuse(1, "\n".join(f"dpkg-query: no packages found matching {m}" for m in missing))


def dpkg(state: dict[str, Any], _root: Path, argv: list[str]) -> None:
    assert argv == ["--force-confdef", "--force-confold", "--configure", "-a"], argv
    if state.get("broken_for_good"):
        raise Refuse(1, "dpkg: error processing package nvidia-dkms (--configure)")
    state["interrupted"] = False


def apt_cache(state: dict[str, Any], _root: Path, argv: list[str]) -> None:
    if argv[0] == "pkgnames":
        print("\n".join(n for n in state["lists"] if n.startswith(argv[1])))
        return
    assert argv[0] == "policy", argv
    for name in argv[1:]:
        if name not in state["lists"]:
            continue
        versions = state["lists"][name]
        has = state["installed"].get(name, {}).get("version")
        print(
            f"{name}:\n  Installed: {has or '(none)'}\n  Candidate: {(versions or ['(none)'])[0]}"
        )
        print("  Version table:")
        for version in versions:
            print(f" {'***' if version == has else '   '} {version} 500")
            print("        500 http://mirror/debian trixie/main amd64 Packages")


def apt_get(state: dict[str, Any], root: Path, argv: list[str]) -> None:
    flags = (
        *("-y", "--no-install-recommends", "--no-remove", "--allow-downgrades", "--simulate"),
        "--allow-change-held-packages",
    )
    found, rest = options(argv, flags, ("-o",))
    assert found["-o"] == [
        "DPkg::Lock::Timeout=120",
        "Dpkg::Options::=--force-confdef",
        "Dpkg::Options::=--force-confold",
    ]
    action = rest[0]
    more, names = options(rest[1:], flags, ())
    if state.get("interrupted") and action != "update":
        raise Refuse(
            100,
            "E: dpkg was interrupted, you must manually run 'dpkg --configure -a' to correct the "
            "problem. ",
        )
    if state.get("locked", 0) > 0:
        state["locked"] -= 1
        if action == "update":
            said = f"E: {GET.format(LISTS)}\nE: Unable to lock directory /var/lib/apt/lists/"
        else:
            print(f"Waiting for cache lock: {GET.format(FRONTEND)}...\n" * 2)
            said = f"E: Unable to acquire the dpkg frontend lock ({FRONTEND}), is another process"
        raise Refuse(100, said)
    {"update": update, "install": install, "remove": remove}[action](state, root, more, names)


def update(state: dict[str, Any], root: Path, _more: Any, _names: Any) -> None:
    if state.get("early"):  # the node's clock is behind the mirror's
        raise Refuse(
            100,
            "E: Release file for http://mirror/debian/dists/trixie/InRelease is not valid yet "
            "(invalid for another 3d 4h 5min 6s). Updates for this repository will not be applied.",
        )
    if state.get("offline"):
        sys.stderr.write(
            "W: Failed to fetch http://mirror/debian/dists/trixie/InRelease  Temporary failure "
            "resolving 'mirror'\nW: Some index files failed to download. They have been ignored, or"
            " old ones used instead.\n"
        )
        return
    state["lists"] = dict(state["mirror"])
    partial = root / "var/lib/apt/lists/partial"
    partial.mkdir(parents=True, exist_ok=True)
    state["updated"] = time.time()


def install(state: dict[str, Any], _root: Path, more: dict[str, Any], names: list[str]) -> None:
    assert "--no-install-recommends" in more, more
    held = {n for n, p in state["installed"].items() if p["status"].startswith("h")}
    if held & {n.partition("=")[0] for n in names} and "--allow-change-held-packages" not in more:
        raise Refuse(100, "E: Held packages were changed and -y was used without --allow-change-he")
    taken = [r for n in names for r in state.get("conflicts", {}).get(n, [])]
    if taken and "--no-remove" in more:
        print("The following packages will be REMOVED:\n  " + " ".join(taken) + "\nAfter this")
        raise Refuse(100, "E: Packages need to be removed but remove is disabled.")
    for word in names:
        name, _, version = word.partition("=")
        versions = [v for v in state["lists"].get(name, []) if fnmatchcase(v, version or "*")]
        if not versions:
            raise Refuse(100, f"E: Unable to locate package {name}")
        wanted = versions[0]
        if state.get("offline") or wanted not in state["mirror"].get(name, []):
            said = (
                "Temporary failure resolving 'mirror'" if state.get("offline") else "404  Not Found"
            )
            raise Refuse(100, f"E: Failed to fetch http://mirror/pool/{name}.deb  {said}")
        if state.get("full"):
            raise Refuse(100, "E: You don't have enough free space in /var/cache/apt/archives/.")
        status = "iU" if name in state.get("unconfigurable", []) else "ii"
        state["installed"][name] = {"status": status, "version": wanted}


def remove(state: dict[str, Any], _root: Path, more: dict[str, Any], names: list[str]) -> None:
    gone = [n for n in names if n in state["installed"]]
    gone += [d for n in names for d in state.get("needed_by", {}).get(n, [])]
    for name in gone:
        print(f"Remv {name} [1.0]")
        if "--simulate" not in more:
            state["installed"][name]["status"] = "rc"

"""The play that every tool runs: 50 resources, as plain data.

10 directories, 5 copies, 5 templates, 10 lines in files, 2 groups and 3 users (35 that can
change), 10 directory checks and 5 sysctl reads (15 that cannot).
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = "/srv/engine-benchmark"
RESOURCES = 50
CHANGES = 35

DIRECTORIES = [ROOT, *(f"{ROOT}/d{n}" for n in range(1, 10))]
COPIES = [(f"{ROOT}/d1/copy{n}.txt", f"copy{n}.txt") for n in range(5)]
TEMPLATES = [(f"{ROOT}/d2/service{n}.conf", f"service{n}.conf.j2") for n in range(5)]
LINES = [(f"{ROOT}/d3/lines{n // 2}.conf", f"option_{n} = {n * n}") for n in range(10)]
GROUPS = [("bench-a", 48101), ("bench-b", 48102)]
# The group is a further one: each user has one of its own first, and a home folder.
USERS = [("bench-one", 48111, "bench-a"), ("bench-two", 48112, "bench-a")]
USERS += [("bench-three", 48113, "bench-b")]
CHECKS = ["/etc", "/usr", "/var", "/home", "/opt", "/srv", "/tmp", "/root", "/run", "/boot"]
SYSCTLS = [
    "net.ipv4.ip_forward",
    "net.ipv4.tcp_syncookies",
    "net.ipv4.ip_local_port_range",
    "kernel.ostype",
    "vm.swappiness",
]
VARIABLES: dict[str, Any] = {"greeting": "hello", "port": 8000, "members": ["a", "b", "c"]}

_TEMPLATE = """# service {number}
greeting = {{{{ greeting }}}}
port = {{{{ port }}}}
members ={{% for member in members %}} {{{{ member }}}}{{% endfor %}}
"""


def copy_text(number: int) -> str:
    """The text of a file to copy: about 2 KiB."""
    return "".join(f"copy {number}, line {line}: nothing to see here\n" for line in range(55))


def rendered(number: int) -> str:
    """Return what a template gives; the tools differ in the newlines at its end."""
    return f"# service {number}\ngreeting = hello\nport = 8000\nmembers = a b c"


@dataclass(frozen=True)
class Sources:
    """The files on the laptop that the play copies and renders."""

    folder: Path

    def write(self) -> None:
        """Make the files."""
        self.folder.mkdir(parents=True, exist_ok=True)
        for number, (_, source) in enumerate(COPIES):
            (self.folder / source).write_text(copy_text(number), encoding="utf-8")
        for number, (_, source) in enumerate(TEMPLATES):
            template = _TEMPLATE.format(number=number)
            (self.folder / source).write_text(template, encoding="utf-8")


def expected() -> dict[str, Any]:
    """The state of a node after the play, as `STATE_SCRIPT` prints it."""
    files = {path: copy_text(number) for number, (path, _) in enumerate(COPIES)}
    files |= {path: rendered(number) for number, (path, _) in enumerate(TEMPLATES)}
    for path, line in LINES:
        files[path] = files.get(path, "") + line + "\n"
    files = {path: text.rstrip("\n") for path, text in files.items()}
    return {
        "directories": sorted(DIRECTORIES),
        "files": files,
        "groups": dict(GROUPS),
        "users": {name: [uid, [group], True] for name, uid, group in USERS},
    }


STATE_SCRIPT = f"""
import grp, json, os, pwd
root = {ROOT!r}
found = {{"directories": [], "files": {{}}, "groups": {{}}, "users": {{}}}}
for folder, _, names in os.walk(root):
    found["directories"].append(folder)
    for name in names:
        with open(os.path.join(folder, name)) as file:
            found["files"][file.name] = file.read().rstrip("\\n")
found["directories"].sort()
for group in grp.getgrall():
    if group.gr_name in {[name for name, _ in GROUPS]!r}:
        found["groups"][group.gr_name] = group.gr_gid
for user in pwd.getpwall():
    if user.pw_name.startswith("bench-"):
        groups = sorted(g.gr_name for g in grp.getgrall() if user.pw_name in g.gr_mem)
        found["users"][user.pw_name] = [user.pw_uid, groups, os.path.isdir(user.pw_dir)]
print(json.dumps(found))
"""

RESET_SCRIPT = "; ".join(
    [
        f"rm -rf {ROOT}",
        *(f"userdel -rf {name} 2>/dev/null" for name, _, _ in USERS),
        *(f"groupdel {name} 2>/dev/null" for name, _ in GROUPS),
        "true",
    ]
)

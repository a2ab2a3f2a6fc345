"""The tools compared: how each is installed, what it is given, and how its result is read."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from abc import ABC, abstractmethod
from pathlib import Path
from typing import Any, ClassVar

from benchmarks.engine import work
from benchmarks.engine.nodes import CACHE, Site

# Ansible 2.20 and later need Python 3.12 on the laptop.
_ANSIBLE = "ansible-core==2.21.5" if sys.version_info >= (3, 12) else "ansible-core==2.19.14"
_MITOGEN = "mitogen==0.3.54"
_PYINFRA = "pyinfra==3.10.0"
REPOSITORY = Path(__file__).resolve().parents[2]


class ToolError(Exception):
    """A tool could not be installed, or did not do the play."""


class Tool(ABC):
    """A tool: prepared once for a set of nodes, run many times.

    Args:
        folder: its own, for what it is given.
        site: the nodes.
        sources: the files to copy and render.
    """

    name: ClassVar[str]
    requirements: ClassVar[tuple[str, ...]] = ()
    answers: ClassVar[str] = ""

    def __init__(self, folder: Path, site: Site, sources: Path) -> None:
        self.folder, self.site, self.sources = folder, site, sources
        folder.mkdir(parents=True, exist_ok=True)
        self.environment = environment(*self.requirements) if self.requirements else Path()
        self.prepare()

    @abstractmethod
    def prepare(self) -> None:
        """Write what the tool needs into its folder."""

    @abstractmethod
    def command(self) -> list[str]:
        """The command line that does the play on all nodes."""

    @abstractmethod
    def changes(self, output: str) -> dict[str, int]:
        """The changes by node that the tool says it made, or the sum under `all`."""

    def variables(self) -> dict[str, str]:
        """Environment variables in addition to the usual ones."""
        return {}

    def write(self, name: str, text: str) -> Path:
        """Make a file in the tool's folder."""
        path = self.folder / name
        path.write_text(text, encoding="utf-8")
        return path


def environment(*requirements: str) -> Path:
    """A virtual environment with these packages; made on first use, then kept in the cache."""
    tag = f"py{sys.version_info.major}{sys.version_info.minor}"
    folder = CACHE / "-".join([*requirements, tag]).replace("==", "-")
    ready = folder / ".ready"
    if not ready.exists():
        print(f"installing {', '.join(requirements)}", flush=True)
        _run(sys.executable, "-m", "venv", "--clear", str(folder))
        _run(str(folder / "bin/python"), "-m", "pip", "install", "--quiet", *requirements)
        ready.touch()
    return folder


def _run(*command: str) -> None:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise ToolError(f"{' '.join(command)}: {done.stderr.strip()[-2000:]}")


class Ansible(Tool):
    """ansible-core as its own guide to speed says: pipelining, ControlPersist, no facts."""

    name = "ansible"
    requirements: ClassVar[tuple[str, ...]] = (_ANSIBLE,)

    def prepare(self) -> None:
        ssh = f"-o ControlMaster=auto -o ControlPersist=60s -o UserKnownHostsFile={self.known}"
        config = ["[defaults]", "forks = 10", "gathering = explicit", "inventory = hosts.json"]
        config += ["interpreter_python = /usr/bin/python3", "host_key_checking = True"]
        config += ["nocows = True", *self.strategy()]
        config += ["[privilege_escalation]", "become = True"]
        config += ["[ssh_connection]", "pipelining = True", f"ssh_args = {ssh}"]
        self.write("ansible.cfg", "\n".join([*config, ""]))
        login = {"ansible_user": self.site.user, "ansible_ssh_private_key_file": str(self.site.key)}
        hosts = {node.name: {"ansible_host": node.address} for node in self.site.nodes}
        self.write("hosts.json", json.dumps({"all": {"hosts": hosts, "vars": login}}, indent=1))
        play = {"hosts": "all", "gather_facts": False, "vars": work.VARIABLES}
        self.write("play.yml", json.dumps([play | {"tasks": self.tasks()}], indent=1))

    @property
    def known(self) -> Path:
        return self.site.known_hosts

    def strategy(self) -> list[str]:
        """Lines for the section [defaults]."""
        return []

    def tasks(self) -> list[dict[str, Any]]:
        """The play, one task a resource (JSON is YAML)."""
        tasks: list[dict[str, Any]] = [
            {"file": {"path": path, "state": "directory", "mode": "0755"}}
            for path in work.DIRECTORIES
        ]
        for module, pairs in (("copy", work.COPIES), ("template", work.TEMPLATES)):
            for path, name in pairs:
                source = str(self.sources / name)
                tasks.append({module: {"src": source, "dest": path, "mode": "0644"}})
        for path, line in work.LINES:
            tasks.append({"lineinfile": {"path": path, "line": line, "create": True}})
            tasks[-1]["lineinfile"]["mode"] = "0644"
        tasks += [{"group": {"name": name, "gid": gid}} for name, gid in work.GROUPS]
        for name, uid, group in work.USERS:
            user = {"name": name, "uid": uid, "groups": [group], "append": True}
            tasks.append({"user": user | {"shell": "/bin/sh"}})
        for path in work.CHECKS:
            stat = {"path": path, "get_checksum": False, "get_mime": False}
            fails = "not (found.stat.isdir | default(false))"
            tasks.append({"stat": stat, "register": "found", "failed_when": fails})
        for name in work.SYSCTLS:
            tasks.append({"command": {"argv": ["sysctl", "-n", name]}, "changed_when": False})
        return [{"name": f"resource {n}"} | task for n, task in enumerate(tasks, 1)]

    def command(self) -> list[str]:
        return [str(self.environment / "bin/ansible-playbook"), "play.yml"]

    def variables(self) -> dict[str, str]:
        return {
            "ANSIBLE_HOME": str(self.folder / "home"),
            "ANSIBLE_SSH_CONTROL_PATH_DIR": str(self.folder / "cp"),
            "PATH": f"{self.environment / 'bin'}:/usr/local/bin:/usr/bin:/bin",
        }

    def changes(self, output: str) -> dict[str, int]:
        recap = r"^(\S+)\s*: ok=(\d+)\s+changed=(\d+)\s+unreachable=0\s+failed=0 "
        found = re.findall(recap, output, re.MULTILINE)
        if any(int(ok) != len(self.tasks()) for _, ok, _ in found):
            raise ToolError(f"{self.name} did not run all tasks:\n{output[-2000:]}")
        return {name: int(changed) for name, _, changed in found}


class Mitogen(Ansible):
    """Ansible with Mitogen's strategy: one connection and one interpreter a node."""

    name = "mitogen"
    requirements = (_ANSIBLE, _MITOGEN)

    def strategy(self) -> list[str]:
        (plugins,) = self.environment.glob("lib/python*/site-packages/ansible_mitogen/plugins")
        return [f"strategy_plugins = {plugins / 'strategy'}", "strategy = mitogen_linear"]


class Pyinfra(Tool):
    """pyinfra with `-y`: no plan first."""

    name = "pyinfra"
    requirements = (_PYINFRA,)

    def prepare(self) -> None:
        login = {"ssh_user": self.site.user, "ssh_key": str(self.site.key)}
        login |= {"ssh_known_hosts_file": str(self.site.known_hosts)}
        login |= {"ssh_strict_host_key_checking": "yes"}
        hosts = [(node.name, login | {"ssh_hostname": node.address}) for node in self.site.nodes]
        self.write("inventory.py", f"nodes = {hosts!r}\n")
        lines = ["from pyinfra import config, host"]
        lines += [
            "from pyinfra.facts.files import Directory",
            "from pyinfra.facts.server import Command",
        ]
        lines += ["from pyinfra.operations import files, server", "", "config.SUDO = True"]
        lines += [f"files.directory({path!r}, mode='755')" for path in work.DIRECTORIES]
        for path, name in work.COPIES:
            lines.append(f"files.put(src={str(self.sources / name)!r}, dest={path!r}, mode='644')")
        values = ", ".join(f"{name}={value!r}" for name, value in work.VARIABLES.items())
        for path, name in work.TEMPLATES:
            source = str(self.sources / name)
            lines.append(f"files.template(src={source!r}, dest={path!r}, mode='644', {values})")
        for path, line in work.LINES:
            lines.append(f"files.line(path={path!r}, line={'^' + line + '$'!r})")
        lines += [f"server.group({name!r}, gid={gid})" for name, gid in work.GROUPS]
        for name, uid, group in work.USERS:
            given = f"{name!r}, uid={uid}, groups=[{group!r}], append=True, shell='/bin/sh'"
            lines.append(f"server.user({given}, create_home=True)")
        for path in work.CHECKS:
            lines.append(f"assert host.get_fact(Directory, path={path!r}), {path!r}")
        for name in work.SYSCTLS:
            lines.append(f"assert host.get_fact(Command, command='sysctl -n {name}'), {name!r}")
        self.write("deploy.py", "\n".join([*lines, ""]))

    def command(self) -> list[str]:
        return [str(self.environment / "bin/pyinfra"), "-y", "inventory.py", "deploy.py"]

    def changes(self, output: str) -> dict[str, int]:
        # Grand total: runs, with a change, with an error, without a change.
        found = re.search(r"Grand total\s+(\d+)\s+(\S+)\s+(\S+)\s+(\S+)", output)
        runs, changed, errors, _ = (
            (0 if part == "-" else int(part) for part in found.groups()) if found else (0,) * 4
        )
        if errors or runs != work.CHANGES * len(self.site.nodes):
            raise ToolError(f"{self.name} did not run all operations:\n{output[-2000:]}")
        return {"all": changed}


class PyinfraPlan(Pyinfra):
    """pyinfra as it is without options: it gathers facts, shows a plan, asks, then acts."""

    name = "pyinfra-plan"
    answers = "\n"

    def command(self) -> list[str]:
        return [part for part in super().command() if part != "-y"]


class Floor(Tool):
    """A bare paramiko agent loop; see floor.py."""

    name = "floor"

    def prepare(self) -> None:
        site = {
            "user": self.site.user,
            "key": str(self.site.key),
            "known_hosts": str(self.site.known_hosts),
            "addresses": [node.address for node in self.site.nodes],
            "sources": str(self.sources),
        }
        self.write("site.json", json.dumps(site))

    def command(self) -> list[str]:
        return [sys.executable, "-m", "benchmarks.engine.floor", "site.json"]

    def variables(self) -> dict[str, str]:
        return {"PYTHONPATH": str(REPOSITORY)}

    def changes(self, output: str) -> dict[str, int]:
        names = {node.address: node.name for node in self.site.nodes}
        results = json.loads(output.splitlines()[-1])
        return {names[address]: result["changed"] for address, result in results.items()}

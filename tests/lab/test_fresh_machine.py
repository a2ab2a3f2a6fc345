"""The lab's commands on a machine that has none of the programs that the lab calls.

Programs are hidden by a PATH with nothing but an apt-get of the test's own. What is there of the
machine's networks is hidden too, so that a lab that is up meanwhile is neither seen nor touched.
"""

import ast
import os
import re
import shutil
from pathlib import Path

import pytest
import readme
from click.testing import CliRunner, Result

from spark_cluster.errors import Failed, UsageError
from spark_cluster_lab import cgroup, machine, network
from spark_cluster_lab.artefact import Artefact
from spark_cluster_lab.build_progress import BuildProgress
from spark_cluster_lab.commands import command
from spark_cluster_lab.gpu import requirements

PACKAGE = Path(machine.__file__).parent
TESTS = Path(__file__).parents[1]
ELSEWHERE = {"breakages", "standins", "assets", "cli"}
"""Folders that are left out. Those of the lab hold programs of the nodes, which have what
`lab/base.py` installs; the tests of the command line call spark-cluster itself, in the process."""

NODES = r"(node|spark\d|session|agent|shell|user|play|connection|recorded|accounts)\b"
"""Whose methods run a program on a node."""

RUNS = {"run", "output", "Popen", "check_call", "check_output", "call", "which"}
CALLS = re.compile(rf"\b(?:{'|'.join(RUNS)})\(")
"""What a module has to hold that runs a program; others are not parsed."""

ALWAYS_THERE = {"apt-get", "apt-config", "systemctl", "systemd-analyze", "sh"} | {
    "bash", "cat", "chroot", "cp", "echo", "env", "make", "sleep", "stat", "sudo", "sync", "true",
}  # fmt: skip
"""apt is asked for by name where it is missing; systemd's two are looked for; bash, dash and
coreutils are essential packages; make has started the tests; who is not root has sudo."""

OF_A_GPU = {"ldconfig", "modprobe", "nft", "nvidia-modprobe", "nvidia-smi"}
"""What the lab of GPUs and tests/gpu look for and do without, or are skipped without."""

OF_A_NODE = {"lab-hardware"}
"""What a LabNode runs on itself, by `self.run`."""
APT = """#!/bin/sh
echo "apt-get $*" >> {log}
case "$1" in
  indextargets) echo "http://mirror.invalid/debian bookworm" ;;
  install) echo "E: no network here" >&2; exit 100 ;;
esac
"""


@pytest.fixture
def bare(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A machine without tools; what apt-get was asked is in the file that this returns."""
    log = tmp_path / "apt.log"
    log.touch()
    folder = tmp_path / "bin"
    folder.mkdir()
    apt = folder / "apt-get"
    apt.write_text(APT.format(log=log))
    apt.chmod(0o755)
    (folder / "apt-config").symlink_to(shutil.which("true") or "/bin/true")
    for name in ("netns", "net", "cgroup"):
        (tmp_path / name).mkdir()
    monkeypatch.setenv("PATH", str(folder))
    monkeypatch.setenv("SPARK_CLUSTER_LAB", str(tmp_path / "lab"))
    monkeypatch.setenv("SPARK_CLUSTER_LAB_GPUS", str(tmp_path / "lab-gpus"))
    monkeypatch.setattr(machine, "SYSTEM_PATH", str(folder))
    monkeypatch.setattr(network, "NETNS", tmp_path / "netns")
    monkeypatch.setattr(network, "SYS_NET", tmp_path / "net")
    monkeypatch.setattr(cgroup, "TREE", tmp_path / "cgroup")
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    monkeypatch.setattr(
        "platform.freedesktop_os_release", lambda: {"ID": "debian", "VERSION_CODENAME": "bookworm"}
    )
    return log


def invoke(*words: str) -> Result:
    return CliRunner().invoke(command, words)


def test_status_and_down_answer_down(bare):
    status = invoke("status")
    assert status.exit_code == 0, status.output
    assert status.output.startswith("lab: down")
    down = invoke(*readme.words("spark-cluster lab down")[1:])
    assert down.output.strip() == "the lab was down already"
    assert "install" not in bare.read_text()


@pytest.mark.parametrize("words", [("up",), ("up", "--fresh"), ("prepare",), ("tools",)])
def test_what_needs_the_tools_installs_them_first(bare, words):
    error = invoke(*words).exception
    assert isinstance(error, Failed)
    assert "apt-get install" in error.message
    assert "no network here" in error.message
    asked = [line for line in bare.read_text().splitlines() if "indextargets" not in line]
    assert asked[0].startswith("apt-get update")
    wanted = set(asked[1].split()) - {"apt-get", "install"}
    assert {"mmdebstrap", "systemd-container", "iptables", "iproute2"} <= wanted


@pytest.mark.parametrize(
    "words", [("ssh", "spark1"), ("reset", "spark1"), ("break", "mtu"), ("repair",)]
)
def test_what_needs_a_node_says_that_the_lab_is_down(bare, words):
    result = invoke(*words)
    if words == ("repair",):
        assert result.output.strip() == "nothing was broken"
    else:
        assert isinstance(result.exception, UsageError), result.output
    assert "install" not in bare.read_text()


STARTING_APT = """#!/bin/sh
test "$1" = install || exit 0
cd {folder}
systemctl start spark-cluster-test.service > said 2>&1
echo $? > status
test ! -e {policy} || : > policy
"""

POLICY = Path("/usr/sbin/policy-rc.d")
"""Where it is there, no service is started by apt; one of the user's may be."""


@pytest.mark.skipif(not shutil.which("systemctl"), reason="no systemd on this machine")
def test_servers_for_the_tests_are_installed_and_not_started(bare):
    """And nothing that is left where this is killed would keep other services from starting."""
    folder = bare.parent
    (folder / "bin/apt-get").write_text(STARTING_APT.format(folder=folder, policy=POLICY))
    (folder / "bin/systemctl").symlink_to(str(shutil.which("systemctl", path=os.defpath)))
    before = POLICY.exists()
    invoke("tools", "--tests")
    assert (folder / "status").read_text() == "0\n"
    assert "ignoring command 'start'" in (folder / "said").read_text()
    assert (folder / "policy").exists() is before


@pytest.mark.parametrize(("system", "wanted"), [("debian", True), ("ubuntu", False)])
def test_a_browser_is_installed_where_apt_has_one(bare, monkeypatch, system, wanted):
    monkeypatch.setattr("platform.freedesktop_os_release", lambda: {"ID": system})
    assert ("chromium" in machine.missing_packages(tests=True)) is wanted
    assert "haproxy" in machine.missing_packages(tests=True)


def test_every_program_of_the_lab_is_in_the_list():
    """Whatever the lab's modules run on this machine is installed, or always there."""
    called = programs_of(PACKAGE)
    assert {"ip", "mmdebstrap", "iptables", "nsenter", "systemd-nspawn"} <= called, "it finds them"
    known = set(machine.TOOLS | requirements.TOOLS)
    assert called - known - ALWAYS_THERE - OF_A_NODE - OF_A_GPU == set()


def test_every_program_of_the_tests_is_in_the_list():
    called = programs_of(TESTS)
    assert {"haproxy", "openssl", "ssh-keygen", "ip"} <= called, "it finds them"
    assert called - set(machine.TOOLS | machine.TEST_TOOLS) - ALWAYS_THERE - OF_A_GPU == set()


def programs_of(folder: Path) -> set[str]:
    here = (p for p in folder.rglob("*.py") if not ELSEWHERE & {x.name for x in p.parents})
    sources = (path.read_text() for path in sorted(here))
    return {name for source in sources if CALLS.search(source) for name in programs(source)}


def programs(source: str) -> set[str]:
    """Programs that a module has this machine run, as far as they are written down in it.

    That is the first word of a list or tuple that goes to a function or a method which runs
    programs: as it is, by a name that it was given anywhere in the module, or as what a function of
    the module returns; and what `which` is asked for. Receivers in `NODES` run it elsewhere.
    """
    nodes = list(ast.walk(ast.parse(source)))
    known: dict[str, list[ast.expr]] = {}
    for node in nodes:
        if isinstance(node, ast.Assign | ast.AnnAssign) and node.value is not None:
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            for target in targets:
                if isinstance(target, ast.Name):
                    known.setdefault(target.id, []).append(node.value)
        elif isinstance(node, ast.FunctionDef):
            returned = (r.value for r in ast.walk(node) if isinstance(r, ast.Return) and r.value)
            known.setdefault(node.name, []).extend(returned)
    calls = [node for node in nodes if isinstance(node, ast.Call)]
    return {
        word
        for call in calls
        if runs_here(call)
        for value in [*call.args[:1], *(k.value for k in call.keywords if k.arg == "args")]
        if not isinstance(value, ast.Constant) or takes_text(call)
        for word in first_words(value, known)
    }


def runs_here(call: ast.Call) -> bool:
    name = getattr(call.func, "attr", None) or getattr(call.func, "id", None)
    if name not in RUNS:
        return False
    receiver = ast.unparse(call.func).split(".")[:-1]
    return not any(re.match(NODES, part) for part in receiver)


def takes_text(call: ast.Call) -> bool:
    """Return whether a text is a program there, and not the name of a role or a playbook."""
    name = ast.unparse(call.func)
    return name.startswith("subprocess.") or name.endswith("which")


def first_words(value: ast.expr, known: dict[str, list[ast.expr]]) -> set[str]:
    """The programs that an expression names, without their folders.

    A name or a call stands for what `known` says of it, which is taken once.
    """
    parts: list[ast.expr] = []
    if isinstance(value, ast.Constant) and isinstance(value.value, str):
        words = value.value.split()[:1]
        return {Path(words[0]).name} if words and words[0][0] != "-" else set()
    if isinstance(value, ast.List | ast.Tuple):
        parts = [*value.elts[:1], *(e for e in value.elts[1:] if isinstance(e, ast.Starred))]
    elif isinstance(value, ast.IfExp):
        parts = [value.body, value.orelse]
    elif isinstance(value, ast.BinOp | ast.Starred):
        parts = [value.left if isinstance(value, ast.BinOp) else value.value]
    elif name := getattr(value.func if isinstance(value, ast.Call) else value, "id", ""):
        parts, known = known.get(name, []), {n: each for n, each in known.items() if n != name}
    return {word for part in parts for word in first_words(part, known)}


def test_progress_of_a_build_says_what_how_much_and_how_long(tmp_path):
    thing = Artefact(tmp_path, "thing", "recipe", lambda _: None, usual_s=100, usual_mb=200)
    small = Artefact(tmp_path, "small", "recipe", lambda _: None, usual_s=20, usual_mb=1)
    now = [0.0]
    said: list[str] = []
    progress = BuildProgress([thing, small], said.append, clock=lambda: now[0])
    assert progress.headline() == (
        "building once what the nodes are booted from: thing, small "
        "(201 MB; about 2 min on two quiet cores)"
    )
    thing.unfinished.mkdir()
    with (thing.unfinished / "half").open("wb") as file:
        file.truncate(100_000_000)
    now[0] = 30.0
    assert progress.line().startswith("thing 100 MB of about 200 MB, about ")
    first = progress.left_s()
    now[0] = 300.0  # a slow machine: the estimate follows it
    assert progress.left_s() > first
    thing.unfinished.rename(thing.path)
    small.unfinished.mkdir()
    assert progress.line().startswith("small, about ")

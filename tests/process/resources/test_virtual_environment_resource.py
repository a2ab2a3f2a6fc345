"""VirtualEnvironment, made for real by the venv and pip of this machine, without a network."""

import dataclasses
import importlib.util
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
from factories import put

from spark_cluster.resources import VirtualEnvironment
from spark_cluster.resources.virtual_environment import MARKER

PATH = "/opt/vllm"


def wheel(folder, version):
    """A package that is one module."""
    folder.mkdir(exist_ok=True)
    name = f"demo-{version}"
    with zipfile.ZipFile(folder / f"{name}-py3-none-any.whl", "w") as out:
        out.writestr("demo.py", f"VERSION = {version!r}\n")
        out.writestr(f"{name}.dist-info/METADATA", f"Metadata-Version: 2.1\nName: demo\nVersion: {version}\n")  # fmt: skip  # noqa: E501
        out.writestr(f"{name}.dist-info/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")  # fmt: skip  # noqa: E501
        out.writestr(f"{name}.dist-info/RECORD", "")


@pytest.fixture
def made(node, tmp_path):
    for version in ("1.0", "2.0"):
        wheel(tmp_path / "wheels", version)
    offline = ("--no-index", f"--find-links={tmp_path / 'wheels'}")
    without_ensurepip(node)
    return node, VirtualEnvironment(PATH, (*offline, "demo==1.0"))


def without_ensurepip(node):
    """Have `python3 -m venv` of this node make an environment that finds the pip of the tests' own:
    ensurepip, which puts pip into each, takes several seconds of a processor. (The lab's nodes make
    theirs with it.)"""
    found = importlib.util.find_spec("pip")
    if found is None or found.origin is None:
        return
    put(
        node.bin / "python3",
        f"""\
#!/bin/sh -e
[ "$1 $2" = "-m venv" ]
{sys.executable} -m venv --without-pip "$3"
echo {Path(found.origin).parents[1]} > "$(echo "$3"/lib/python*/site-packages)/pip.pth"
""",
        mode=0o755,
    )


def test_what_it_is_made_of_is_on_the_disk_before_it_counts_as_made(made):
    """After a power cut the marker must not stand beside empty modules."""
    node, venv = made
    told = node.root / "synced"
    synced = f'#!/bin/sh\n[ "$1" = -f ] && ls -A "$2" >> {told}\n'
    put(node.bin / "sync", synced, mode=0o755)
    node.apply(venv)
    assert f"{MARKER}.new" in told.read_text().split()
    assert MARKER not in told.read_text().split()
    assert (node.root / PATH.lstrip("/") / MARKER).exists()


def test_made_of_its_requirements_and_again_when_they_change(made):
    node, venv = made
    broken = dataclasses.replace(venv, requirements=(*venv.requirements[:2], "demo==9.9"))
    result = node.apply(broken)
    assert "making the virtual environment /opt/vllm" in result.error
    assert "demo==9.9" in result.error
    assert node.path(f"{PATH}/bin/python").exists(), "by the real venv"
    assert node.check(venv).verdict == "change", "what could not be made is made again"
    result = node.apply(venv)
    assert result.verdict == "change", result.error
    python = node.path(f"{PATH}/bin/python")
    asked = (str(python), "-c", "import demo; print(demo.VERSION)")
    assert subprocess.run(asked, capture_output=True, text=True, check=True).stdout == "1.0\n"
    assert node.apply(venv).verdict == "ok"
    other = dataclasses.replace(venv, requirements=(*venv.requirements[:2], "demo==2.0"))
    node.must_change(other)
    assert subprocess.run(asked, capture_output=True, text=True, check=True).stdout == "2.0\n"


def test_made_with_uv_where_the_node_has_it(node, tmp_path):
    calls = tmp_path / "calls"
    program = Path(__file__).with_name("node_programs").joinpath("uv").read_text()
    put(node.bin / "uv", f"#!/bin/sh\ncalls={calls}\n{program}", mode=0o755)
    put(node.bin / "python3", "#!/bin/sh\nexit 70\n", mode=0o755)  # its venv is not wanted
    broken = VirtualEnvironment(PATH, ("--no-index", "demo==9.9"))
    result = node.apply(broken)
    assert "making the virtual environment /opt/vllm" in result.error
    assert "No solution found" in result.error, "uv's own words"
    venv = VirtualEnvironment(PATH, ("--no-index", "demo==1.0"))
    assert node.check(venv).verdict == "change", "what could not be made is made again"
    assert node.apply(venv).verdict == "change"
    assert node.path(f"{PATH}/bin/installed").read_text() == "--no-index\ndemo==1.0\n"
    made = calls.read_text().splitlines()
    folder = node.path(PATH)
    assert made[-2] == f"venv --python python3 {folder}"
    assert made[-1].startswith(f"pip install --python {folder}/bin/python --requirement ")
    assert node.apply(venv).verdict == "ok"
    assert len(calls.read_text().splitlines()) == len(made) == 4
    other = VirtualEnvironment(PATH, ("demo==2.0",))
    assert node.apply(other).verdict == "change"
    assert node.path(f"{PATH}/bin/installed").read_text() == "demo==2.0\n"


@pytest.mark.parametrize(
    "requirement",
    ["vllm==0.19.0", "ray[default]==2.60.0", "torch==2.9.0+cu130", "x @ https://h/x.whl", "--pre"],
)
def test_requirements_that_are_pinned(requirement):
    assert VirtualEnvironment(PATH, (requirement,)).requirements == (requirement,)

"""What is given in the place of a file, or lies in a folder of somebody else: a pipe into which
nobody writes, a device, a socket, a folder, a file without an end."""

import os
import re
import resource
import socket
import subprocess
import sys
from pathlib import Path

import pytest
from program import run

from spark_cluster.config.secret import SecretReference
from spark_cluster.config.yamlfile import load
from spark_cluster.errors import SparkClusterError

COMMANDS = {
    "lint FILE": "yaml",
    "recipes import FILE": "sh",
    "plan FILE --offline": "yaml",
    "explain FILE": "log",
    "predict --calibrate FILE": "csv",
    "bench compare FILE FILE": "json",
    "bench repeat FILE": "json",
    "bench run FILE": "yaml",
}
KINDS = {"pipe": "named pipe", "zero": "device", "socket": "socket"}


@pytest.fixture(autouse=True)
def limit():
    """End a test that fills the memory; one that hangs is ended anyhow."""
    before = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (6 << 30, before[1]))
    yield
    resource.setrlimit(resource.RLIMIT_AS, before)


def strange(folder: Path, kind: str, ending: str) -> Path:
    """Make such a file."""
    path = folder / f"{kind}.{ending}"
    if kind == "pipe":
        os.mkfifo(path)
    elif kind == "zero":
        path.symlink_to("/dev/zero")
    elif kind == "socket":
        with socket.socket(socket.AF_UNIX) as unix:
            unix.bind(str(path))
    elif kind == "folder":
        path.mkdir()
    else:
        path.touch()
        os.truncate(path, 10 << 30)
    return path


@pytest.mark.parametrize("command", COMMANDS)
@pytest.mark.parametrize("kind", [*KINDS, "folder", "large"])
def test_each_command_refuses_it_at_once(tmp_path, kind, command):
    path = strange(tmp_path, kind, COMMANDS[command])
    words = command.replace("FILE", f"./{path.name}").split()
    done = run(*words, cwd=tmp_path)
    assert done.returncode == 2, done.stderr
    assert path.name in done.stderr
    if kind in KINDS:
        assert KINDS[kind] in done.stderr, done.stderr


@pytest.mark.parametrize("kind", [*KINDS, "folder", "large"])
def test_a_secret_is_not_read_from_it(tmp_path, kind):
    path = strange(tmp_path, kind, "txt")
    if kind != "zero":
        path.chmod(0o600)
    with pytest.raises(SparkClusterError, match=re.escape(path.name)):
        SecretReference(file=path).read("the password")


def test_what_a_shell_lends_for_a_command_is_read():
    """`explain <(docker logs vllm)`: a pipe too, and its writer may take his time."""
    writer = "sleep 0.5; echo torch.OutOfMemoryError: CUDA out of memory"
    shell = f"{sys.executable} -m spark_cluster explain --json <({writer})"
    done = subprocess.run(
        ["bash", "-c", shell], capture_output=True, text=True, timeout=60, check=False
    )
    assert "OutOfMemoryError" in done.stdout, done.stderr


def test_a_file_that_another_process_hands_over_is_read(tmp_path):
    """/dev/stdin is a name of it that programs take for a file."""
    recipe = tmp_path / "x.yaml"
    recipe.write_text("a: 1\n")
    with recipe.open() as stream:
        assert load(Path(f"/dev/fd/{stream.fileno()}"), "recipe").data == {"a": 1}

"""The script that downloads a model, with a docker that only notes what it is told."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from factories import SHIPPED, put
from role_samples import a_spark, one, yielded
from waiting import HANG_S, until

WORK = SHIPPED.load_role("models").function.__globals__["DOWNLOADS"]
TOKEN = "hf_NotARealTokenButASecret"
DOWNLOAD = ("download", "--revision=main", "--exclude=.complete*")

PROGRAM = """#!PYTHON -IS
import json, os, sys, time
from pathlib import Path

home, argv, token = Path(HOME), sys.argv[1:], os.environ.get("HF_TOKEN_PATH")
with (home / "calls").open("a") as out:
    print(json.dumps({"argv": argv, "environ": dict(os.environ)}), file=out)
if argv[0] == "rm":
    sys.exit()
if argv[0] == "run":
    Path(argv[argv.index("--cidfile") + 1]).write_text("id-of-it")
    mounts = [dict(f.partition("=")[::2] for f in w.split(",")) for w in argv if "bind" in w]
    token = next((m["source"] for m in mounts if m["target"].startswith("/run/secrets")), None)
else:
    local = next(w.partition("=")[2] for w in argv if w.startswith("--local-dir="))
    (Path(local) / "weights").touch()
if token:
    mode, folder = (oct(os.stat(p).st_mode & 0o7777) for p in (token, os.path.dirname(token)))
    (home / "token").write_text(json.dumps([Path(token).read_text(), mode, folder, token]))
(home / "running").touch()
while (home / "hold").exists():
    time.sleep(0.02)
print("hf talks", flush=True)
sys.exit(int((home / "status").read_text()) if (home / "status").exists() else 0)
"""
"""Notes what it is told: as docker with `run` and `rm`, as hf with `download`."""


class Node:
    """A folder with a docker in it, and the download of the role run there."""

    def __init__(self, home: Path) -> None:
        self.home = home
        self.work, self.folder, self.said = home / "work", home / "model", ""
        self.folder.mkdir()
        made = PROGRAM.replace("PYTHON", sys.executable).replace("HOME", repr(str(home)), 1)
        for name in ("docker", "hf"):
            put(home / "bin" / name, made, 0o755)

    def start(
        self, token: str = "", revision: str = "main", *, venv: bool = False, **other: str
    ) -> subprocess.Popen[bytes]:
        where = {"path": str(self.folder), "venv": str(self.home) if venv else ""}
        given = {"name": "org/m", "revision": revision, "image": "image:1", **where, **other}
        command = one(yielded("models", a_spark(), **given), "Command")
        argv = [str(self.work) if word == WORK else word for word in command.argv]
        process = subprocess.Popen(
            argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
            env={"PATH": f"{self.home}/bin:/usr/sbin:/usr/bin:/sbin:/bin"}, start_new_session=True,
        )  # fmt: skip
        assert process.stdin
        process.stdin.write(token.encode())
        process.stdin.close()
        return process

    def run(
        self, token: str = "", revision: str = "main", *, venv: bool = False, **other: str
    ) -> int:
        process = self.start(token, revision, venv=venv, **other)
        status = process.wait(HANG_S)
        self.said = process.stdout.read().decode() if process.stdout else ""
        return status

    @property
    def calls(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in (self.home / "calls").read_text().splitlines()]

    @property
    def complete(self) -> str:
        marker = self.folder / ".complete"
        return marker.read_text() if marker.exists() else ""

    def left(self) -> list[Path]:
        """Return the files that a download has left next to the model."""
        return list(self.work.iterdir()) if self.work.is_dir() else []


@pytest.fixture
def node(tmp_path: Path) -> Node:
    return Node(tmp_path)


WAYS = pytest.mark.parametrize("venv", [False, True], ids=["container", "environment"])


@WAYS
def test_the_token_is_in_a_file_of_root_and_nowhere_else(node, venv):
    assert node.run(TOKEN, venv=venv) == 0
    text, mode, folder, path = json.loads((node.home / "token").read_text())
    assert (text, mode, folder) == (TOKEN, "0o600", "0o700")
    assert not Path(path).exists()
    assert node.left() == []
    assert TOKEN not in (node.home / "calls").read_text()  # neither in argv nor in a variable
    if venv:  # and no docker is asked for anything
        assert [call["argv"] for call in node.calls] == [
            [*DOWNLOAD, f"--local-dir={node.folder}", "--", "org/m"]
        ]
    else:
        (run,) = [call["argv"] for call in node.calls if call["argv"][0] == "run"]
        assert "HF_TOKEN_PATH=/run/secrets/hub-token" in run
    assert node.complete == f"org/m@main by {node.home / 'bin/hf' if venv else 'image'}\n"
    for path in node.folder.iterdir():  # the engine need not be root to read them
        assert path.stat().st_mode & 0o777 == 0o644


@WAYS
def test_without_a_token_none_is_given(node, venv):
    assert node.run(venv=venv) == 0
    assert "hub-token" not in (node.home / "calls").read_text()
    assert "HF_TOKEN_PATH" not in (node.home / "calls").read_text()
    assert not (node.home / "token").exists()


def test_the_container_has_a_name_that_goes_before_and_its_end_is_heard_of(node):
    node.run()
    remove, run = (call["argv"] for call in node.calls[:2])
    name = run[run.index("--name") + 1]
    assert remove == ["rm", "--force", name]
    assert name.startswith("spark-download-")
    assert "--init" in run  # or SIGTERM would not end it
    assert run[run.index("image:1") + 1 :] == [
        *DOWNLOAD, f"--local-dir={node.folder}", "--", "org/m",
    ]  # fmt: skip


def test_a_failure_is_reported_and_the_folder_is_not_called_complete(node):
    (node.folder / ".complete").write_text("org/m@old\n")
    (node.home / "status").write_text("7")
    assert node.run(TOKEN, revision="new") == 7
    assert "--allow-env" not in node.said
    assert node.run(revision="new") == 7
    assert "for a gated model, --allow-env HF_TOKEN" in node.said
    assert node.complete == "partial org/m by image\n"  # files of both are in it
    assert node.left() == []


@WAYS
def test_ended_it_ends_what_it_has_started(node, venv):
    (node.home / "hold").touch()
    process = node.start(TOKEN, venv=venv)
    until((node.home / "running").exists)
    os.kill(process.pid, signal.SIGTERM)
    assert process.wait(HANG_S) == 143
    assert venv or ["rm", "--force", "id-of-it"] in [call["argv"] for call in node.calls]
    assert node.left() == []
    assert node.complete.startswith("partial org/m by ")


def test_killed_its_token_is_removed_by_the_next_one(node):
    (node.home / "hold").touch()
    process = node.start(TOKEN)
    until((node.home / "running").exists)
    os.killpg(process.pid, signal.SIGKILL)
    process.wait(HANG_S)
    assert node.left() != []
    (node.home / "hold").unlink()
    assert node.run() == 0
    assert node.left() == []
    assert [call["argv"][0] for call in node.calls] == ["rm", "run", "rm", "run", "rm"]


def test_another_one_at_work_is_left_alone(node):
    theirs = node.work / f"spark-download-other.{os.getpid()}"
    theirs.mkdir(parents=True)
    node.run()
    assert node.left() == [theirs]


def unless(node, **other):
    """Return whether the role takes the folder as it is."""
    given = {"name": "org/m", "revision": "main", "image": "image:1", "path": str(node.folder)}
    command = one(yielded("models", a_spark(), **{**given, **other}), "Command")
    return subprocess.run(command.unless, check=False).returncode == 0


@pytest.mark.parametrize("ends", [0, 7], ids=["whole", "in part"])
@pytest.mark.parametrize("other", [{"image": "evil/image:1"}, {"name": "evil/m"}])
def test_a_folder_that_another_recipe_has_filled_is_not_taken(node, ends, other):
    """Its image wrote it as it liked, or its repository: a file more is loaded with the others."""
    (node.home / "status").write_text(str(ends))
    assert node.run(**other) == ends
    before = len(node.calls)
    assert not unless(node)
    assert node.run() == 1
    assert len(node.calls) == before, "nothing is downloaded over it"
    assert str(node.folder) in node.said
    assert "another folder" in node.said


def test_newer_images_of_a_name_and_older_notes_are_taken(node):
    assert node.run() == 0
    for image in ("image:1", "image:2", f"image@sha256:{'0' * 64}", "image"):
        assert unless(node, image=image)
        assert node.run(revision="new", image=image) == 0
        assert not unless(node, image=image)
        assert node.run(image=image) == 0
    (node.folder / ".complete").write_text("org/m@main\n")
    assert unless(node)
    assert not unless(node, name="org/other")


def test_a_program_of_the_image_cannot_write_the_note(node):
    """It could say that the model of another recipe is there, and end in a failure."""
    assert node.run() == 0
    (run,) = [call["argv"] for call in node.calls if call["argv"][0] == "run"]
    note = node.folder / ".complete"
    assert f"type=bind,source={note},target={note},readonly" in run


TRICKS = {
    "a link for the new file": 'ln -s "$outside/secret" "$folder/.complete.new"',
    "a link to a folder": 'ln -s "$outside/cron.d" "$folder/.complete"',
    "a folder": 'mkdir -p "$folder/.complete/x" "$folder/.complete.new/x"',
    "a FIFO": 'mkfifo "$folder/.complete" "$folder/.complete.new"',
    "a dangling link": 'ln -s "$outside/new" "$folder/.complete.new"',
}


@pytest.mark.parametrize("trick", TRICKS)
def test_what_the_program_left_is_not_followed(node, trick):
    """Root writes the word that all is there; with a link it would be written to another file."""
    outside, complete = node.home / "outside", node.folder / ".complete"
    secret = put(outside / "secret", "root's\n", mode=0o600)
    (outside / "cron.d").mkdir()
    begin = f"#!/bin/sh\noutside={outside} folder={node.folder}\nrm $folder/.complete\n"
    text = f"{begin}{TRICKS[trick]}\n"
    put(node.home / "bin/hf", text, 0o755)
    assert node.run(venv=True) == 0
    assert node.complete == f"org/m@main by {node.home}/bin/hf\n"
    assert (complete.is_symlink(), complete.stat().st_mode & 0o777) == (False, 0o644)
    assert (secret.read_text(), secret.stat().st_mode & 0o777) == ("root's\n", 0o600)
    assert sorted(path.name for path in outside.rglob("*")) == ["cron.d", "secret"]

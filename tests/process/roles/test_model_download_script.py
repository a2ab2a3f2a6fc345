"""The script that downloads a model with the image's own `hf`, which may leave anything there."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
from pathlib import Path

import pytest
from factories import put

SCRIPT = Path(__file__).parents[3] / "roles/models/templates/download.sh"

TRICKS = {
    "a link for the new file": 'ln -s "$outside/secret" "$folder/.complete.new"',
    "a link to a folder": 'ln -s "$outside/cron.d" "$folder/.complete"',
    "a folder": 'mkdir -p "$folder/.complete/x" "$folder/.complete.new/x"',
    "a FIFO": 'mkfifo "$folder/.complete" "$folder/.complete.new"',
    "a dangling link": 'ln -s "$outside/new" "$folder/.complete.new"',
}


@pytest.mark.parametrize("trick", TRICKS)
def test_what_the_program_left_is_not_followed(tmp_path: Path, trick: str) -> None:
    """Root writes the word that all is there; with a link it would be written to another file."""
    outside, folder = tmp_path / "outside", tmp_path / "model"
    secret = put(outside / "secret", "root's\n", mode=0o600)
    (outside / "cron.d").mkdir()
    folder.mkdir()
    hf = put(
        tmp_path / "hf", f"#!/bin/sh\noutside={outside} folder={folder}\n{TRICKS[trick]}\n", 0o755
    )
    words = ["sh", SCRIPT, tmp_path / "work", "name", hf, "org/m", "main", folder]
    with subprocess.Popen(
        words, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, start_new_session=True
    ) as process:
        assert process.wait(60) == 0
    # What tells the progress may outlive so short a download; a unit ends it.
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    assert (folder / ".complete").read_text() == "org/m@main\n"
    assert not (folder / ".complete").is_symlink()
    assert (folder / ".complete").stat().st_mode & 0o777 == 0o644
    assert (secret.read_text(), secret.stat().st_mode & 0o777) == ("root's\n", 0o600)
    assert sorted(path.name for path in outside.rglob("*")) == ["cron.d", "secret"]

"""`lint` as a shell sees it: what it says, what it writes, how it ends."""

import os
import stat
from pathlib import Path

import pytest
from click.testing import Result
from factories import put
from program import invoke

BAD = "vllm serve google/gemma-4-31B-it --host 127.0.0.1 --gpu-memory-utilization 0.5 " + (
    "--enable-auto-tool-choice --tool-call-parser pythonic"
)


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def run(*words: str, stdin: str = "") -> Result:
    return invoke("lint", *words, stdin=stdin, catch_exceptions=False)


def test_a_command_is_repaired_on_standard_output_alone():
    result = run("--command", BAD, "--fix")
    assert (result.exit_code, result.stdout) == (0, BAD.replace("pythonic", "gemma4") + "\n")
    assert "gemma4-pythonic-parser" in result.stderr


def test_a_new_file_is_the_users_own_and_a_device_stays_one(folder):
    put(folder / "serve.sh", f"{BAD}\n")
    mask = os.umask(0o077)
    try:
        assert run("./serve.sh", "--fix", "--output", "new.sh").exit_code == 0
    finally:
        os.umask(mask)
    assert stat.S_IMODE((folder / "new.sh").stat().st_mode) == 0o600
    device = folder / "device"
    device.symlink_to("/dev/null")
    assert run("./serve.sh", "--fix", "--output", str(device)).exit_code == 0
    assert device.is_symlink()

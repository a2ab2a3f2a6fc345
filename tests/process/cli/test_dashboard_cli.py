"""`dashboard --open`: what other users of the machine see of it."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import readme
from factories import put
from hostile import user
from waiting import until

from spark_cluster.cli import cli
from spark_cluster.errors import UsageError

ARGUMENTS = """
for path in Path("/proc").glob("[0-9]*/cmdline"):
    try:
        print(path.read_text().replace(chr(0), " "))
    except OSError:
        pass
"""


@pytest.fixture
def opened(open_path: Path) -> Iterator[tuple[subprocess.Popen[str], str, Path]]:
    """The command, the token of its address, and the file with the words of its browser."""
    user.reachable(open_path)
    inventory = put(open_path / "inventory.yaml", "nodes: {a: {address: 127.0.0.1, port: 1}}\n")
    words = open_path / "words"
    browser = put(
        open_path / "browser", "#!/bin/sh\n"
        f'echo $$ > {words}.pid; printf %s "$1" > {words}.new; mv {words}.new {words}\n'
        "sleep 600\n", 0o755,
    )  # fmt: skip
    (open_path / "home").mkdir()
    argv = [sys.executable, "-m", "spark_cluster", "-i", str(inventory)]
    argv += [*readme.words("spark-cluster dashboard"), "--open"]
    env = {**os.environ, "BROWSER": f"{browser} %s &", "HOME": str(open_path / "home")}
    with subprocess.Popen(argv, stdout=subprocess.PIPE, text=True, env=env) as process:
        try:
            address = process.stdout.readline().strip()
            assert "token=" in address
            until(words.exists, what="the browser")
            yield process, address, words
        finally:
            process.kill()
            os.killpg(int(Path(f"{words}.pid").read_text()), signal.SIGKILL)


@user.needs_root
def test_no_other_user_learns_the_token(opened):
    process, address, words = opened
    seen = user.run(ARGUMENTS)
    assert words.read_text() in seen.stdout, "it sees the browser"
    assert address.partition("token=")[2] not in seen.stdout
    page = Path(words.read_text().removeprefix("file://"))
    assert f"url={address}" in page.read_text()
    tried = user.run(f"print(open({str(page)!r}).read())")
    assert "PermissionError" in tried.stderr
    process.send_signal(signal.SIGINT)
    process.wait(120)
    assert not page.exists()


@pytest.mark.parametrize("library", ["starlette.applications", "uvicorn"])
def test_without_the_extra_it_says_how_to_install_it(library, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, library, None)
    monkeypatch.delitem(sys.modules, "spark_cluster.dashboard.server", raising=False)
    inventory = tmp_path / "inventory.yaml"
    inventory.write_text("nodes:\n  spark1:\n    address: 127.0.0.1\n")
    with pytest.raises(UsageError, match="which is not installed") as found:
        cli.main(["-i", str(inventory), "dashboard"], standalone_mode=False)
    assert found.value.message.startswith(f"the dashboard needs {library}")
    assert "`dashboard`" in found.value.hint

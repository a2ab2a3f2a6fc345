"""Commands of a scratch node: its fakes run in this process, all others as real processes.

A fake is also a file in the node's folder of commands, for scripts and whatever else starts one.
"""

import importlib
import io
import shutil
import sys
from collections.abc import Callable, Sequence
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from unittest import mock

from spark_cluster.node.processes import Cancelled, Completed, Processes

FAKES = Path(__file__).parent / "fakes"


def script(root: Path, fake: str, command: str) -> str:
    """The program that is a fake command of the node with this root."""
    return (
        f"#!{sys.executable} -IS\nimport sys\nsys.path.insert(0, {str(FAKES)!r})\n"
        f"import common, fake_{fake}\n"
        f"main = fake_{fake}.main\n"
        f"sys.exit(common.run(main, {str(root)!r}, {fake!r}, {command!r}, sys.argv[1:]))\n"
    )


def call(root: Path, fake: str, command: str, words: list[str], stdin: str) -> tuple[int, str, str]:
    """Run a fake command of the node with this root in this process; return its exit status and
    its two outputs."""
    with mock.patch.object(sys, "path", [str(FAKES), *sys.path]):
        common, module = (importlib.import_module(n) for n in ("common", f"fake_{fake}"))
    out, err = io.StringIO(), io.StringIO()
    given = mock.patch.object(sys, "stdin", io.StringIO(stdin))
    with redirect_stdout(out), redirect_stderr(err), given:
        status = common.run(module.main, str(root), fake, command, words)
    return status, out.getvalue(), err.getvalue()


@dataclass
class FakeProcesses(Processes):
    """Processes of a scratch node; an interpreter for each fake would take most of the tests' time.

    Attributes:
        bin: the node's folder of commands.
        fakes: the fake of each command that is one.
    """

    root: Path = field(kw_only=True)
    bin: Path = field(kw_only=True)
    fakes: dict[str, str] = field(kw_only=True)

    def run(
        self,
        argv: Sequence[str],
        *,
        stdin: bytes = b"",
        on_output: Callable[[str], None] | None = None,
        **options: Any,
    ) -> Completed:
        if not self._is_fake(argv[0], options):
            return super().run(argv, stdin=stdin, on_output=on_output, **options)
        command, *words = argv
        status, out, err = call(self.root, self.fakes[command], command, words, stdin.decode())
        for line in (out + err).splitlines() if on_output is not None else ():
            on_output(line.rstrip())
        if self.cancelled.is_set() and not options.get("must_finish"):
            raise Cancelled
        return Completed(tuple(argv), status, out, err)

    def _is_fake(self, command: str, options: dict[str, Any]) -> bool:
        """Return whether a process would be this fake, of which only its words matter."""
        if command not in self.fakes or options.get("cwd") or options.get("user"):
            return False
        found = shutil.which(command, path=options["env"]["PATH"])
        if found != str(self.bin / command):
            return False
        return Path(found).read_text() == script(self.root, self.fakes[command], command)

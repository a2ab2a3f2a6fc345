"""Programs of a fake node: real commands on its PATH, whose answers are functions of the test.

Each hands its words and its input to the tests' own process and prints what comes back: three
milliseconds of a shell, where an interpreter for each call would take most of the tests' time.
"""

import os
import threading
import traceback
from collections import UserDict
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

from factories import put

SCRIPT = """\
#!/bin/sh
# Hand the words and the input to the tests' process, and print what it answers.
call={folder}/$$
mkfifo "$call.answer"
cat > "$call.input"
printf '%s\\0' "${{0##*/}}" "$@" > "$call.words"
echo $$ > {folder}/calls
{{ read -r status; cat; }} < "$call.answer"
test ! -s "$call.error" || cat "$call.error" >&2
rm -f "$call".*
exit "$status"
"""


@dataclass(frozen=True)
class Said:
    """What a program prints, and its exit status."""

    stdout: str = ""
    stderr: str = ""
    status: int = 0


Program = Callable[[list[str], str], "Said | str"]
"""Is given the words after the program's name, and its standard input."""


def missing(_words: list[str], _stdin: str) -> Said:
    """Answer as a shell does for a program that is not installed."""
    return Said(stderr="not found\n", status=127)


class Programs(UserDict[str, Program]):
    """The programs of one node by name, which answer until `close`; one that is set is installed
    where the node has none of this name, as a file that a test has put there.

    Args:
        folder: a folder for what is handed over; made.
        path: the folder on the node's PATH.
        lacks: names of programs that the node lacks, and this machine may have.

    Attributes:
        calls: the words of each call, in the order in which they came.
        faults: tracebacks of programs that raised; such a call ends with status 70.
    """

    def __init__(self, folder: Path, path: Path, lacks: Iterable[str]) -> None:
        super().__init__()
        self._folder, self._path = folder, path
        self._script = SCRIPT.format(folder=folder)
        self.calls: list[list[str]] = []
        self.faults: list[str] = []
        folder.mkdir()
        os.mkfifo(folder / "calls")
        # Also open for writing: it does not end with each program that has written.
        self._asked = os.fdopen(os.open(folder / "calls", os.O_RDWR), "r+b", buffering=0)
        self._listener = threading.Thread(target=self._listen, daemon=True)
        self._listener.start()
        self.update(dict.fromkeys(lacks, missing))

    def __setitem__(self, name: str, program: Program) -> None:
        super().__setitem__(name, program)
        if not (self._path / name).exists():
            put(self._path / name, self._script, 0o755)

    def _listen(self) -> None:
        rest = b""
        while b"end" not in (rest := rest + os.read(self._asked.fileno(), 4096)):
            *whole, rest = rest.split(b"\n")
            for number in whole:
                threading.Thread(target=self._answer, args=(number.decode(),), daemon=True).start()

    def _answer(self, number: str) -> None:
        place = self._folder / number
        name, *words = place.with_suffix(".words").read_text().split("\0")[:-1]
        self.calls.append([name, *words])
        try:
            said = self[name](words, place.with_suffix(".input").read_text())
        except Exception:  # noqa: BLE001  (any fault of a test is its to see)
            self.faults.append(f"{name} {words}\n{traceback.format_exc()}")
            said = Said(stderr=self.faults[-1], status=70)
        done = Said(said) if isinstance(said, str) else said
        place.with_suffix(".error").write_text(done.stderr)
        try:
            place.with_suffix(".answer").write_text(f"{done.status}\n{done.stdout}")
        except BrokenPipeError:  # it was ended meanwhile
            return

    def close(self) -> None:
        """End the listener, once nothing calls any more."""
        self._asked.write(b"end")
        self._listener.join()
        self._asked.close()

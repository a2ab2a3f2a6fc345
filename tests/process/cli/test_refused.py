"""What commands refuse before a node is asked: each mistake has its words, and leaves no trace."""

import io
import json
import shlex
from pathlib import Path

import pytest
from cases import cases
from factories import put

GROUPS = cases(__file__, "refused.toml")
INVENTORIES = GROUPS.pop("inventories")
CASES = [
    {"in": "one", "status": 2, "files": {}, **group, **case}
    for group in GROUPS.values()
    for case in group["refused"]
]


def files(folder: Path) -> list[Path]:
    """Return all files but the records of runs."""
    return sorted(
        path for path in folder.rglob("*") if path.is_file() and "state" not in path.parts
    )


@pytest.mark.parametrize("case", CASES, ids=lambda case: case["words"][:60])
def test_a_mistake_is_refused_in_words_and_changes_nothing(tmp_path, program, monkeypatch, case):
    """The addresses are known to no name server: had one been asked, that would be the error."""
    words = shlex.split(case["words"])
    for name, text in {"inventory.yaml": INVENTORIES[case["in"]], **case["files"]}.items():
        if text:
            put(tmp_path / name, text)
    before = files(tmp_path)

    def ended(*options):
        monkeypatch.setattr(
            "sys.stdin", io.TextIOWrapper(io.BytesIO(case.get("stdin", "").encode()))
        )
        return program(*options, *words)

    done = ended()
    assert (done.returncode, done.stdout) == (case["status"], ""), done.stdout + done.stderr
    assert case["said"] in " ".join(done.stderr.split())
    assert "x1y2" not in done.stderr, "a secret"
    as_json = ended("--json")
    error = json.loads(as_json.stdout)["error"]
    assert (as_json.returncode, {*error}) == (case["status"], {"message", "where", "hint"})
    assert case["said"] in " ".join("{where}: {message} {hint}".format(**error).split())
    assert files(tmp_path) == before

"""What commands show to people without asking a node: words in, words out."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Any

import pytest
from cases import cases
from program import invoke

DATA = Path(__file__).parents[2] / "data"
CASES = cases(__file__, "shown.toml", DATA=str(DATA), KITS=str(DATA / "kits"))


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_what_people_read(tmp_path: Path, case: dict[str, Any]) -> None:
    done = invoke(*shlex.split(case["words"]), project=tmp_path, stdin=case.get("stdin", ""))
    told = " ".join(done.output.split()) + " "
    assert done.exit_code == case.get("status", 0), told
    assert told.startswith(case.get("begins", ""))
    for text in case.get("says", ()):
        assert text in told
    for text in case.get("lacks", ()):
        assert text not in told

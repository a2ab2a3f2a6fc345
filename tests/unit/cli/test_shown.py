"""What commands show and write without asking a node: words in, words out."""

import functools
import json
import operator
import shlex
from pathlib import Path

import json_schema
import pytest
from cases import cases, holds
from factories import put
from program import invoke

DATA = Path(__file__).parents[2] / "data"
WORDS = {"DATA": str(DATA), "KITS": str(DATA / "kits")}
FILES = ("shown.toml", "documents.toml")
CASES = {key: case for name in FILES for key, case in cases(__file__, name, **WORDS).items()}


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_what_people_and_programs_read(tmp_path, monkeypatch, case):
    monkeypatch.chdir(tmp_path)
    for name, text in case.get("files", {}).items():
        put(tmp_path / name, text)
    done = invoke(*shlex.split(case["words"]), project=tmp_path, stdin=case.get("stdin", ""))
    told = " ".join(done.output.split()) + " "
    assert done.exit_code == case.get("status", 0), (told, done.exception)
    assert told.startswith(case.get("begins", ""))
    for text in case.get("says", ()):
        assert text in told
    for text in case.get("lacks", ()):
        assert text not in told
    if "schema" in case:
        json_schema.document(case["schema"], done.stdout)
    if "holds" in case:
        assert holds(json.loads(done.stdout), case["holds"]), done.stdout
    for path, [value, share] in case.get("near", {}).items():
        found = functools.reduce(operator.getitem, path.split("."), json.loads(done.stdout))
        assert found == pytest.approx(value, rel=share), path
    for name, texts in case.get("left", {}).items():
        content = (tmp_path / name).read_text()
        assert [text for text in texts if text not in content] == [], content

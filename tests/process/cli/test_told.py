"""What commands tell of nodes, one after another: real agents, scripts in place of programs."""

import json
import shlex

import json_schema
import pytest
from cases import cases, holds
from factories import put

GROUPS = cases(__file__, "told.toml")
CASES = {
    f"{group}: {name}": {**case, "files": shared["files"] | case.get("files", {})}
    for group, shared in GROUPS.items()
    for name, case in shared.items()
    if name != "files"
}


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_what_is_told_of_nodes(project, run, monkeypatch, case):
    monkeypatch.setenv("COLUMNS", "200")
    for name, text in case["files"].items():
        mode = 0o755 if text.startswith("#!") else 0o644
        put(project / name, text.replace("$PROJECT", str(project)), mode)
    for step in case["steps"]:
        status, out, err = run(*shlex.split(step["words"]))
        told = " ".join((out + err).split())
        assert status == step.get("status", 0), told
        for text in step.get("says", ()):
            assert text in told
        for text in step.get("lacks", ()):
            assert text not in told
        if "schema" in step:
            json_schema.document(step["schema"], out)
        if "holds" in step:
            assert holds(json.loads(out), step["holds"]), out
    for name, text in case.get("left", {}).items():
        assert (project / name).read_text() == text
    for name in case.get("absent", ()):
        assert not (project / name).exists()

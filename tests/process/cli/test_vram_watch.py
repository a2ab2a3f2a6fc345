"""`vram --watch` on real agents: readings one after another, with the largest so far."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from factories import put

INVENTORY = "nodes: {spark1: {address: 10.0.0.1, roles: [head]}}\n"
RISING = """\
#!/bin/sh
echo x >> {folder}/asked
case $(wc -l < {folder}/asked) in
1) echo "17, vllm, 100" ;;
2) echo "17, vllm, 900" ;;
*) echo "17, vllm, 300" ;;
esac
"""


@pytest.fixture
def rising(project: Path, monkeypatch) -> Path:
    """A node whose process holds more, and then less."""
    monkeypatch.setenv("COLUMNS", "120")
    put(project / "inventory.yaml", INVENTORY)
    script = RISING.format(folder=project)
    return put(project / "spark1/usr/local/bin/nvidia-smi", script, 0o755)


def test_the_peak_stays_when_the_memory_is_back(run, rising):
    status, out, err = run("vram", "--watch", "--count", "3", "--interval", "0.5", "--json")
    assert status == 0, err
    lines = [json.loads(line)["nodes"][0] for line in out.splitlines()]
    assert [(one["used_mib"], one["peak_mib"]) for one in lines] == [
        (100, 100), (900, 900), (300, 900),
    ]  # fmt: skip


def test_without_a_terminal_there_is_a_table_each_time(run, rising):
    status, out, _ = run("vram", "--watch", "--count", "2", "--interval", "0.5")
    assert status == 0
    assert out.count("peak") == 2
    assert "900" in out


def test_a_driver_that_fails_ends_it(run, rising):
    put(rising, "#!/bin/sh\necho broken >&2\nexit 9\n", 0o755)
    status, _, err = run("vram", "--watch", "--count", "2")
    assert (status, "nvidia-smi does not answer: broken" in err) == (1, True)

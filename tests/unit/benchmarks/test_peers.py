"""Results that the engine benchmark reads from other tools, which all get the same play."""

from types import SimpleNamespace

import pytest

from benchmarks.engine import work
from benchmarks.engine.peers import Ansible, Pyinfra, ToolError
from benchmarks.engine.playbook_ours import resources


def tool(kind, tmp_path, nodes=1):
    made = object.__new__(kind)
    made.folder = made.sources = tmp_path
    made.site = SimpleNamespace(nodes=[None] * nodes)
    return made


def test_the_play_has_50_resources_of_which_35_can_change(tmp_path):
    work.Sources(tmp_path).write()
    ours = list(resources(tmp_path))
    assert len({resource.id for resource in ours}) == len(ours) == work.RESOURCES
    assert len(tool(Ansible, tmp_path).tasks()) == work.RESOURCES
    unchanging = len(work.CHECKS) + len(work.SYSCTLS)
    assert work.RESOURCES - unchanging == work.CHANGES


def test_ansible_recap(tmp_path):
    recap = "spark1 : ok=50   changed=35   unreachable=0    failed=0    skipped=0\n"
    assert tool(Ansible, tmp_path).changes(f"PLAY RECAP ***\n{recap}") == {"spark1": 35}


def test_ansible_that_left_tasks_out_is_an_error(tmp_path):
    with pytest.raises(ToolError, match="all tasks"):
        tool(Ansible, tmp_path).changes("n : ok=49 changed=0 unreachable=0 failed=0 skipped=1\n")


@pytest.mark.parametrize(
    ("total", "changed"), [("70  70  -  -", 70), ("70  -  -  70", 0), ("70  1  -  69", 1)]
)
def test_pyinfra_totals(tmp_path, total, changed):
    assert tool(Pyinfra, tmp_path, 2).changes(f"Grand total   {total}\n") == {"all": changed}


@pytest.mark.parametrize("text", ["", "Grand total  70  60  10  -", "Grand total  69  69  -  -"])
def test_pyinfra_that_did_less_is_an_error(tmp_path, text):
    with pytest.raises(ToolError, match="all operations"):
        tool(Pyinfra, tmp_path, 2).changes(text)

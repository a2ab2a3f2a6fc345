"""Plays over two nodes with real agents on scratch roots: barriers, failures, stages, events."""

import json
import time

import pytest
from cases import each_case
from factories import put, read_inventory
from piped_cluster import Events, play_on
from waiting import HANG_S

from spark_cluster.cli.results import Recap
from spark_cluster.config.inventory import part_of
from spark_cluster.config.project import Project
from spark_cluster.errors import Failed, Unreachable, UsageError
from spark_cluster.node.values import Secret
from spark_cluster.resources import Command, Directory, File, Line
from spark_cluster.runner.events import Bus, Options, Selection
from spark_cluster.runner.parallel import in_parallel

INVENTORY = """\
nodes:
  spark1: {address: 10.0.0.1, roles: [head], settings: {greet: {text: one}}}
  spark2: {address: 10.0.0.2, settings: {greet: {text: two}}}
"""
SETTINGS = """\
from pydantic import BaseModel
from spark_cluster.resources import Directory, File
class Settings(BaseModel):
    text: str = "none"
    more: int = 0
def role(node, settings):
"""
GREET = f"""\
{SETTINGS}    yield Directory("/srv")
    yield File("/srv/greeting", content=f"{{node.name}} {{settings.text}} {{settings.more}}\\n")
"""


@pytest.fixture
def make(tmp_path, piped_nodes):
    """`make(options) -> play` in a project with the role `greet`; `play.events`, `play.recap`."""
    put(tmp_path / "inventory.yaml", INVENTORY)
    put(tmp_path / "roles/greet/__init__.py", GREET)
    project = Project(tmp_path)
    inventory = read_inventory(tmp_path / "inventory.yaml")

    opened = []

    def play(**options):
        recap, events = Recap(), Events()
        for former in opened:  # it holds the lock
            former.connections.close()
        bus = Bus()
        made = play_on(inventory, project, piped_nodes.dial, bus, Options(**options), run="run1")
        bus.add(recap)
        bus.add(events)
        made.events, made.recap = events, recap
        opened.append(made)
        return made

    return play


# -- applying ----------------------------------------------------------------------------------


def test_a_role_on_both_nodes(make, tmp_path):
    play = make()
    applied = play.apply(play.nodes, "greet")
    assert applied.changed
    assert applied.changes("spark1") == ["Directory:/srv", "File:/srv/greeting"]
    assert (tmp_path / "spark1/srv/greeting").read_text() == "spark1 one 0\n"
    assert (tmp_path / "spark2/srv/greeting").read_text() == "spark2 two 0\n"
    assert [(a.node, a.role, a.resources) for a in play.events.of("Applying")] in (
        [("spark1", "greet", 2), ("spark2", "greet", 2)],
        [("spark2", "greet", 2), ("spark1", "greet", 2)],
    )
    again = play.apply(play.nodes, "greet")
    assert not again.changed
    assert [(t.ok, t.change) for t in play.recap.nodes.values()] == [(2, 2), (2, 2)]
    assert play.recap.changed == 4


def test_settings_of_the_playbook_lie_over_the_inventorys(make, tmp_path):
    play = make()
    play.apply(play.head, play.role("greet", more=7))
    assert (tmp_path / "spark1/srv/greeting").read_text() == "spark1 one 7\n"
    assert not (tmp_path / "spark2/srv").exists()
    with pytest.raises(UsageError, match=r"role greet on spark1: more:"):
        play.apply(play.head, play.role("greet", more="many"))


def test_nodes_work_in_parallel(make, tmp_path):
    """Each command ends only when the other node is at work at the same time."""
    play = make()
    other = {"spark1": "spark2", "spark2": "spark1"}

    def meeting(me):
        wait = f"while ! [ -e {tmp_path}/{other[me]}.here ]; do sleep 0.02; done"
        return Command("meet", ("sh", "-c", f"touch {tmp_path}/{me}.here; {wait}"))

    applied = play.on_each(play.nodes, lambda node: play.apply(node, [meeting(node.name)]))
    assert [name for name in applied if applied[name].changed] == ["spark1", "spark2"]


# -- failures ----------------------------------------------------------------------------------


def half(tmp_path):
    """Fails on spark1 only."""
    (tmp_path / "spark1/file").write_text("")
    return [Directory("/file"), File("/file/x", content="")]


def test_a_failure_ends_the_run_once_the_others_are_done(make, tmp_path):
    play = make()
    with pytest.raises(Failed, match="Directory:/file: /file is a file, not a directory") as caught:
        play.apply(play.nodes, half(tmp_path))
    assert caught.value.where == "spark1: role playbook"
    assert "move it away" in caught.value.hint
    assert (tmp_path / "spark2/file/x").exists()
    assert list(play.out) == ["spark1"]
    assert [e.node for e in play.events.of("NodeFailed")] == ["spark1"]
    assert play.recap.nodes["spark1"].failed == 1


@each_case(__file__, "known_failures.json")
def test_a_known_failure_ends_with_cause_and_fix(make, case):
    """P05: what Docker prints is explained where a run fails, not only by `explain`."""
    said = f"Error response from daemon: {case['said']}"
    script = f"echo Pulling from nvidia/vllm; echo '{said}' >&2; exit 1"
    play = make()
    with pytest.raises(Failed, match="Error response from daemon") as caught:
        play.apply(play.nodes[0], [Command("pull", ("sh", "-c", script))])
    assert case["cause"] in caught.value.hint
    assert case["fix"] in caught.value.hint
    assert caught.value.hint == play.events.of("Result")[-1].hint


def test_a_node_that_a_role_refuses_has_failed(make, tmp_path):
    """Before any of its resources could: the recap does not say that nothing failed there."""
    refuses = GREET + (
        "    if node.name == 'spark1':\n"
        "        from spark_cluster.errors import Refused\n"
        "        raise Refused('not on this one')\n"
    )
    put(tmp_path / "roles/greet/__init__.py", refuses)
    play = make()
    play.apply(play.nodes, "greet", fail_fast=False)
    assert [tally.failed for tally in play.recap.nodes.values()] == [1, 0]
    assert play.recap.nodes["spark2"].change == 2


def test_a_failure_that_may_be(make, tmp_path):
    play = make()
    both = play.nodes
    play.apply(both, half(tmp_path), fail_fast=False)
    assert [n.name for n in play.nodes] == ["spark2"]
    play.apply(both, [File("/after", content="")], fail_fast=False)
    assert (tmp_path / "spark2/after").exists()
    assert not (tmp_path / "spark1/after").exists()


def test_a_node_that_is_lost(make, tmp_path):
    play = make()
    kill = Command("die", ("sh", "-c", "kill -9 $PPID"))
    play.together(
        lambda: play.apply(play.workers, [File("/fine", content="")]),
        lambda: play.apply([play.head], [kill], fail_fast=False),
    )
    assert isinstance(play.out["spark1"], Unreachable)
    assert play.recap.nodes["spark1"].unreachable
    assert [n.name for n in play.nodes] == ["spark2"]
    with pytest.raises(Unreachable):
        play.connections.session("spark1").run(["true"])


@each_case(__file__, "roles_that_raise.json")
def test_a_role_that_raises(make, tmp_path, case):
    """Half a step is worse than none: nothing is sent, to no node."""
    path = put(tmp_path / "roles/bad/__init__.py", f"{SETTINGS}    {case['body']}\n")
    play = make()
    with pytest.raises(Failed) as caught:
        play.apply(play.nodes, "greet", "bad")
    assert case["error"] in caught.value.message
    assert caught.value.where == f"{path}:{case['line']}"
    assert "bad" in caught.value.hint
    assert not (tmp_path / "spark1/srv").exists(), "something was sent"
    assert play.events.of("Applying") == []


# -- check mode, selection, secrets --------------------------------------------------------------


def test_tags(make, tmp_path):
    play = make(selection=Selection(tags=frozenset({"small"})))
    play.apply(
        play.head, "greet", [File("/a", content="", tags=("small",)), File("/b", content="")]
    )
    assert [p.name for p in (tmp_path / "spark1").iterdir() if p.is_file()] == ["a"]
    assert play.recap.nodes["spark1"].skipped == 3
    assert play.options.selection.unmatched() is None
    skipped = [e.resource for e in play.events.of("Result") if e.verdict == "skipped"]
    assert skipped == ["Directory:/srv", "File:/srv/greeting", "File:/b"]
    # Nothing is left to send: no network turn at all.
    before = len(play.events.of("Applying"))
    assert not play.apply(play.head, "greet").changed
    assert len(play.events.of("Applying")) == before


def test_a_misspelt_tag_is_refused_before_a_right_one_changes_anything(make):
    play = make(selection=Selection(tags=frozenset({"memory", "contaners"})))
    play.inventory = part_of(play.inventory, ["spark1"])  # this machine has no cable to a second
    with pytest.raises(UsageError) as caught:
        play.project.load_playbook("provision").function(play)
    assert caught.value.message.startswith("--tags contaners: nothing in this run")
    assert caught.value.hint == "did you mean containers?"
    assert play.events.of("Applying") == []


def test_a_restart_that_is_left_out_by_tags_is_still_owed(make, tmp_path):
    """Otherwise the next whole run finds the file as it should be, and never restarts."""
    config = File("/config", content="2", tags=("config",))
    restart = Command("restart", ("touch", f"{tmp_path}/restarted"), when_changed=(config,))
    play = make(selection=Selection(tags=frozenset({"config"})))
    play.apply(play.head, [config, restart])
    assert not (tmp_path / "restarted").exists()
    play = make()
    applied = play.apply(play.head, [config, restart])
    assert applied.changes("spark1") == ["Command:restart"]
    assert (tmp_path / "restarted").exists()


def test_secrets_in_names_are_masked_but_found(make, tmp_path):
    play = make(diff=True)
    key = Secret("hunter2")
    applied = play.apply(
        play.head,
        [
            File("/key", content=key),
            File(f"/{'hunter2'}.txt", content="x"),
            Line("/list", line=key, create=True),
        ],
    )
    assert f"File:/{'hunter2'}.txt" in applied.changes("spark1")
    said = json.dumps([e.to_dict() for e in play.events], default=str)
    assert "hunter2" not in said
    assert "File:/***.txt" in said
    assert (tmp_path / "spark1/list").read_text() == "hunter2\n"


# -- stages, together, on_each ---------------------------------------------------------------------


def test_stages(make):
    """Seconds of stages of one name are added; one that lost a node or that raises is not ok."""
    play = make()
    with play.stage("one"):
        time.sleep(0.05)
    with play.stage("one"):
        play.apply(play.nodes[0], [Command("breaks", ("false",))], fail_fast=False)
    with pytest.raises(ValueError, match="oops"), play.stage("two"):
        raise ValueError("oops")
    assert list(play.seconds) == ["one", "two"]
    assert 0.05 <= play.seconds["one"] < HANG_S
    assert [e.stage for e in play.events.of("StageStarted")] == ["one", "one", "two"]
    ended = [(e.stage, e.ok) for e in play.events.of("StageFinished")]
    assert ended == [("one", True), ("one", False), ("two", False)]


def test_together(make):
    play = make()
    done = []

    def fail():
        raise Failed("no")

    with pytest.raises(Failed, match="no"):
        play.together(fail, lambda: (time.sleep(0.1), done.append(1)))
    assert done == [1], "the others are waited for"


def test_in_parallel():
    def fail():
        raise Failed("no")

    outcomes = in_parallel({"a": lambda: 1, "b": fail})
    assert outcomes["a"] == 1
    assert isinstance(outcomes["b"], Failed)
    assert in_parallel({}) == {}
    for jobs in ({"a": lambda: 1 / 0}, {"a": lambda: 1, "b": lambda: 1 / 0}):
        with pytest.raises(ZeroDivisionError):
            in_parallel(jobs)


# -- a part of the nodes -------------------------------------------------------------------------


def test_a_part_of_the_nodes_is_a_cluster_of_its_own(make, tmp_path):
    play = make()
    part = play.part(["spark2"])
    assert part.head.name == "spark2"
    assert part.head.cluster == (part.head,)
    assert part.workers == []
    assert set(part.sessions) == {"spark2"}
    part.apply(part.nodes, "greet")
    assert not (tmp_path / "spark1/srv").exists()
    assert (tmp_path / "spark2/srv/greeting").read_text() == "spark2 two 0\n"
    assert [node.name for node in play.nodes] == ["spark1", "spark2"]
    assert play.head.name == "spark1"


def test_a_node_that_a_part_loses_is_lost_to_the_whole(make):
    play = make()
    part = play.part(["spark2"])
    with pytest.raises(Failed):
        part.apply(part.head, [Command("fail", ("false",))])
    assert [node.name for node in play.nodes] == ["spark1"]
    play.connections.close()
    assert part.connections.closing

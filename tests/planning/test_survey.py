"""Questions of a plan to nodes, and how the answers are used."""

from __future__ import annotations

from types import SimpleNamespace

from spark_cluster.engine.survey import survey
from spark_cluster.facts.model import Facts, Memory
from spark_cluster.topology import Node

APPS = {"status": 0, "stdout": "4711, VLLM::EngineCore, 2048\n", "stderr": ""}


def test_each_node_is_asked_once_for_who_holds_memory_and_whether_the_model_is_there():
    asked = []

    def session(node):
        def submit(kind, **question):
            asked.append((node.name, kind, question["files"]["done"]))
            files = {"meminfo": "", "done": "org/m@main\n" if node.is_head else None}
            return SimpleNamespace(wait=lambda: {"files": files, "commands": {"apps": APPS}})

        return SimpleNamespace(submit=submit)

    facts = Facts(memory=Memory(127_600_748, 123_731_900))
    nodes = [Node("b", is_head=False, facts=facts), Node("a", facts=facts)]
    rooms, found = survey(SimpleNamespace(nodes=nodes, session=session), "/data/m")
    assert asked == [("a", "gather", "/data/m/.complete"), ("b", "gather", "/data/m/.complete")]
    assert [room.name for room in rooms] == ["a", "b"], "the head first"
    assert [room.has_model for room in rooms] == [True, False]
    assert rooms[0].held_gib == 2.0
    assert found == [facts, facts]

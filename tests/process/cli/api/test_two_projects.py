"""Two projects open in one process, used from two threads: each has its own code and files."""

import json
import threading
from pathlib import Path

import pytest
from factories import KNOWN_ISSUE, put
from piped_cluster import PipedNodes
from waiting import HANG_S

from spark_cluster import Cluster, resources
from spark_cluster.errors import InvalidFile
from spark_cluster.issues.entries import catalogue

RESOURCE = """\
from dataclasses import dataclass
from spark_cluster.resources import Resource
from spark_cluster_project.resources._words import WORD

@dataclass(frozen=True)
class Thing(Resource):
    path: str

    def desired(self):
        return {{"text": WORD}}

    def observe(self, host):
        return {{"text": (host.read(self.path) or b"").decode()}}

    def converge(self, host, actual):
        host.write(self.path, "{name}".encode())
"""
ROLE = """\
from pydantic import BaseModel

class Settings(BaseModel):
    pass

def role(node, settings):
    from spark_cluster.resources import Thing  # late: both projects are loaded by now
    from .place import PLACE
    yield Thing(PLACE)
"""
PLAYBOOK = """\
import threading
from spark_cluster.issues.entries import catalogue

def main(play):
    play.project.load_role("mark")
    threading.both_are_loaded.wait({limit})
    play.apply(play.nodes, "mark")
    return "own-thing" in catalogue() and catalogue()["own-thing"].title
"""


@pytest.fixture
def clusters(
    tmp_path: Path, piped_nodes: PipedNodes, monkeypatch: pytest.MonkeyPatch
) -> dict[str, Cluster]:
    """The clusters of two projects, with files of the same names and different content."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    for name in ("one", "two"):
        folder = tmp_path / f"project-{name}"
        put(folder / "inventory.yaml", f"nodes: {{{name}: {{address: 10.0.0.1, roles: [head]}}}}\n")
        put(folder / "resources/thing.py", RESOURCE.format(name=name))
        put(folder / "resources/_words.py", f"WORD = {name!r}\n")
        put(folder / "roles/mark/__init__.py", ROLE)
        put(folder / "roles/mark/place.py", f"PLACE = '/of-{name}'\n")
        put(folder / "playbooks/mine.py", PLAYBOOK.format(limit=HANG_S))
        put(folder / "known_issues/own.toml", KNOWN_ISSUE.replace("of ours", f"of {name}"))
    return {name: Cluster(project=tmp_path / f"project-{name}") for name in ("one", "two")}


def test_each_has_its_own_code_in_two_threads(clusters, tmp_path, monkeypatch):
    monkeypatch.setattr(threading, "both_are_loaded", threading.Barrier(2), raising=False)
    streams = {name: each.events(each.playbook, "mine") for name, each in clusters.items()}
    for stream in streams.values():
        stream.__enter__()
    for name, stream in streams.items():
        found = stream.result()
        assert found.ok, found.errors
        assert (found.run.changed, found.result) == (1, f"something of {name}")
        assert (tmp_path / name / f"of-{name}").read_text() == name
    events = [json.dumps(event.to_dict()) for event in streams["one"]]
    assert not any("/of-two" in event for event in events)
    assert "own-thing" not in catalogue(), "outside of a run no project is in use"


def test_one_that_is_wrong_leaves_the_other_alone(clusters):
    put(
        clusters["two"].project.folder / "resources/thing.py", "from spark_cluster import nothing\n"
    )
    with clusters["one"].in_use():
        with pytest.raises(InvalidFile, match="resource thing"):
            clusters["two"].in_use()
        assert resources.Thing("/x").desired() == {"text": "one"}

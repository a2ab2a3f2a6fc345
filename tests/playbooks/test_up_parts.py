"""`up`, in parts: who serves, where the endpoint is, which share of the memory; `down`'s proof."""

from __future__ import annotations

from ipaddress import IPv4Interface
from types import SimpleNamespace

import pytest

from spark_cluster.cluster import Spark
from spark_cluster.errors import Failed, Refused
from spark_cluster.facts.model import Facts, Interface, Memory
from spark_cluster.project import Project, shipped_folder
from spark_cluster.recipe import load_recipe
from spark_cluster.serving.endpoint import management_ip
from spark_cluster.serving.readiness import ContainerState
from spark_cluster.userfiles.inventory_file import ServeEntry

PROJECT = Project(shipped_folder(), shipped_folder())
UP = PROJECT.load_playbook("up").function.__globals__
GIB = 2**20


def node(name, available=100, head=True, address="10.0.0.1", own=("10.0.0.1/24",)):
    interface = Interface("eth0", up=True, addresses=tuple(map(IPv4Interface, own)))
    memory = Memory(121 * GIB, available * GIB)
    facts = Facts(memory=memory, interfaces=(interface,))
    return Spark(name, address, is_head=head, facts=facts)


def recipe(**changes):
    return load_recipe("gemma4-31b-nvfp4", PROJECT).model_copy(update=changes)


class Play:
    """What `memory_share` and its like ask of a play."""

    def __init__(self, *nodes, check=False):
        self.nodes, self.check, self.done = list(nodes), check, []
        self.head = nodes[0]
        self.inventory = SimpleNamespace(serve=ServeEntry())

    def on_each(self, nodes, _job):
        self.done.append(f"dropped {len(nodes)}")

    def refresh(self, nodes):
        self.done.append(f"refreshed {len(nodes)}")


@pytest.fixture
def container(monkeypatch):
    """The server's container as it is now."""

    def is_now(state):
        monkeypatch.setattr(UP["readiness"], "container_state", lambda *_a: state)

    is_now(ContainerState("absent"))
    return is_now


def test_the_share_is_that_of_the_node_with_least_room(container):
    play = Play(node("a", 100), node("b", 60, head=False))
    assert UP["memory_share"](play, recipe(), play.nodes) == 0.44
    assert play.done[0] == "dropped 2", "page cache is given back first"
    assert "refreshed 2" in play.done


def test_check_mode_touches_no_cache(container):
    play = Play(node("a", 100), check=True)
    assert UP["memory_share"](play, recipe(), play.nodes) == 0.77
    assert not any("dropped" in what for what in play.done)


def test_too_little_memory(container):
    play = Play(node("a", 100), node("b", 12, head=False))
    with pytest.raises(Refused, match=r"only 12\.0 of 121\.0 GiB are available") as caught:
        UP["memory_share"](play, recipe(), play.nodes)
    assert caught.value.where == "b"
    assert "vram" in caught.value.hint


def test_a_server_that_runs_keeps_its_share(container):
    """What it holds itself is no reason to start it anew."""
    container(ContainerState("running", command=("x", "--gpu-memory-utilization", "0.61")))
    play = Play(node("a", 5))
    assert UP["memory_share"](play, recipe(), play.nodes) == 0.61
    assert not any("dropped" in what for what in play.done)


def test_a_share_that_the_recipe_gives(container):
    play = Play(node("a", 5))
    assert UP["memory_share"](play, recipe(gpu_memory_utilization=0.5), play.nodes) is None
    given = recipe(engine_args={"kv-cache-memory-bytes": "64M"})
    assert UP["memory_share"](play, given, play.nodes) is None


def test_where_the_endpoint_binds():
    play = Play(node("a", own=("10.0.0.1/24", "192.168.177.11/24")))
    play.inventory.serve = ServeEntry(bind="management", port=9000)
    assert UP["endpoint_of"](play, recipe()).url == "http://10.0.0.1:9000/v1"
    play.inventory.serve = ServeEntry(bind="loopback")
    assert UP["endpoint_of"](play, recipe()).host == "127.0.0.1"


def test_an_address_that_is_none_of_the_nodes_own():
    """Behind a forwarded port, say: binding to it could not work."""
    with pytest.raises(Failed, match=r"10\.9\.9\.9 is none of the node's own addresses") as caught:
        management_ip(node("a", address="10.9.9.9"))
    assert caught.value.where == "a"
    by_name = node("a", address="localhost", own=("127.0.0.1/8", "10.0.0.1/24"))
    assert management_ip(by_name) == "127.0.0.1"


def test_sizes_that_the_recipe_does_not_do():
    play = Play(node("a"), node("b", head=False))
    with pytest.raises(Refused, match="not 3"):
        UP["plan_nodes"](play, recipe(), 3)
    servers, idle = UP["plan_nodes"](play, recipe(), 1)
    assert [n.name for n in servers + idle] == ["a", "b"]


def test_engine_settings_name_what_status_reads():
    endpoint = UP["Endpoint"]("10.0.0.1", 8000, "gemma", "hunter2")
    settings = UP["engine_settings"](recipe(), 2, endpoint)
    assert settings["labels"]["spark-cluster.endpoint"] == "http://10.0.0.1:8000/v1"
    assert settings["labels"]["spark-cluster.tp"] == "2"
    assert "hunter2" not in str(settings)

"""`up`, in parts: who serves, where the endpoint is, what is started with what."""

from __future__ import annotations

from ipaddress import IPv4Interface
from types import SimpleNamespace

import pytest

from spark_cluster.allowances import Allowances
from spark_cluster.cluster import Spark
from spark_cluster.errors import Failed, Refused, UsageError
from spark_cluster.facts.model import Facts, Interface
from spark_cluster.inventory import Node as Entry
from spark_cluster.inventory import read_inventory
from spark_cluster.laptop_files import Allowed
from spark_cluster.project import Project, shipped_folder
from spark_cluster.recipe import load_recipe
from spark_cluster.resources import Directory
from spark_cluster.serving.endpoint import management_ip
from spark_cluster.serving.engine import CACHES as UP_CACHES
from spark_cluster.userfiles.inventory_file import ServeEntry
from spark_cluster.userfiles.recipe_file import FromLaptop

PROJECT = Project(shipped_folder(), shipped_folder())
UP = PROJECT.load_playbook("up").function.__globals__


def node(name, head=True, address="10.0.0.1", own=("10.0.0.1/24",)):
    interface = Interface("eth0", up=True, addresses=tuple(map(IPv4Interface, own)))
    facts = Facts(interfaces=(interface,))
    return Spark(name, address, is_head=head, facts=facts)


def recipe(**changes):
    return load_recipe("gemma4-31b-nvfp4", PROJECT).model_copy(update=changes)


class Play:
    """What the parts of `up` ask of a play."""

    def __init__(self, *nodes):
        self.nodes, self.check = list(nodes), False
        self.head = nodes[0]
        entries = {n.name: Entry(n.name, n.address, 0, "worker") for n in nodes}
        self.inventory = SimpleNamespace(serve=ServeEntry(), trusted_network=False, nodes=entries)


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
    endpoint = UP["Endpoint"]("127.0.0.1", 8000, "gemma", "hunter2")
    settings = UP["engine_settings"](recipe(), 2, endpoint)
    assert settings["labels"]["spark-cluster.endpoint"] == "http://127.0.0.1:8000/v1"
    assert settings["labels"]["spark-cluster.tp"] == "2"
    assert "hunter2" not in str(settings)


def test_secrets_come_from_the_laptop_and_are_missed_early(monkeypatch):
    asks = recipe(env={"PLAIN": "1", "WANDB_API_KEY": FromLaptop(env="MY_WANDB")})
    asks._laptop = Allowed(user=Allowances(env=("MY_WANDB",)))
    monkeypatch.delenv("MY_WANDB", raising=False)
    with pytest.raises(UsageError, match="wants the variable MY_WANDB of this machine"):
        UP["plan_nodes"](Play(node("a")), asks, 1)
    monkeypatch.setenv("MY_WANDB", "hunter2")
    settings = UP["engine_settings"](asks, 1, UP["Endpoint"]("10.0.0.1", 8000, "gemma"))
    assert settings["secret_env"] == {"WANDB_API_KEY": "hunter2"}
    assert settings["env"] == {"PLAIN": "1"}
    assert "hunter2" not in str(settings["labels"])


def test_a_new_key_or_certificate_does_not_load_the_model_again():
    made = [
        UP["Endpoint"]("10.0.0.1", port, "gemma", key, 18000, tls)
        for port, key, tls in ((8000, "a", None), (9000, None, "self-signed"))
    ]
    one, two = (UP["engine_settings"](recipe(), 2, endpoint) for endpoint in made)
    assert one == two


def test_engine_settings_mount_drafter_and_patches():
    endpoint = UP["Endpoint"]("10.0.0.1", 8000, "gemma")

    def mounts(name):
        return UP["engine_settings"](load_recipe(name, PROJECT), 1, endpoint)["mounts"]

    drafter = "/srv/models/google--gemma-4-26B-A4B-it-assistant"
    assert f"{drafter}:{drafter}:ro" in mounts("gemma4-26b-a4b-fp8-mtp")
    (patch,) = mounts("gemma4-26b-a4b-nvfp4")
    assert patch == (
        "/srv/models/bg-digitalservices--Gemma-4-26B-A4B-it-NVFP4/gemma4_patched.py:"
        "/usr/local/lib/python3.12/dist-packages/vllm/model_executor/models/gemma4.py:ro"
    )


class Started(Play):
    """A play that only notes what is applied."""

    def __init__(self, inventory, *nodes):
        super().__init__(*nodes)
        self.inventory, self.options, self.check = inventory, None, True
        self.made = {}

    def role(self, name, /, **given):
        role = PROJECT.load_role(name)
        return role, given

    def apply(self, nodes, *calls, must=True):
        for node in [nodes] if isinstance(nodes, Spark) else nodes:
            for role, given in calls:
                settings = role.settings_for(self.inventory.nodes[node.name], **given)
                self.made[role.name, node.name] = list(role.function(node, settings))
        return SimpleNamespace(changes=lambda _name: [], changed=False)


CACHES = """
nodes:
  a: {address: 10.0.0.1, roles: [head]}
  b: {address: 10.0.0.2}
settings: {caches: {root: /data/caches}}
"""


def inventory(tmp_path, text=CACHES):
    (tmp_path / "inventory.yaml").write_text(text)
    return read_inventory(tmp_path / "inventory.yaml")


def test_the_caches_root_of_the_inventory_reaches_the_containers(tmp_path):
    head = node("a")
    play = Started(inventory(tmp_path), head, node("b", head=False))
    endpoint = UP["Endpoint"]("127.0.0.1", 8000, "gemma")
    UP["start"](play, [head], recipe(), endpoint, 0.5)
    play.apply(head, play.role("caches"))
    (server,) = play.made["vllm", "a"]
    assert "/data/caches:/data/caches" in server.mounts
    assert server.env["HF_HOME"] == "/data/caches/huggingface"
    folders = [r.path for r in play.made["caches", "a"] if isinstance(r, Directory)]
    assert {server.env[name] for name in UP_CACHES} | {"/data/caches"} == set(folders)


def test_caches_that_differ_between_nodes_are_refused(tmp_path):
    text = CACHES.replace(
        "{address: 10.0.0.2}", "{address: 10.0.0.2, settings: {caches: {root: /x}}}"
    )
    play = Started(inventory(tmp_path, text), node("a"), node("b", head=False))
    with pytest.raises(Refused, match="/data/caches on a, /x on b"):
        UP["plan_nodes"](play, recipe(), 2)
    UP["plan_nodes"](play, recipe(), 1)


def test_a_network_that_is_trusted_is_warned_of_each_time(tmp_path):
    told = []
    for text, state in ((CACHES, "present"), (CACHES + "trusted_network: true\n", "absent")):
        nodes = [node("a"), node("b", head=False)]
        play = Started(inventory(tmp_path, text), *nodes)
        play.note = lambda said, **options: told.append((said, options))
        _, given = UP["guard"](play, recipe(), nodes)
        assert given["state"] == state
    ((said, options),) = told
    assert "there is no firewall" in said
    assert options == {"warning": True}


@pytest.mark.parametrize("works", [True, False])
def test_one_node_goes_on_where_nftables_does_not_work(tmp_path, works):
    alone = node("a")
    play, told = Started(inventory(tmp_path), alone), []
    play.note = lambda said, **options: told.append((said, options))
    play.session = lambda _node: SimpleNamespace(
        run=lambda _argv: SimpleNamespace(status=0 if works else 127)
    )
    _, given = UP["guard"](play, recipe(), [alone])
    assert given["state"] == ("present" if works else "absent")
    assert ["nftables does not work here" in said for said, _ in told] == [True] * (not works)


def test_the_label_of_the_containers_says_whether_they_are_guarded(tmp_path):
    for guarded in ("present", "absent"):
        play = Started(inventory(tmp_path), node("a"))
        endpoint = UP["Endpoint"]("127.0.0.1", 8000, "gemma")
        UP["start"](play, play.nodes, recipe(), endpoint, 0.5, guarded=guarded)
        (server,) = play.made["vllm", "a"]
        assert server.labels["spark-cluster.firewall"] == guarded


def test_the_drafter_is_a_model_like_others():
    found = UP["model_settings"](load_recipe("gemma4-26b-a4b-fp8-mtp", PROJECT))
    assert [settings["name"] for settings in found] == [
        "RedHatAI/gemma-4-26B-A4B-it-FP8-Dynamic",
        "google/gemma-4-26B-A4B-it-assistant",
    ]
    role = PROJECT.load_role("models")
    ids = [r.id for given in found for r in role.function(node("a"), role.settings_model(**given))]
    assert len(set(ids)) == len(ids) == 4, "both folders and both downloads"
    assert {settings["image"] for settings in found} == {"spark-cluster/gemma4-mtp:41745-d8b3826"}


def test_vllm_outside_a_container_is_refused():
    with pytest.raises(Refused, match="`runtime: venv`, which is not there yet"):
        UP["plan_nodes"](Play(node("a")), recipe(runtime="venv"), 1)


class Starting(Play):
    """Notes what is applied; `changes` are the nodes whose server is made anew."""

    def __init__(self, *nodes, changes=()):
        super().__init__(*nodes)
        self.applied, self.changing, self.order = [], list(changes), []

    def role(self, name, **settings):
        return (name, settings)

    def apply(self, nodes, *what):
        names = [n.name for n in nodes] if isinstance(nodes, list) else [nodes.name]
        one = next(part for part in what if part[0] != "endpoint")
        self.order += [[part[0] for part in what]] if len(what) > 1 else []
        absent = isinstance(one, list)
        self.applied.append((f"no {one[0].container}" if absent else one[0], names))
        vllm = not absent and one[0] == "vllm"
        changing = self.changing.pop(0) if vllm and self.changing else []
        found = {n: ["Container:spark-vllm"] if n in changing else [] for n in names}
        return SimpleNamespace(changes=found.__getitem__, changed=False)


@pytest.mark.parametrize(
    ("changes", "after"),
    [
        ([["a", "b"]], []),
        ([[]], []),
        ([["a"]], [("no spark-vllm", ["a", "b"]), ("vllm", ["a", "b"])]),
        ([["b"]], [("no spark-vllm", ["a", "b"]), ("vllm", ["a", "b"])]),
    ],
)
def test_ranks_begin_together_or_not_at_all(changes, after):
    """One that is new does not join others that have begun; nobody waits for Ray here."""
    nodes = [node("a"), node("b", head=False)]
    play = Starting(*nodes, changes=changes)
    endpoint = UP["Endpoint"]("10.0.0.1", 8000, "gemma")
    UP["start"](play, nodes, recipe(executor="mp"), endpoint, 0.7)
    at = play.applied.index(("vllm", ["a", "b"]))
    assert play.applied[at + 1 :] == after


@pytest.mark.parametrize(
    ("engine_port", "order"),
    [(None, ["endpoint", "vllm"]), (18000, ["vllm", "endpoint"])],
)
def test_who_has_the_port_gives_it_up_first(engine_port, order):
    play = Starting(node("a"))
    endpoint = UP["Endpoint"]("127.0.0.1", 8000, "gemma", engine_port=engine_port)
    UP["start"](play, play.nodes, recipe(), endpoint, 0.7)
    assert order in play.order


@pytest.mark.parametrize(
    ("serve", "warned"),
    [
        ({"bind": "management", "open": True}, True),
        ({"bind": "loopback", "open": True}, False),
        ({"bind": "loopback"}, False),
    ],
)
def test_each_up_warns_of_an_endpoint_that_is_open(serve, warned):
    play = Play(node("a"))
    play.inventory.serve = ServeEntry(**serve)
    notes = []
    play.note = lambda text, warning=False: notes.append((text, warning))
    UP["warn_if_open"](play, "10.0.0.1")
    assert [w for _, w in notes] == [True] * warned
    assert all("10.0.0.1" in text and "api_key" in text for text, _ in notes)

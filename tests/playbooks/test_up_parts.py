"""`up`, in parts: who serves, where the endpoint is, what is started with what."""

from __future__ import annotations

from dataclasses import replace
from ipaddress import IPv4Interface
from types import SimpleNamespace

import pytest
from factories import SHIPPED, make_inventory, make_node, make_recipe
from serve_plans import inventory_of, located, server_for, snapshot_of

from spark_cluster.config.allowances import Allowances, Allowed
from spark_cluster.config.caches import CACHES as UP_CACHES
from spark_cluster.config.recipe_schema import FromLaptop, Venv
from spark_cluster.config.secret import Secret
from spark_cluster.config.tls import Tls
from spark_cluster.engine.endpoint import Endpoint, management_ip
from spark_cluster.engine.names import PAUSE, RAY, SERVER
from spark_cluster.engine.readiness import Again, NoCompletion
from spark_cluster.engine.resolve import resolve
from spark_cluster.engine.start import guard, start
from spark_cluster.errors import Failed, Refused, UsageError, VerificationFailed
from spark_cluster.loader.recipes import load_recipe
from spark_cluster.resources import Container, Directory, Unit
from spark_cluster.topology import Link, Node

UP = SHIPPED.load_playbook("up").function.__globals__


class Play:
    """A play as far as the parts of `up` ask it."""

    def __init__(self, *nodes):
        self.nodes, self.check = list(nodes), False
        self.head = nodes[0]
        self.inventory = inventory_of(*nodes)
        self.session = lambda _node: SimpleNamespace()


def test_where_the_endpoint_binds():
    alone = make_node("a", own=("10.0.0.1/24", "192.168.177.11/24"))
    bound = server_for(make_recipe(), alone, bind="management", port=9000, open=True)
    assert bound.endpoint.url == "http://10.0.0.1:9000/v1"
    assert server_for(make_recipe(), alone, bind="loopback").endpoint.host == "127.0.0.1"


def test_an_address_that_is_none_of_the_nodes_own():
    """Behind a forwarded port, say: binding to it could not work."""
    with pytest.raises(
        Failed, match=r"10\.9\.9\.9 is not one of the node's own addresses"
    ) as caught:
        management_ip(make_node("a", address="10.9.9.9"))
    assert caught.value.where == "a"
    by_name = make_node("a", address="localhost", own=("127.0.0.1/8", "10.0.0.1/24"))
    assert management_ip(by_name) == "127.0.0.1"


def test_sizes_that_the_recipe_does_not_do():
    nodes = (make_node("a"), make_node("b", head=False))
    with pytest.raises(Refused, match="not 3"):
        server_for(make_recipe(), *nodes, tp=3)
    plan = server_for(make_recipe(), *nodes, tp=1)
    assert ([n.name for n in plan.nodes], [n.name for n in plan.idle]) == (["a"], ["b"])


def pair():
    return make_node("a"), make_node("b", head=False)


def test_labels_name_what_status_reads(monkeypatch):
    monkeypatch.setenv("A_KEY", "hunter2")
    plan = server_for(make_recipe(), *pair(), api_key=Secret(env="A_KEY"))
    labels = plan.labels
    assert labels["spark-cluster.endpoint"].endswith("/v1")
    assert labels["spark-cluster.tp"] == "2"
    assert "hunter2" not in str(plan)


def test_secrets_come_from_the_laptop_and_are_missed_early(monkeypatch):
    asks = make_recipe(env={"PLAIN": "1", "WANDB_API_KEY": FromLaptop(env="MY_WANDB")})
    asks._laptop = Allowed(user=Allowances(env=("MY_WANDB",)))
    monkeypatch.delenv("MY_WANDB", raising=False)
    with pytest.raises(UsageError, match="asks for the variable MY_WANDB of this machine"):
        server_for(asks, make_node("a"))
    monkeypatch.setenv("MY_WANDB", "hunter2")
    made = server_for(asks, make_node("a")).deployment
    assert made.secret_env == {"WANDB_API_KEY": "hunter2"}
    assert made.env == {"PLAIN": "1"}
    assert "hunter2" not in str(made)


def test_a_new_key_or_certificate_does_not_load_the_model_again(monkeypatch):
    monkeypatch.setenv("A_KEY", "a")
    serve = ({"api_key": Secret(env="A_KEY")}, {"port": 9000, "tls": Tls(self_signed=True)})
    one, two = (server_for(make_recipe(), *pair(), **given).deployment for given in serve)
    assert one == two


def test_the_server_has_drafter_and_patches_mounted():
    def mounts(name):
        return server_for(load_recipe(name, SHIPPED), make_node("a")).mounts

    snapshot = snapshot_of("google/gemma-4-26B-A4B-it-assistant")
    drafter = snapshot.partition("/snapshots/")[0]  # what the files of a snapshot lead to, too
    assert f"{drafter}:{drafter}:ro" in mounts("gemma4-26b-a4b-fp8-mtp")
    (patch,) = mounts("gemma4-26b-a4b-nvfp4")
    assert patch == (
        f"{snapshot_of('bg-digitalservices/Gemma-4-26B-A4B-it-NVFP4')}/gemma4_patched.py:"
        "/usr/local/lib/python3.12/dist-packages/vllm/model_executor/models/gemma4.py:ro"
    )


class Started(Play):
    """A play that only notes what is applied."""

    def __init__(self, inventory, *nodes):
        super().__init__(*nodes)
        self.inventory, self.options, self.check = inventory, None, True
        self.made = {}

    def role(self, name, /, **given):
        role = SHIPPED.load_role(name)
        return role, given

    def apply(self, nodes, *calls, fail_fast=True):
        for node in [nodes] if isinstance(nodes, Node) else nodes:
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


def test_the_caches_root_of_the_inventory_reaches_the_containers(tmp_path):
    head = make_node("a")
    play = Started(make_inventory(tmp_path, CACHES), head, make_node("b", head=False))
    start(play, resolve(located(make_recipe()), play.inventory, play.nodes, 1), 0.5, "present")
    play.apply(head, play.role("caches"))
    (server,) = play.made["vllm", "a"]
    assert server.caches == "/data/caches"
    assert not any(mount.startswith("/data/caches:") for mount in server.mounts)
    assert {server.env[name].rpartition("/")[0] for name in UP_CACHES} == {"/data/caches"}
    folders = [r.path for r in play.made["caches", "a"] if isinstance(r, Directory)]
    assert folders == ["/data/caches"]


def test_caches_that_differ_between_nodes_are_refused(tmp_path):
    text = CACHES.replace(
        "{address: 10.0.0.2}", "{address: 10.0.0.2, settings: {caches: {root: /x}}}"
    )
    play = Started(make_inventory(tmp_path, text), make_node("a"), make_node("b", head=False))
    with pytest.raises(Refused, match="/data/caches on a, /x on b"):
        resolve(located(make_recipe()), play.inventory, play.nodes, 2)
    resolve(located(make_recipe()), play.inventory, play.nodes, 1)


def test_a_network_that_is_trusted_is_warned_of_each_time(tmp_path):
    told = []
    for text, state in ((CACHES, "present"), (CACHES + "trusted_network: true\n", "absent")):
        nodes = [make_node("a"), make_node("b", head=False)]
        play = Started(make_inventory(tmp_path, text), *nodes)
        play.note = lambda said, **options: told.append((said, options))
        _, given = guard(play, resolve(located(make_recipe()), play.inventory, nodes, 2))
        assert given["state"] == state
    ((said, options),) = told
    assert "there is no firewall" in said
    assert options == {"warning": True}


@pytest.mark.parametrize("works", [True, False])
def test_one_node_goes_on_where_nftables_does_not_work(tmp_path, works):
    alone = make_node("a")
    play, told = Started(make_inventory(tmp_path, CACHES), alone), []
    play.note = lambda said, **options: told.append((said, options))
    play.session = lambda _node: SimpleNamespace(
        run=lambda _argv: SimpleNamespace(status=0 if works else 127)
    )
    _, given = guard(play, resolve(located(make_recipe()), play.inventory, [alone], 1))
    assert given["state"] == ("present" if works else "absent")
    assert ["nftables does not work here" in said for said, _ in told] == [True] * (not works)


def test_the_label_of_the_containers_says_whether_they_are_guarded(tmp_path):
    for guarded in ("present", "absent"):
        play = Started(make_inventory(tmp_path, CACHES), make_node("a"))
        start(play, resolve(located(make_recipe()), play.inventory, play.nodes, 1), 0.5, guarded)
        (server,) = play.made["vllm", "a"]
        assert server.labels["spark-cluster.firewall"] == guarded


def test_folders_of_their_own_are_downloaded_as_the_recipe_says():
    recipe = load_recipe("gemma4-26b-a4b-fp8-mtp", SHIPPED)
    assert server_for(recipe, make_node("a")).models == (), "both are in the hub cache"
    changed = {
        name: getattr(recipe, name).model_copy(update={"path": f"/srv/models/{name}"})
        for name in ("model", "drafter")
    }
    found = server_for(recipe.model_copy(update=changed), make_node("a")).models
    assert [(settings["name"], settings["path"]) for settings in found] == [
        ("RedHatAI/gemma-4-26B-A4B-it-FP8-Dynamic", "/srv/models/model"),
        ("google/gemma-4-26B-A4B-it-assistant", "/srv/models/drafter"),
    ]
    role = SHIPPED.load_role("models")
    ids = [
        r.id for given in found for r in role.function(make_node("a"), role.settings_model(**given))
    ]
    assert len(set(ids)) == len(ids) == 4, "both folders and both downloads"
    assert {settings["image"] for settings in found} == {"spark-cluster/gemma4-mtp:41745-d8b3826"}


@pytest.mark.parametrize("tp", [1, 2])
def test_an_engine_in_a_virtual_environment(tmp_path, tp):
    """The same environment, mounts, labels and secrets as in containers, and no Docker."""
    cable = (Link("enp1s0f1np1", IPv4Interface("192.168.177.11/24"), "rocep1s0f1"),)
    nodes = [replace(make_node(n, head=n == "a"), links=cable) for n in "ab"]
    play = Started(make_inventory(tmp_path, CACHES), *nodes)
    answer = {"files": {"token": "5eed"}}
    play.session = lambda _node: SimpleNamespace(request=lambda *_a, **_k: answer)
    venv = Venv(path="/opt/vllm", requirements=["vllm==0.32.0"])
    made = []
    for more in ({}, {"runtime": "venv", "venv": venv}):
        recipe = make_recipe(**more)
        recipe._laptop = Allowed(user=Allowances(venv=True))
        plan = resolve(located(recipe), play.inventory, play.nodes, tp)
        play.made.clear()
        start(play, plan, 0.5, "present")
        made.append([r for role in ("ray", "vllm") for r in play.made[role, "a"]])
    in_docker, in_venv = ([r for r in m if isinstance(r, Container | Unit)] for m in made)
    (pause,) = (r for r in in_docker if r.name == PAUSE)
    in_docker.remove(pause)
    assert pause.state == "absent", "no Ray"
    assert [(type(r), r.name) for r in in_venv] == [(Unit, RAY), (Unit, SERVER)]
    for container, unit in zip(in_docker, in_venv, strict=True):
        assert unit.command == container.command
        assert unit.env == ({"VIRTUAL_ENV": "/opt/vllm", **container.env} if unit.command else {})
        assert unit.mounts == container.mounts
        assert unit.secret_files == container.secret_files
        assert unit.stop_timeout_s == container.stop_timeout_s
        assert (unit.state, unit.search_path) in (
            ("running", ("/opt/vllm/bin",)), ("absent", ()),
        )  # fmt: skip
    server = in_venv[-1]
    assert server.labels == {**in_docker[-1].labels, "spark-cluster.runtime": "venv"}
    assert server.limits["MEMLOCK"] == "infinity"


class Starting(Play):
    """Notes what is applied; `changes` are the nodes whose server is made anew."""

    def __init__(self, *nodes, changes=()):
        super().__init__(*nodes)
        self.applied, self.changing, self.order = [], list(changes), []

    def role(self, name, **settings):
        return (name, settings)

    def apply(self, nodes, *what):
        names = [nodes.name] if isinstance(nodes, Node) else [n.name for n in nodes]
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
    """A new rank does not join others that have begun; no one waits for Ray here."""
    nodes = [make_node("a"), make_node("b", head=False)]
    play = Starting(*nodes, changes=changes)
    start(play, server_for(make_recipe(executor="mp"), *nodes), 0.7, "present")
    at = play.applied.index(("vllm", ["a", "b"]))
    assert play.applied[at + 1 :] == after


@pytest.mark.parametrize(
    ("engine_port", "order"),
    [(None, ["endpoint", "vllm"]), (18000, ["vllm", "endpoint"])],
)
def test_who_has_the_port_gives_it_up_first(engine_port, order):
    play = Starting(make_node("a"))
    plan = server_for(make_recipe(), *play.nodes)
    endpoint = Endpoint("127.0.0.1", 8000, "gemma", engine_port=engine_port)
    start(play, replace(plan, endpoint=endpoint), 0.7, "present")
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
    play = Play(make_node("a"))
    play.inventory = inventory_of(*play.nodes, **serve)
    notes = []
    play.note = lambda text, warning=False: notes.append((text, warning))
    UP["announce"](play, resolve(located(make_recipe()), play.inventory, play.nodes, 1))
    assert [w for _, w in notes] == [True] * warned
    assert all("10.0.0.1" in text and "api_key" in text for text, _ in notes)


class Failing:
    """What `up` calls to verify a server whose engine is dead until it is started again."""

    def __init__(self, monkeypatch, *answers, error, dead=True):
        self.done, self.answers, self.error = [], list(answers), error
        monkeypatch.setitem(UP, "dead_engine", SimpleNamespace(is_dead=lambda _play, _plan: dead))
        for name in ("end_server", "replicas"):
            monkeypatch.setitem(UP, name, self if name == "replicas" else self.end)

    def end(self, _play, plan):
        self.done.append(f"end {plan}")

    def healthy(self, _play, _group, _found, again):
        assert not again[0], "once"
        self.done.append("healthy")

    def verify(self, _play, _group, _found):
        if not self.answers:
            raise self.error
        return self.answers.pop(0) or self.fail()

    def fail(self):
        raise self.error

    def note(self, text):
        self.done.append(text)


def test_a_server_that_ran_already_and_whose_engine_is_dead_is_started_again_once(monkeypatch):
    """Its API says that it is healthy for a moment after a worker was killed (executor mp)."""
    dead = NoCompletion("a completion is not (status 500)")
    group = SimpleNamespace(is_one=True, whole="plan")
    up = Failing(monkeypatch, "", "Paris", error=dead)
    answer = UP["_answer"](up, group, [], [Again(lambda: up.done.append("begin"))])
    assert answer == "Paris"
    assert up.done[0].endswith("a completion is not (status 500); it is started again")
    assert up.done[1:] == ["end plan", "begin", "healthy"]
    begins = Again(lambda: None)
    wrong = VerificationFailed("a wrong answer")
    for again, error, is_dead in (
        (Again(), dead, True),
        (begins, wrong, True),
        (begins, dead, False),
    ):
        up = Failing(monkeypatch, error=error, dead=is_dead)
        with pytest.raises(VerificationFailed, match=error.message.replace("(", r"\(")[:12]):
            UP["_answer"](up, group, [], [again])
        assert up.done == [], "one that was started now, answers wrongly, or is busy is left"

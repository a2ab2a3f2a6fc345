"""Roles as lists of resources: facts and settings in, resources out, no node needed."""

from __future__ import annotations

from ipaddress import IPv4Interface

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spark_cluster.cluster import Link, Spark
from spark_cluster.errors import Failed, Refused
from spark_cluster.facts.model import Facts, Hca
from spark_cluster.project import Project, shipped_folder
from spark_cluster.recipe import load_recipe
from spark_cluster.resources import BuiltImage, Command, Container, Directory, File, Image, Netplan
from spark_cluster.resources.base import Secret, to_wire
from spark_cluster.serving.engine import CACHES, RAY, SERVER

PROJECT = Project(shipped_folder(), shipped_folder())
HCAS = (Hca("rocep1s0f1", "enp1s0f1np1", True), Hca("roceP2p1s0f1", "enP2p1s0f1np1", True))
KEY = "hunter2-the-api-key"


def run(role, node, **settings):
    loaded = PROJECT.load_role(role)
    return list(loaded.function(node, loaded.settings_model(**settings)))


def link(twin, host, *, ours=True, hca=True):
    name = ("enp1s0f1np1", "enP2p1s0f1np1")[twin]
    address = IPv4Interface(f"192.168.{177 + twin}.{host}/24")
    return Link(name, address, HCAS[twin].name if hca else None, ours)


def spark(number=1, links=2, **more):
    found = tuple(link(twin, 10 + number) for twin in range(links))
    usual = {
        "name": f"spark{number}",
        "address": f"10.0.0.{number}",
        "index": number - 1,
        "is_head": number == 1,
        "user": "nvidia",
        "facts": Facts(os="ubuntu 24.04", hcas=HCAS),
        "links": found,
    }
    return Spark(**{**usual, **more})


def pair(**more):
    nodes = (spark(1, **more), spark(2, **more))
    return [
        Spark(**{**{k: getattr(n, k) for k in n.__dataclass_fields__}, "cluster": nodes})
        for n in nodes
    ]


# -- network -----------------------------------------------------------------------------------


def test_network_gives_each_twin_its_address():
    (netplan,) = run("network", spark(1))
    assert isinstance(netplan, Netplan)
    assert dict(netplan.addresses) == {
        "enp1s0f1np1": "192.168.177.11/24",
        "enP2p1s0f1np1": "192.168.178.11/24",
    }
    text = netplan.content
    for line in ("    enp1s0f1np1:", "      addresses: [192.168.178.11/24]", "      mtu: 9000"):
        assert line in text.splitlines()
    assert "link-local: []" in text


def test_network_leaves_what_the_user_gave():
    mixed = spark(1, links=0)
    mixed = Spark("spark1", links=(link(0, 5, ours=False), link(1, 11)), facts=mixed.facts)
    (netplan,) = run("network", mixed)
    assert list(netplan.addresses) == ["enP2p1s0f1np1"]
    assert "enp1s0f1np1" not in netplan.content
    assert run("network", Spark("s", links=(link(0, 5, ours=False),))) == []


def test_network_without_a_cable():
    down = (Hca("rocep1s0f0", "enp1s0f0np0", False),)
    with pytest.raises(Failed, match=r"seen: enp1s0f0np0 \(down\)") as caught:
        run("network", Spark("spark1", facts=Facts(hcas=down)))
    assert "QSFP" in caught.value.hint
    with pytest.raises(Failed, match="seen: none"):
        run("network", Spark("spark1"))


# -- containers, images, caches ------------------------------------------------------------------


@pytest.mark.parametrize(
    ("facts", "packages"),
    [
        (Facts(os="ubuntu 24.04", packages={"docker-ce": "5:29.1.3"}), ("docker-ce", ())),
        (Facts(os="ubuntu 24.04"), ("docker.io", ())),
        (Facts(os="debian 13"), ("docker.io", ("docker-cli",))),
        (Facts(os="debian 13", packages={"docker-ce": "5:29.1.3"}), ("docker-ce", ())),
        (Facts(), ("docker.io", ())),
    ],
)
def test_containers(facts, packages):
    settings = {"min_free_gib": 0, "log_max_size": "", "cdi": False}
    package, service, user = run("containers", spark(1, facts=facts), **settings)
    assert (package.name, package.also) == packages
    assert {"command:docker", "unit:docker.service", "group:docker"} <= set(package.makes)
    assert (service.unit, service.running, service.enabled) == ("docker", True, True)
    assert (user.name, user.groups) == ("nvidia", ("docker",))


def test_containers_of_the_users_own():
    bare = {"min_free_gib": 0, "log_max_size": ""}
    mine = {"packages": ("podman-docker", "podman"), "users": False}
    package, _ = run("containers", spark(1), **bare, **mine)
    assert (package.name, package.also) == ("podman-docker", ("podman",))
    assert len(run("containers", spark(1, user="root"), **bare)) == 2, "root needs no group"


def test_images():
    digest = "sha256:" + "d" * 64
    (image,) = run("images", spark(1), ref="a/b:1", digest=digest)
    assert image == Image("a/b:1", digest=digest)
    (image,) = run("images", spark(1), ref="a/b:1", archive="/srv/a.tar")
    assert image.archive == "/srv/a.tar"


def test_caches():
    made = run("caches", spark(1), root="/var/cache/x", min_free_gib=0)
    assert made[0] == Directory("/var/cache/x", mode=0o755, owner="root")
    assert {d.path for d in made[1:]} == {f"/var/cache/x/{name}" for name in CACHES.values()}


# -- models ------------------------------------------------------------------------------------


def model(tmp_path, **more):
    return run(
        "models", spark(1), name="me/m", path="/srv/m", source="directory",
        directory=tmp_path / "m", **more,
    )  # fmt: skip


def test_a_folder_is_sent(tmp_path):
    (tmp_path / "m/sub/deep").mkdir(parents=True)
    (tmp_path / "m/config.json").write_text("{}")
    (tmp_path / "m/sub/deep/w.bin").write_bytes(b"\0\xff")
    made = model(tmp_path)
    folders = [r.path for r in made if isinstance(r, Directory)]
    assert folders[0] == "/srv/m"
    assert "/srv/m/sub/deep" in folders
    files = {r.path: r.content for r in made if isinstance(r, File)}
    assert files == {"/srv/m/config.json": b"{}", "/srv/m/sub/deep/w.bin": b"\0\xff"}
    # Each folder before what is in it.
    order = [r.path for r in made]
    assert order.index("/srv/m/sub/deep") < order.index("/srv/m/sub/deep/w.bin")


def test_a_folder_that_cannot_be_sent(tmp_path, monkeypatch):
    with pytest.raises(Refused, match="is not on this machine"):
        model(tmp_path)
    (tmp_path / "m").mkdir()
    with pytest.raises(Refused, match="holds 0 files"):
        model(tmp_path)
    (tmp_path / "m/w.bin").write_bytes(b"x" * 2_000_000)
    code = PROJECT.load_role("models").function.__globals__
    monkeypatch.setitem(code, "LARGEST_UPLOAD", 1_000_000)
    with pytest.raises(Refused, match="holds 1 files with 1 MiB") as caught:
        model(tmp_path)
    assert "source: hub" in caught.value.hint


def test_a_download_and_its_token(monkeypatch):
    def download():
        folder, command = run(
            "models", spark(1), name="a/b", revision="r1", path="/srv/m", image="i:1"
        )
        assert folder == Directory("/srv/m", mode=0o755)
        assert isinstance(command, Command)
        return command

    monkeypatch.delenv("HF_TOKEN", raising=False)
    command = download()
    assert command.env == {}
    assert "HF_TOKEN" not in command.argv
    assert command.argv[-3:] == ("a/b", "r1", "/srv/m")
    assert command.unless[-2:] == ("a/b@r1", "/srv/m/.complete")
    monkeypatch.setenv("HF_TOKEN", "hf_secret")
    command = download()
    assert "hf_secret" not in " ".join(command.argv)
    assert command.argv[command.argv.index("--env") + 1] == "HF_TOKEN"
    assert isinstance(command.env["HF_TOKEN"], Secret)
    assert "hf_secret" not in repr(command)


# -- images and patches ------------------------------------------------------------------------


def test_an_image_is_pulled_or_loaded():
    (pulled,) = run("images", spark(1), ref="a/b:1", digest="sha256:" + "a" * 64)
    assert pulled == Image("a/b:1", digest="sha256:" + "a" * 64)


def test_an_image_is_built_on_what_it_stands_on():
    text = "FROM a/b:1 AS one\nRUN x\nfrom --platform=linux/arm64 c:2\nCOPY --from=one /x /x\n"
    *bases, built = run("images", spark(1), ref="own:1", dockerfile=text)
    assert bases == [Image("a/b:1"), Image("c:2")]
    assert built == BuiltImage("own:1", text)


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("FROM scratch\n", []),
        ("FROM a AS b\nFROM b\n", ["a"]),
        ("FROM a\nFROM a\n", ["a"]),
        ("ARG X=1\nFROM a:${X}\n", []),
        ("# FROM no\nFROM a@sha256:" + "0" * 64, ["a@sha256:" + "0" * 64]),
    ],
)
def test_bases_of_a_dockerfile(text, found):
    *bases, _ = run("images", spark(1), ref="own:1", dockerfile=text)
    assert [base.ref for base in bases] == found


def test_patches_of_the_laptop_are_sent(tmp_path):
    (tmp_path / "fix.py").write_bytes(b"x = 1\n")
    (tmp_path / "m").mkdir()
    (tmp_path / "m/config.json").write_text("{}")
    target = "/var/lib/spark-cluster/patches/abc/fix.py"
    made = model(tmp_path, patches={target: tmp_path / "fix.py"})
    assert Directory("/var/lib/spark-cluster/patches/abc", mode=0o755) in made
    assert File(target, content=b"x = 1\n") in made


# -- ray and vllm ------------------------------------------------------------------------------


def engine(tp=2, **more):
    return {
        "image": "i:1",
        "model_path": "/srv/m",
        "tp": tp,
        "labels": {"spark-cluster.tp": str(tp)},
        "mounts": ("/opt/x:/opt/x:ro",),
        "env": {"OMP_NUM_THREADS": "1"},
        **more,
    }


def containers(role, nodes, **settings):
    found = [[r for r in run(role, n, **settings) if isinstance(r, Container)] for n in nodes]
    assert all(len(one) == 1 for one in found)
    return [one[0] for one in found]


def test_ray_is_not_there_for_one_node():
    (absent,) = run("ray", spark(1, links=0), **engine(tp=1))
    assert (absent.container, absent.state) == (RAY, "absent")


def test_ray_head_and_worker():
    head, worker = containers("ray", pair(), **engine(), object_store_memory=10**8, num_cpus=3)
    for made in (head, worker):
        assert made.command[:3] == ("ray", "start", "--block")
        assert {"--num-gpus=1", "--num-cpus=3", "--object-store-memory=100000000"} <= set(
            made.command
        )
        assert (made.network, made.ipc, made.restart) == ("host", "host", "unless-stopped")
        assert made.ulimits["memlock"] == -1
        assert made.devices == ("/dev/infiniband",)
    assert {"--head", "--port=6379", "--dashboard-host=127.0.0.1"} <= set(head.command)
    assert "--node-ip-address=192.168.177.11" in head.command
    assert "--node-ip-address=192.168.177.12" in worker.command
    assert "--address=192.168.177.11:6379" in worker.command
    assert "--head" not in worker.command
    assert not any("dashboard" in word for word in worker.command)
    ports = [word for word in head.command if "worker-port" in word]
    assert ports == ["--min-worker-port=18400", "--max-worker-port=18899"]


def test_the_folder_of_ray_is_there_before_its_container():
    head, _ = pair()
    kinds = [type(r).__name__ for r in run("ray", head, **engine())]
    assert kinds[-1] == "Container"
    mounted = run("ray", head, **engine())[-1].mounts
    folders = [r.path for r in run("ray", head, **engine()) if isinstance(r, Directory)]
    assert any(m.startswith(f"{folders[0]}:") for m in mounted)


@pytest.mark.parametrize("role", ["ray", "vllm"])
def test_two_nodes_without_a_fabric(role):
    with pytest.raises(Failed, match="no fabric"):
        run(role, pair(links=0)[0], **engine(), **({"args": ()} if role == "vllm" else {}))


def test_the_server_is_on_the_head_only():
    head, worker = containers("vllm", pair(), **engine(), args=("--dtype", "auto"), port=9000)
    assert (worker.container, worker.state) == (SERVER, "absent")
    assert head.command[:5] == ("vllm", "serve", "/srv/m", "--dtype", "auto")
    assert "--port=9000" in head.command
    assert "--distributed-executor-backend=ray" in head.command
    assert head.pid == "host"
    assert head.env["RAY_ADDRESS"] == "192.168.177.11:6379"


def test_the_server_alone():
    (alone,) = containers("vllm", [spark(1, links=0)], **engine(tp=1), args=())
    assert alone.pid is None
    assert not any("ray" in word.lower() for word in alone.command)
    assert not [n for n in alone.env if n.startswith(("NCCL", "RAY", "GLOO"))]
    assert alone.devices == ()


MP = {"executor": "mp", "ranks": ("spark1", "spark2")}


def test_ranks_without_ray():
    """vLLM's own multi-node mode: a rank on each node, and the first one answers."""
    head, worker = containers("vllm", pair(), **engine(**MP), args=("--dtype", "auto"), port=9000)
    own = {"--node-rank=0", "--node-rank=1", "--host=127.0.0.1", "--port=9000", "--headless"}
    assert set(head.command) - own == set(worker.command) - own, "equal, or graph capture hangs"
    assert set(head.command) & own == {"--node-rank=0", "--host=127.0.0.1", "--port=9000"}
    assert set(worker.command) & own == {"--node-rank=1", "--headless"}
    assert {"--nnodes=2", "--master-addr=192.168.177.11"} <= set(worker.command)
    assert "--distributed-executor-backend=mp" in worker.command
    assert head.pid is None
    assert (worker.container, worker.state) == (SERVER, "running")
    assert (head.env["VLLM_HOST_IP"], worker.env["VLLM_HOST_IP"]) == (
        "192.168.177.11", "192.168.177.12",
    )  # fmt: skip


def test_no_ray_for_the_executor_mp():
    for node in pair():
        (absent,) = run("ray", node, **engine(executor="mp"))
        assert (absent.container, absent.state) == (RAY, "absent")


def test_a_node_that_has_no_rank():
    (made,) = containers("vllm", pair()[1:], **engine(executor="mp", ranks=("spark1",)), args=())
    assert made.state == "absent"


def test_one_node_of_the_executor_mp_is_one_server():
    (alone,) = containers("vllm", [spark(1, links=0)], **engine(tp=1, **MP), args=())
    assert not [word for word in alone.command if "node" in word or "backend" in word]


def test_the_images_own_entry_point_is_left_out():
    """That of vllm/vllm-openai is `vllm serve`, which would come twice."""
    for role, more in (("ray", {}), ("vllm", {"args": ()}), ("vllm", {"args": (), **MP})):
        for made in containers(role, pair(), **{**engine(), **more}):
            if made.state == "running":
                assert made.argv[made.argv.index("--entrypoint") + 1] == ""


@pytest.mark.parametrize(("tp", "executor"), [(1, "ray"), (2, "ray"), (2, "mp")])
def test_the_api_key_is_nowhere_to_be_seen(tp, executor):
    given = {**engine(tp=tp, executor=executor, ranks=MP["ranks"]), "args": ("--x",)}
    (head, *others) = containers("vllm", pair(), **given, api_key=KEY)
    assert not [made for made in others if made.secret_files], "only the server wants it"
    assert KEY not in " ".join(head.argv)
    assert KEY not in str(dict(head.env)) + str(dict(head.labels)) + repr(head)
    ((path, value),) = head.secret_files.items()
    assert value == KEY
    assert isinstance(value, Secret)
    assert head.command[:2] == ("sh", "-c")
    assert path in head.command[2]
    assert to_wire(head)["secret_files"] == {"$map": [[path, {"$secret": KEY}]]}
    (bare, *_) = containers("vllm", pair(), **given)
    assert bare.secret_files == {}
    assert bare.command[0] == "vllm"


OWN = {  # what may differ between the nodes, and only that
    "VLLM_HOST_IP", "RAY_NODE_IP_ADDRESS", "NCCL_SOCKET_IFNAME", "GLOO_SOCKET_IFNAME",
    "TP_SOCKET_IFNAME", "UCX_NET_DEVICES", "OMPI_MCA_btl_tcp_if_include", "MN_IF_NAME",
    "NCCL_IB_HCA", "NCCL_IB_MERGE_NICS",
}  # fmt: skip


def test_the_environment_differs_only_where_it_must():
    other = Spark(
        "spark2", is_head=False, facts=Facts(hcas=(Hca("mlx5_7", "eth7", True),)),
        links=(Link("eth7", IPv4Interface("192.168.177.12/24"), "mlx5_7"),),
    )  # fmt: skip
    head = spark(1)
    nodes = [Spark(**{**vars(n), "cluster": (head, other)}) for n in (head, other)]
    one, two = (c.env for c in containers("ray", nodes, **engine()))
    assert {k for k in one.keys() | two.keys() if one.get(k) != two.get(k)} <= OWN
    assert (one["NCCL_IB_HCA"], two["NCCL_IB_HCA"]) == ("rocep1s0f1,roceP2p1s0f1", "mlx5_7")
    assert (one["NCCL_IB_MERGE_NICS"], two["NCCL_IB_MERGE_NICS"]) == ("1", "0")
    assert (one["VLLM_HOST_IP"], two["GLOO_SOCKET_IFNAME"]) == ("192.168.177.11", "eth7")
    assert one["OMP_NUM_THREADS"] == "1"


def test_the_gid_index_is_never_set():
    for role, more in (("ray", {}), ("vllm", {"args": ()})):
        for made in containers(role, pair(), **engine(), **more):
            assert not [name for name in made.env if "GID" in name]


def test_the_recipe_wins_over_what_is_computed():
    (head, _) = containers("ray", pair(), **engine(env={"NCCL_SOCKET_IFNAME": "eth9"}))
    assert head.env["NCCL_SOCKET_IFNAME"] == "eth9"


@given(st.permutations(["dtype", "max-model-len", "enforce-eager", "kv-cache-dtype"]))
def test_the_same_arguments_whatever_the_order_in_the_recipe(order):
    """The compile cache is keyed by them, and all ranks must have the same."""
    recipe = load_recipe("lab-paris", PROJECT)
    values = {
        "dtype": "auto",
        "max-model-len": 4096,
        "enforce-eager": True,
        "kv-cache-dtype": "fp8",
    }
    shuffled = recipe.model_copy(update={"engine_args": {name: values[name] for name in order}})
    straight = recipe.model_copy(update={"engine_args": values})
    assert shuffled.args_for(2, 0.7) == straight.args_for(2, 0.7)
    specs = {
        containers("vllm", pair(), **engine(), args=tuple(r.args_for(2)))[0].spec
        for r in (shuffled, straight)
    }
    assert len(specs) == 1

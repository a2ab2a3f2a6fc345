"""Roles as lists of resources: facts and settings in, resources out, no node needed."""

from __future__ import annotations

import subprocess
from dataclasses import replace
from ipaddress import IPv4Interface

import pytest
from factories import SHIPPED
from hypothesis import given
from hypothesis import strategies as st
from serve_plans import bare_server

from spark_cluster.config.facts import Facts, Hca, Interface
from spark_cluster.config.ports import EnginePorts
from spark_cluster.config.recipe_schema import Ray
from spark_cluster.config.recipes import load_recipe
from spark_cluster.config.topology import Link, Node
from spark_cluster.engine import node_copies
from spark_cluster.engine.engine import SECRET_ENV, WITH_SECRET_ENV
from spark_cluster.engine.names import PAUSE, RAY, SERVER
from spark_cluster.errors import Failed, Refused
from spark_cluster.node.values import LaptopFile, Secret
from spark_cluster.resources import (
    BuiltImage,
    Command,
    Container,
    Directory,
    File,
    Image,
    NftTable,
)

HCAS = (Hca("rocep1s0f1", "enp1s0f1np1", True), Hca("roceP2p1s0f1", "enP2p1s0f1np1", True))
KEY = "hunter2-the-api-key"
TOKEN = "0123456789abcdef" * 4


def run(role, node, **settings):
    loaded = SHIPPED.load_role(role)
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
    return Node(**{**usual, **more})


def pair(**more):
    nodes = (spark(1, **more), spark(2, **more))
    return [
        Node(**{**{k: getattr(n, k) for k in n.__dataclass_fields__}, "cluster": nodes})
        for n in nodes
    ]


# -- network -----------------------------------------------------------------------------------


# -- containers, images, caches ------------------------------------------------------------------


def test_images():
    digest = "sha256:" + "d" * 64
    (image,) = run("images", spark(1), ref="a/b:1", digest=digest)
    assert image == Image("a/b:1", digest=digest)
    (image,) = run("images", spark(1), ref="a/b:1", archive="/srv/a.tar")
    assert image.archive == "/srv/a.tar"


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
    assert files == {
        "/srv/m/config.json": LaptopFile(tmp_path / "m/config.json"),
        "/srv/m/sub/deep/w.bin": LaptopFile(tmp_path / "m/sub/deep/w.bin"),
    }
    # Each folder before what is in it.
    order = [r.path for r in made]
    assert order.index("/srv/m/sub/deep") < order.index("/srv/m/sub/deep/w.bin")


def test_a_folder_that_cannot_be_sent(tmp_path, monkeypatch):
    with pytest.raises(Refused, match="is not on this machine"):
        model(tmp_path)
    (tmp_path / "m").mkdir()
    with pytest.raises(Refused, match="has 0 files"):
        model(tmp_path)
    (tmp_path / "m/w.bin").write_bytes(b"x" * 2_000_000)
    monkeypatch.setattr(node_copies, "SENT_TO_EACH", 1_000_000)
    with pytest.raises(Refused, match="holds more than") as caught:
        model(tmp_path)
    assert "source: hub" in caught.value.hint


def download(**settings):
    folder, command = run(
        "models", spark(1), name="a/b", revision="r1", path="/srv/m", image="i:1", **settings
    )
    assert folder == Directory("/srv/m", mode=0o755)
    assert isinstance(command, Command)
    return command


def test_a_download_and_its_token(monkeypatch):
    monkeypatch.delenv("HF_TOKEN", raising=False)
    command = download()
    assert command.stdin == ""
    assert not isinstance(command.stdin, Secret)
    assert command.long  # it outlives the connection, and the next run waits for it
    confined = ("--cap-drop", "ALL", "--cap-add", "DAC_OVERRIDE")
    options = (*confined, "--security-opt", "no-new-privileges")
    assert command.argv[-10:] == ("i:1", "a/b", "r1", "/srv/m", *options)
    assert command.unless[-2:] == ("a/b@r1", "/srv/m/.complete")
    monkeypatch.setenv("HF_TOKEN", "hf_secret")
    with_token = download()
    assert isinstance(with_token.stdin, Secret)
    assert with_token.stdin == "hf_secret"
    assert with_token.env == {}
    # The unit is found again by these: a token that was changed meanwhile is no other download.
    assert with_token.argv == command.argv
    assert "hf_secret" not in " ".join(with_token.argv) + repr(with_token)


def test_what_a_download_needs_next_to_the_image():
    command = download(
        mounts=("/opt/vllm:/opt/vllm:ro", "/a:/b"), endpoint="https://mirror.example"
    )
    assert command.argv[-3:] == (
        "--env=HF_ENDPOINT=https://mirror.example",
        "--mount=type=bind,source=/opt/vllm,target=/opt/vllm,readonly",
        "--mount=type=bind,source=/a,target=/b,readonly",
    )


# -- secrets of a recipe ----------------------------------------------------------------------


def test_secrets_of_a_recipe_are_files_of_root():
    common = engine(secret_env={"WANDB": KEY})
    ray = run("ray", pair()[0], **common)[-1]
    server = run("vllm", pair()[0], **common)[-1]
    for container in (ray, server):
        assert container.secret_files["/run/secrets/env/WANDB"] == KEY
        # Neither what `docker inspect` shows nor the label with the arguments has it.
        assert KEY not in str(container.argv) + repr(container)
        assert container.command[:2] == ("sh", "-c")
    assert set(server.secret_files) == {"/run/secrets/env/WANDB"}, "and no key of the endpoint"


def test_the_program_has_the_secrets_as_variables(tmp_path):
    script = WITH_SECRET_ENV.replace(SECRET_ENV, str(tmp_path))
    (tmp_path / "ONE").write_text("a 'quoted' $HOME value")
    (tmp_path / "TWO").write_text("2")
    show = ("sh", "-c", 'printf "%s|%s|%s" "$ONE" "$TWO" "$1"', "x", "word with space")
    done = subprocess.run(["sh", "-c", script, *show], capture_output=True, text=True, check=True)
    assert done.stdout == "a 'quoted' $HOME value|2|word with space"


# -- images and patches ------------------------------------------------------------------------


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


# -- ray and vllm ------------------------------------------------------------------------------


def engine(tp=2, **more):
    """Settings of the roles `ray` and `vllm`."""
    usual = {
        "image": "i:1",
        "model_path": "/srv/m",
        "labels": {"spark-cluster.tp": str(tp)},
        "mounts": ("/opt/x:/opt/x:ro",),
        "env": {"OMP_NUM_THREADS": "1"},
    }
    return {"server": bare_server(*("spark1", "spark2")[:tp], **{**usual, **more})}


def containers(role, nodes, **settings):
    found = [
        [r for r in run(role, n, **settings) if isinstance(r, Container) and r.container != PAUSE]
        for n in nodes
    ]
    assert all(len(one) == 1 for one in found)
    return [one[0] for one in found]


def test_ray_is_not_there_for_one_node():
    absent = run("ray", spark(1, links=0), **engine(tp=1))
    assert [(one.container, one.state) for one in absent] == [(RAY, "absent"), (PAUSE, "absent")]


def test_ray_and_the_server_share_process_ids_of_their_own():
    """Ray finds its node by its processes; those of the node are none of its business."""
    head, worker = pair()
    pause = next(r for r in run("ray", head, **engine()) if isinstance(r, Container))
    assert (pause.container, pause.image, pause.network) == (PAUSE, "i:1", "none")
    assert (pause.cap_drop, pause.cap_add, pause.gpus) == (("ALL",), (), None)
    (ray, _), (server, _) = (
        containers(role, (head, worker), **engine()) for role in ("ray", "vllm")
    )
    assert ray.pid == server.pid == f"container:{PAUSE}"
    (alone,) = run("ray", worker, **engine())
    assert alone.pid is None
    (single,) = containers("vllm", [spark(1, links=0)], **engine(tp=1))
    assert single.pid is None


def test_an_engines_container_has_two_capabilities_and_gains_none():
    for role in ("ray", "vllm"):
        made = containers(role, pair()[:1], **engine())[0]
        assert set(made.cap_add) == {"DAC_OVERRIDE", "IPC_LOCK"}
        assert (made.cap_drop, made.security_opt) == (("ALL",), ("no-new-privileges",))


def test_ray_head_and_worker():
    head, worker = containers(
        "ray", pair(), **engine(ray=Ray(object_store_memory=10**8, num_cpus=3))
    )
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
    assert not any(word.startswith("--dashboard-port") for word in worker.command)
    ports = [word for word in head.command if "worker-port" in word]
    assert ports == ["--min-worker-port=18400", "--max-worker-port=18899"]


def test_no_port_of_ray_is_left_to_chance():
    """`ray start --help` of 2.60 knows these; what only the environment sets is there, too."""
    head, worker = containers("ray", pair(), **engine(ray=Ray(first_port=19001)))
    for made in (head, worker):
        words = [word for word in made.command if "port" in word.partition("=")[0]]
        numbers = [int(word.partition("=")[2]) for word in words]
        metrics = [int(made.env[n]) for n in ("AUTOSCALER_METRIC_PORT", "DASHBOARD_METRIC_PORT")]
        assert len({*numbers, *metrics}) == len([*numbers, *metrics]), "each has its own"
        known = EnginePorts(first_port=19001).spans
        for port in (*numbers, *metrics):
            assert any(first <= port <= last for first, last in known), port
    assert "--dashboard-agent-listen-port=19004" in worker.command
    assert "--ray-client-server-port=19007" in head.command


def test_ray_has_a_token_that_only_root_reads():
    ray = containers("ray", pair(), **engine(ray_token=TOKEN))
    (server, _) = containers("vllm", pair(), **engine(ray_token=TOKEN))
    for made in (*ray, server):
        assert made.env["RAY_AUTH_MODE"] == "token"
        assert made.secret_files[made.env["RAY_AUTH_TOKEN_PATH"]] == TOKEN
        assert isinstance(made.secret_files[made.env["RAY_AUTH_TOKEN_PATH"]], Secret)
        assert TOKEN not in " ".join(made.argv)
    (alone,) = containers("vllm", [spark(1, links=0)], **engine(tp=1, ray_token=TOKEN))
    assert alone.secret_files == {}
    ranks = containers("vllm", pair(), **engine(**MP, ray_token=TOKEN))
    assert [made.secret_files for made in ranks] == [{}, {}]


# -- firewall ----------------------------------------------------------------------------------

GUARD = {
    "state": "present",
    "peers": ("spark1", "spark2"),
    "ports": ((6379, 6379), (8265, 8265), (18301, 18309), (18400, 18899), (29501, 29501)),
}


def rules(node, **more):
    """The table's own lines, without comments."""
    (table,) = [r for r in run("firewall", node, **{**GUARD, **more}) if isinstance(r, NftTable)]
    lines = [line.strip() for line in table.chains.splitlines()]
    return [line for line in lines if line and not line.startswith("#")]


def test_the_firewall_lets_peers_in_over_the_fabric_only():
    head, worker = pair()
    told = rules(head)
    fabric = '{ "enp1s0f1np1", "enP2p1s0f1np1" }'
    assert told == [
        "chain input {",
        "type filter hook input priority filter - 10; policy accept;",
        'iifname "lo" accept',
        "meta l4proto != tcp accept",
        "tcp flags & (syn | ack) != syn accept",
        f"iifname {fabric} ip saddr {{ 192.168.177.12, 192.168.178.12 }} accept",
        f"iifname != {fabric} ip daddr {{ 192.168.177.11, 192.168.178.11 }} counter drop",
        "tcp dport { 6379, 8265, 18301-18309, 18400-18899, 29501, 32768-60999 } counter drop",
        "}",
    ]
    assert f"iifname {fabric} ip saddr {{ 192.168.177.11, 192.168.178.11 }} accept" in rules(worker)


def test_the_firewall_is_there_before_docker_at_boot():
    kinds = [type(r).__name__ for r in run("firewall", pair()[0], **GUARD)]
    assert kinds == ["Package", "NftTable", "Directory", "File", "Command", "File", "Service"]
    found = run("firewall", pair()[0], **GUARD)
    table, unit = found[1], found[5]
    assert f"ExecStart=/usr/sbin/nft -f {table.file}\n" in unit.content
    assert "Before=docker.service\n" in unit.content
    assert f"Before={RAY}.service {SERVER}.service\n" in unit.content
    # A failure is tried again, and keeps Docker from starting for seconds only.
    assert "Restart=on-failure\n" in unit.content
    assert "StartLimitBurst=5\n" in unit.content
    assert "trusted_network: true" in table.if_refused


def test_the_firewall_comes_back_whatever_is_done_to_nftables():
    """Its service flushes all tables at start, stop and reload; systemd appends to these lists."""
    found = run("firewall", pair()[0], **GUARD)
    table, drop_in, read = found[1], found[3], found[4]
    assert drop_in.path == "/etc/systemd/system/nftables.service.d/spark-cluster.conf"
    for when in ("ExecStartPost", "ExecReload", "ExecStopPost"):
        assert f"\n{when}=-/usr/sbin/nft -f {table.file}\n" in drop_in.content
    assert (read.argv, read.when_changed) == (("systemctl", "daemon-reload"), (drop_in,))


def test_the_firewall_knows_the_kernels_range_and_the_users_ports():
    facts = Facts(hcas=HCAS, local_ports=(15000, 20000))
    told = rules(pair(facts=facts)[0], allow=(15022,), endpoint_port=18800)
    assert told[-2] == "tcp dport { 6379, 8265, 15000-20000, 29501 } counter drop"
    assert told[-3] == "tcp dport { 15022, 18800 } accept"
    with pytest.raises(Failed, match="allow: 6379 is a port of the engine"):
        rules(pair()[0], allow=(6379,))


def test_no_one_is_locked_out_of_ssh():
    """At any port; the usual one is in none of the ranges."""
    told = rules(pair(facts=Facts(hcas=HCAS, ssh_ports=(22, 18302, 40022)))[0])
    assert told[-3] == "tcp dport { 18302, 40022 } accept"


def test_one_node_alone_needs_no_fabric():
    told = rules(spark(1, links=0), peers=())
    assert told[4:] == [
        "tcp flags & (syn | ack) != syn accept",
        "tcp dport { 6379, 8265, 18301-18309, 18400-18899, 29501, 32768-60999 } counter drop",
        "}",
    ]


SENDING = {"state": "copies", "peers": (), "ports": ((18960, 18967),)}


def addresses(*found):
    """Facts with interfaces of these addresses."""
    interfaces = [
        Interface(f"eth{number}", "", 1500, True, (IPv4Interface(address),))
        for number, address in enumerate(found)
    ]
    return Facts(hcas=HCAS, interfaces=tuple(interfaces))


def test_only_the_other_nodes_reach_the_ports_on_which_a_node_sends_copies():
    head, worker = pair()
    bridge = "172.17.0.1/16"  # Docker's: each node has it, and so it is no other node's
    facts = addresses("10.0.0.2/24", "10.7.7.7/24", "127.0.0.1/8", bridge)
    worker = replace(worker, facts=facts)
    head = replace(head, facts=addresses("10.0.0.1/24", bridge), cluster=(head, worker))
    fabric = '{ "enp1s0f1np1", "enP2p1s0f1np1" }'
    (table,) = run("firewall", head, **SENDING)
    assert (table.table, table.state) == ("spark_cluster_copies", "present")
    assert rules(head, **SENDING) == [
        "chain input {",
        "type filter hook input priority filter - 10; policy accept;",
        "meta l4proto != tcp accept",
        "tcp flags & (syn | ack) != syn accept",
        "tcp dport != { 18960-18967 } accept",
        f"iifname {fabric} ip saddr {{ 192.168.177.12, 192.168.178.12 }} accept",
        f"iifname != {fabric} ip saddr {{ 10.0.0.2, 10.7.7.7 }} accept",
        "counter drop",
        "}",
    ]


def test_copies_without_a_fabric_and_over_ipv6():
    nodes = [replace(node, address=f"2001:db8::{n}") for n, node in enumerate(pair(links=0))]
    told = rules(replace(nodes[0], cluster=tuple(nodes)), **SENDING)
    assert told[-3:] == ["ip6 saddr { 2001:db8::/64 } accept", "counter drop", "}"]
    assert not any("iifname" in line for line in told)
    named = [replace(node, address=f"{node.name}.local") for node in nodes]
    told = rules(replace(named[0], cluster=tuple(named)), **SENDING)
    assert told[-3:] == ["tcp dport != { 18960-18967 } accept", "counter drop", "}"]


def test_copies_lock_no_one_out_of_ssh_either_nor_of_the_endpoint():
    told = rules(
        pair(facts=Facts(hcas=HCAS, ssh_ports=(22, 18960)))[0], **SENDING, endpoint_port=18961
    )
    assert told[-3] == "tcp dport { 18960, 18961 } accept"


def test_the_firewall_is_gone_where_no_one_wants_it():
    found = run("firewall", spark(1, links=0), state="absent")
    tables = ["NftTable", "NftTable"]
    assert [type(r).__name__ for r in found] == ["Service", "File", "File", "Command", *tables]
    assert found[0].running is found[0].enabled is False
    assert {r.state for r in (*found[1:3], *found[4:])} == {"absent"}
    assert [r.table for r in found[4:]] == ["spark_cluster", "spark_cluster_copies"]
    assert found[3].when_changed == (found[2],)
    with pytest.raises(Failed, match="no fabric"):
        run("firewall", pair(links=0)[0], **GUARD)


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
        run(role, pair(links=0)[0], **engine())


def test_the_server_is_on_the_head_only():
    head, worker = containers("vllm", pair(), **engine(flags={"dtype": "auto"}, port=9000))
    assert (worker.container, worker.state) == (SERVER, "absent")
    assert head.command[:5] == ("vllm", "serve", "/srv/m", "--dtype", "auto")
    assert "--port=9000" in head.command
    assert "--distributed-executor-backend=ray" in head.command
    assert head.env["RAY_ADDRESS"] == "192.168.177.11:6379"


def test_the_server_alone():
    (alone,) = containers("vllm", [spark(1, links=0)], **engine(tp=1))
    assert alone.pid is None
    assert not any("ray" in word.lower() for word in alone.command)
    assert not [n for n in alone.env if n.startswith(("NCCL", "RAY", "GLOO"))]
    assert alone.devices == ()


MP = {"executor": "mp"}


def test_ranks_without_ray():
    """vLLM's own multi-node mode: a rank on each node, and the first one answers."""
    head, worker = containers("vllm", pair(), **engine(**MP, flags={"dtype": "auto"}, port=9000))
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
        absent = run("ray", node, **engine(executor="mp"))
        assert {(one.container, one.state) for one in absent} == {
            (RAY, "absent"),
            (PAUSE, "absent"),
        }


def test_a_node_that_has_no_rank():
    (made,) = containers("vllm", pair()[1:], **engine(tp=1, executor="mp"))
    assert made.state == "absent"


def test_one_node_of_the_executor_mp_is_one_server():
    (alone,) = containers("vllm", [spark(1, links=0)], **engine(tp=1, **MP))
    assert not [word for word in alone.command if "node" in word or "backend" in word]


def test_the_images_own_entry_point_is_left_out():
    """That of vllm/vllm-openai is `vllm serve`, which would come twice."""
    for role, more in (("ray", {}), ("vllm", {}), ("vllm", MP)):
        for made in containers(role, pair(), **engine(**more)):
            if made.state == "running":
                assert made.argv[made.argv.index("--entrypoint") + 1] == ""


@pytest.mark.parametrize(("tp", "executor"), [(1, "ray"), (2, "ray"), (2, "mp")])
def test_no_container_of_vllm_has_the_api_key(tp, executor):
    """The proxy asks for it; in vLLM's environment it would go on to all of Ray's workers."""
    for made in containers("vllm", pair(), **engine(tp=tp, executor=executor, flags={"x": True})):
        assert not made.secret_files
        assert not [name for name in made.env if "KEY" in name]
        if made.state == "running":
            assert made.command[0] == "vllm"
    assert "api_key" not in SHIPPED.load_role("vllm").settings_model.model_fields


def test_vllm_listens_on_the_loopback_only():
    for tp in (1, 2):
        (head, *_) = containers("vllm", pair(), **engine(tp=tp, port=18000))
        assert {"--host=127.0.0.1", "--port=18000"} <= set(head.command)
        assert "host" not in SHIPPED.load_role("vllm").settings_model.model_fields


OWN = {  # what may differ between the nodes, and only that
    "VLLM_HOST_IP", "RAY_NODE_IP_ADDRESS", "NCCL_SOCKET_IFNAME", "GLOO_SOCKET_IFNAME",
    "TP_SOCKET_IFNAME", "UCX_NET_DEVICES", "OMPI_MCA_btl_tcp_if_include", "MN_IF_NAME",
    "NCCL_IB_HCA", "NCCL_IB_MERGE_NICS",
}  # fmt: skip


def test_the_environment_differs_only_where_it_must():
    other = Node(
        "spark2", is_head=False, facts=Facts(hcas=(Hca("mlx5_7", "eth7", True),)),
        links=(Link("eth7", IPv4Interface("192.168.177.12/24"), "mlx5_7"),),
    )  # fmt: skip
    head = spark(1)
    nodes = [Node(**{**vars(n), "cluster": (head, other)}) for n in (head, other)]
    one, two = (c.env for c in containers("ray", nodes, **engine()))
    assert {k for k in one.keys() | two.keys() if one.get(k) != two.get(k)} <= OWN
    assert (one["NCCL_IB_HCA"], two["NCCL_IB_HCA"]) == ("rocep1s0f1,roceP2p1s0f1", "mlx5_7")
    assert (one["NCCL_IB_MERGE_NICS"], two["NCCL_IB_MERGE_NICS"]) == ("1", "0")
    assert (one["VLLM_HOST_IP"], two["GLOO_SOCKET_IFNAME"]) == ("192.168.177.11", "eth7")
    assert one["OMP_NUM_THREADS"] == "1"


def test_the_gid_index_is_never_set():
    for role in ("ray", "vllm"):
        for made in containers(role, pair(), **engine()):
            assert not [name for name in made.env if "GID" in name]


def test_the_recipe_wins_over_what_is_computed():
    (head, _) = containers("ray", pair(), **engine(env={"NCCL_SOCKET_IFNAME": "eth9"}))
    assert head.env["NCCL_SOCKET_IFNAME"] == "eth9"


@given(st.permutations(["dtype", "max-model-len", "enforce-eager", "kv-cache-dtype"]))
def test_the_same_arguments_whatever_the_order_in_the_recipe(order):
    """The compile cache is keyed by them, and all ranks must have the same."""
    recipe = load_recipe("lab-paris", SHIPPED)
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
        containers("vllm", pair(), **engine(flags=r.flags(2)))[0].spec for r in (shuffled, straight)
    }
    assert len(specs) == 1

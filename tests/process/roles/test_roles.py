"""Roles of engines, models and the firewall: what is no case of tests/unit/roles/cases."""

from __future__ import annotations

import subprocess
from dataclasses import replace
from ipaddress import IPv4Interface

import pytest
from factories import SHIPPED
from hypothesis import given
from hypothesis import strategies as st
from role_samples import a_spark, together
from serve_plans import bare_server

from spark_cluster.config.facts import Facts, Hca, Interface
from spark_cluster.config.ports import EnginePorts
from spark_cluster.config.recipe_schema import Ray
from spark_cluster.config.recipes import load_recipe
from spark_cluster.config.topology import Link, Node
from spark_cluster.engine import node_copies
from spark_cluster.engine.engine import SECRET_ENV, WITH_SECRET_ENV
from spark_cluster.engine.names import PAUSE, SERVER
from spark_cluster.errors import Refused
from spark_cluster.node.values import LaptopFile, Secret
from spark_cluster.resources import Command, Container, Directory, File, NftTable

KEY = "hunter2-the-api-key"
TOKEN = "0123456789abcdef" * 4


def run(role, node, **settings):
    loaded = SHIPPED.load_role(role)
    return list(loaded.function(node, loaded.settings_model(**settings)))


def pair(linked=True, **facts):
    return together(*(a_spark(index, linked=linked, **facts) for index in range(2)))


# -- models ------------------------------------------------------------------------------------


def model(tmp_path, **more):
    return run(
        "models", a_spark(), name="me/m", path="/srv/m", source="directory",
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
        "models", a_spark(), name="a/b", revision="r1", path="/srv/m", image="i:1", **settings
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


def test_an_engines_container_has_two_capabilities_and_gains_none():
    for role in ("ray", "vllm"):
        made = containers(role, pair()[:1], **engine())[0]
        assert set(made.cap_add) == {"DAC_OVERRIDE", "IPC_LOCK"}
        assert (made.cap_drop, made.security_opt) == (("ALL",), ("no-new-privileges",))


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


def test_ray_has_a_token_that_only_root_reads():
    ray = containers("ray", pair(), **engine(ray_token=TOKEN))
    (server, _) = containers("vllm", pair(), **engine(ray_token=TOKEN))
    for made in (*ray, server):
        assert made.env["RAY_AUTH_MODE"] == "token"
        assert made.secret_files[made.env["RAY_AUTH_TOKEN_PATH"]] == TOKEN
        assert isinstance(made.secret_files[made.env["RAY_AUTH_TOKEN_PATH"]], Secret)
        assert TOKEN not in " ".join(made.argv)
    (alone,) = containers("vllm", [a_spark(linked=False)], **engine(tp=1, ray_token=TOKEN))
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


def test_the_firewall_comes_back_whatever_is_done_to_nftables():
    """Its service flushes all tables at start, stop and reload; systemd appends to these lists."""
    found = run("firewall", pair()[0], **GUARD)
    table, drop_in, read = found[1], found[3], found[4]
    assert drop_in.path == "/etc/systemd/system/nftables.service.d/spark-cluster.conf"
    for when in ("ExecStartPost", "ExecReload", "ExecStopPost"):
        assert f"\n{when}=-/usr/sbin/nft -f {table.file}\n" in drop_in.content
    assert (read.argv, read.when_changed) == (("systemctl", "daemon-reload"), (drop_in,))


def test_no_one_is_locked_out_of_ssh():
    """At any port; the usual one is in none of the ranges."""
    told = rules(pair(ssh_ports=(22, 18302, 40022))[0])
    assert told[-3] == "tcp dport { 18302, 40022 } accept"


SENDING = {"state": "copies", "peers": (), "ports": ((18960, 18967),)}


def addresses(*found):
    """Interfaces of these addresses."""
    return tuple(
        Interface(f"eth{number}", "", 1500, True, (IPv4Interface(address),))
        for number, address in enumerate(found)
    )


def test_only_the_other_nodes_reach_the_ports_on_which_a_node_sends_copies():
    bridge = "172.17.0.1/16"  # Docker's: each node has it, and so it is no other node's
    others = addresses("10.89.0.12/24", "10.7.7.7/24", "127.0.0.1/8", bridge)
    own = addresses("10.89.0.11/24", bridge)
    head, _ = together(a_spark(interfaces=own), a_spark(1, interfaces=others))
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
        f"iifname != {fabric} ip saddr {{ 10.7.7.7, 10.89.0.12 }} accept",
        "counter drop",
        "}",
    ]


def test_copies_without_a_fabric_and_over_ipv6():
    nodes = [replace(node, address=f"2001:db8::{n}") for n, node in enumerate(pair(linked=False))]
    told = rules(replace(nodes[0], cluster=tuple(nodes)), **SENDING)
    assert told[-3:] == ["ip6 saddr { 2001:db8::/64 } accept", "counter drop", "}"]
    assert not any("iifname" in line for line in told)
    named = [replace(node, address=f"{node.name}.local") for node in nodes]
    told = rules(replace(named[0], cluster=tuple(named)), **SENDING)
    assert told[-3:] == ["tcp dport != { 18960-18967 } accept", "counter drop", "}"]


def test_copies_lock_no_one_out_of_ssh_either_nor_of_the_endpoint():
    told = rules(pair(ssh_ports=(22, 18960))[0], **SENDING, endpoint_port=18961)
    assert told[-3] == "tcp dport { 18960, 18961 } accept"


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
    head = a_spark()
    nodes = [Node(**{**vars(n), "cluster": (head, other)}) for n in (head, other)]
    one, two = (c.env for c in containers("ray", nodes, **engine()))
    assert {k for k in one.keys() | two.keys() if one.get(k) != two.get(k)} <= OWN
    assert (one["NCCL_IB_HCA"], two["NCCL_IB_HCA"]) == ("rocep1s0f1,roceP2p1s0f1", "mlx5_7")
    assert (one["NCCL_IB_MERGE_NICS"], two["NCCL_IB_MERGE_NICS"]) == ("1", "0")
    assert (one["VLLM_HOST_IP"], two["GLOO_SOCKET_IFNAME"]) == ("192.168.177.11", "eth7")
    assert one["OMP_NUM_THREADS"] == "1"
    assert not [name for name in one | two if "GID" in name]


@given(st.permutations(["dtype", "max-model-len", "enforce-eager", "kv-cache-dtype"]))
def test_the_same_arguments_whatever_the_order_in_the_recipe(order):
    """The compile cache is keyed by them, and all ranks must have the same."""
    recipe = load_recipe("lab-paris", SHIPPED)
    values = {"dtype": "auto", "max-model-len": 4096, "enforce-eager": True, "kv-cache-dtype": "x"}
    shuffled = recipe.model_copy(update={"engine_args": {name: values[name] for name in order}})
    straight = recipe.model_copy(update={"engine_args": values})
    assert shuffled.args_for(2, 0.7) == straight.args_for(2, 0.7)
    specs = {
        containers("vllm", pair(), **engine(flags=r.flags(2)))[0].spec for r in (shuffled, straight)
    }
    assert len(specs) == 1

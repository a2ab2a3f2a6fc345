"""ray and vllm: secrets, rights, ports, and what all ranks have alike; the rest is in cases/."""

from ipaddress import IPv4Interface

import pytest
from factories import SHIPPED
from hypothesis import given
from hypothesis import strategies as st
from role_samples import a_spark, one, together, yielded
from serve_plans import bare_server

from spark_cluster.config.facts import Facts, Hca
from spark_cluster.config.ports import EnginePorts
from spark_cluster.config.recipe_schema import Ray
from spark_cluster.config.recipes import load_recipe
from spark_cluster.config.topology import Link, Node
from spark_cluster.engine.names import PAUSE
from spark_cluster.node.values import Secret
from spark_cluster.resources import Container

KEY = "hunter2-the-api-key"
TOKEN = "0123456789abcdef" * 4
PAIR = together(a_spark(), a_spark(1))


def containers(role, nodes=PAIR, tp=2, **server):
    """The container of each node, but for that of the pause."""
    usual = {"image": "i:1", "model_path": "/srv/m", "env": {"OMP_NUM_THREADS": "1"}}
    settings = {"server": bare_server(*("spark1", "spark2")[:tp], **{**usual, **server})}
    made = [[r for r in yielded(role, node, **settings) if r.name != PAUSE] for node in nodes]
    return [one([r for r in found if isinstance(r, Container)], "Container") for found in made]


def test_secrets_of_a_recipe_are_files_of_root():
    ray, server = (containers(r, secret_env={"WANDB": KEY})[0] for r in ("ray", "vllm"))
    for container in (ray, server):
        assert container.secret_files["/run/secrets/env/WANDB"] == KEY
        # Neither what `docker inspect` shows nor the label with the arguments has it.
        assert KEY not in str(container.argv) + repr(container)
        assert container.command[:2] == ("sh", "-c")
    assert set(server.secret_files) == {"/run/secrets/env/WANDB"}, "and no key of the endpoint"


def test_an_engines_container_has_two_capabilities_and_gains_none():
    for role in ("ray", "vllm"):
        made = containers(role)[0]
        assert set(made.cap_add) == {"DAC_OVERRIDE", "IPC_LOCK"}
        assert (made.cap_drop, made.security_opt) == (("ALL",), ("no-new-privileges",))


def test_the_user_that_an_image_names_takes_no_secret_from_its_programs():
    """Docker gives `USER vllm` of an image no capability: it could read neither Ray's token nor a
    secret variable, could write no cache, and Ray's port would not be root's, which alone is sent
    the token."""
    for role in ("ray", "vllm"):
        assert containers(role)[0].user == "0:0"


def test_no_port_of_ray_is_left_to_chance():
    """`ray start --help` of 2.60 knows these; what only the environment sets is there, too."""
    for made in containers("ray", ray=Ray(first_port=19001)):
        words = [word for word in made.command if "port" in word.partition("=")[0]]
        numbers = [int(word.partition("=")[2]) for word in words]
        metrics = [int(made.env[n]) for n in ("AUTOSCALER_METRIC_PORT", "DASHBOARD_METRIC_PORT")]
        assert len({*numbers, *metrics}) == len([*numbers, *metrics]), "each has its own"
        known = EnginePorts(first_port=19001).spans
        for port in (*numbers, *metrics):
            assert any(first <= port <= last for first, last in known), port


def test_ray_has_a_token_that_only_root_reads():
    for made in (*containers("ray", ray_token=TOKEN), containers("vllm", ray_token=TOKEN)[0]):
        assert made.env["RAY_AUTH_MODE"] == "token"
        token = made.secret_files[made.env["RAY_AUTH_TOKEN_PATH"]]
        assert (token, isinstance(token, Secret)) == (TOKEN, True)
        assert TOKEN not in " ".join(made.argv)
    alone = containers("vllm", [a_spark(linked=False)], tp=1, ray_token=TOKEN)
    ranks = containers("vllm", executor="mp", ray_token=TOKEN)
    assert [made.secret_files for made in (*alone, *ranks)] == [{}, {}, {}]


@pytest.mark.parametrize(("tp", "executor"), [(1, "ray"), (2, "ray"), (2, "mp")])
def test_no_container_of_vllm_has_the_api_key(tp, executor):
    """The proxy asks for it; in vLLM's environment it would go on to all of Ray's workers."""
    for made in containers("vllm", tp=tp, executor=executor, flags={"x": True}):
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
    first, two = (made.env for made in containers("ray", together(a_spark(), other)))
    assert {k for k in first.keys() | two.keys() if first.get(k) != two.get(k)} <= OWN
    assert (first["NCCL_IB_HCA"], two["NCCL_IB_HCA"]) == ("rocep1s0f1,roceP2p1s0f1", "mlx5_7")
    assert (first["NCCL_IB_MERGE_NICS"], two["NCCL_IB_MERGE_NICS"]) == ("1", "0")
    assert (first["VLLM_HOST_IP"], two["GLOO_SOCKET_IFNAME"]) == ("192.168.177.11", "eth7")
    assert first["OMP_NUM_THREADS"] == "1"
    assert not [name for name in first | two if "GID" in name]


@given(st.permutations(["dtype", "max-model-len", "enforce-eager", "kv-cache-dtype"]))
def test_the_same_arguments_whatever_the_order_in_the_recipe(order):
    """The compile cache is keyed by them, and all ranks must have the same."""
    recipe = load_recipe("lab-paris", SHIPPED)
    values = {"dtype": "auto", "max-model-len": 4096, "enforce-eager": True, "kv-cache-dtype": "x"}
    shuffled = recipe.model_copy(update={"engine_args": {name: values[name] for name in order}})
    straight = recipe.model_copy(update={"engine_args": values})
    assert shuffled.args_for(2, 0.7) == straight.args_for(2, 0.7)
    specs = {containers("vllm", flags=r.flags(2))[0].spec for r in (shuffled, straight)}
    assert len(specs) == 1

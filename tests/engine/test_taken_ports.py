"""Ports that another program has are refused before anything is fetched; our own are none."""

from __future__ import annotations

import json
from types import SimpleNamespace

import pytest
from factories import make_node, make_recipe
from serve_plans import deployment_for

from spark_cluster.engine import taken_ports
from spark_cluster.engine.names import RAY, SERVER
from spark_cluster.errors import Refused
from spark_cluster.facts.listeners import Listener, parse

LISTENS = 'LISTEN 0 5 {}:{} 0.0.0.0:* users:(("{}",pid=77,fd=3))\n'


def listens(port, program="nginx", address="0.0.0.0"):
    return LISTENS.format(address, port, program)


def inspected(status):
    return json.dumps([{"State": {"Status": status}, "Config": {}, "Name": "/x"}])


def check(*, tp=2, proxy="inactive", runs=(), **said):
    """Look at two nodes that listen as told, of which one may be told alone."""
    nodes = [make_node("a"), make_node("b", head=False)]
    deployment = deployment_for(
        make_recipe(executor="ray"), *nodes[:tp], tp=tp, bind="management", open=True
    )

    def submit(_op, commands):
        node = asked.pop(0)
        found = {
            "ss": said.get(node.name, ""),
            "proxy": f"{proxy}\n",
            **{name: inspected("running") if name in runs else "[]" for name in (SERVER, RAY)},
        }
        assert found.keys() == commands.keys()
        answers = {name: {"stdout": text} for name, text in found.items()}
        return SimpleNamespace(wait=lambda: {"commands": answers})

    asked = list(nodes)
    taken_ports.must_be_free(
        SimpleNamespace(session=lambda _node: SimpleNamespace(submit=submit)), deployment
    )


@pytest.mark.parametrize(
    ("node", "said", "words"),
    [
        ("a", listens(8000), r"port 8000, which the endpoint needs, is taken by nginx \(PID 77\)"),
        ("a", listens(18000, address="127.0.0.1"), "port 18000, which the server needs"),
        ("a", listens(6379, "redis-server"), "head of Ray needs, is taken by redis-server"),
        ("a", listens(8265, address="127.0.0.1"), "port 8265, which the dashboard of Ray"),
        ("b", listens(18301), "port 18301, which the services of Ray"),
        ("b", "LISTEN 0 5 *:18302 *:*\n", "is taken by another program"),
    ],
)
def test_a_port_that_is_taken(node, said, words):
    with pytest.raises(Refused, match=words) as caught:
        check(**{node: said})
    assert caught.value.where == node
    assert "choose another port with" in caught.value.hint


@pytest.mark.parametrize(
    "given",
    [
        {"a": listens(22) + listens(8000, address="192.168.9.9") + "odd\n"},
        {"b": listens(8000) + listens(6379)},
        {"a": listens(8000, "haproxy"), "proxy": "active"},
        {"a": listens(18000, "vllm") + listens(6379, "gcs_server"), "runs": (SERVER, RAY)},
        {"a": listens(6379), "tp": 1},
    ],
)
def test_ports_that_are_free_or_ours_or_not_needed(given):
    check(**given)


def test_a_proxy_of_someone_else():
    with pytest.raises(Refused, match="is taken by haproxy"):
        check(a=listens(8000, "haproxy"))


def test_listeners():
    text = (
        'LISTEN 0 128 127.0.0.53%lo:53 0.0.0.0:* users:(("systemd-resolve",pid=9,fd=14))\n'
        "LISTEN 0 128 [::]:22 [::]:*\nState Recv-Q\n"
    )
    one, two = parse(text)
    assert one == Listener("127.0.0.53", 53, "systemd-resolve", 9)
    assert (two.address, str(two)) == ("::", "another program")
    assert (one.blocks("127.0.0.1"), two.blocks("127.0.0.1"), one.blocks("*")) == (
        False, True, True,
    )  # fmt: skip

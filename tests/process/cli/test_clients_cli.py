"""`clients` on a real agent over a pipe, with a stand-in for docker and a server that answers."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest
from factories import put
from small_server import answering

from spark_cluster.cli import clients
from spark_cluster.engine.client_target import TunnelEvent
from spark_cluster.engine.proxy import DESCRIPTION, SELF_SIGNED
from spark_cluster.node.containers import ENDPOINT

INVENTORY = """\
nodes: {spark1: {address: 10.0.0.1, roles: [head]}}
serve: {bind: management, api_key: {env: MY_KEY}, tls: self-signed}
"""


@pytest.fixture
def engine():
    """The port of an engine's list of models."""
    models = [{"id": "other", "max_model_len": 1}, {"id": "gemma", "max_model_len": 9}]
    with answering(lambda _: (200, {}, json.dumps({"data": models}))) as port:
        yield port


@pytest.fixture
def serving(project: Path, monkeypatch, engine) -> Path:
    """The folder of a head whose docker knows a container."""
    monkeypatch.setenv("COLUMNS", "200")
    put(project / "inventory.yaml", INVENTORY)
    labels = {"spark-cluster.model": "gemma", ENDPOINT: f"http://127.0.0.1:{engine}/v1"}
    state = json.dumps([{"State": {"Status": "running"}, "Config": {"Labels": labels}}])
    put(project / "spark1/usr/local/bin/docker", f"#!/bin/sh\ncat <<'END'\n{state}\nEND\n", 0o755)
    return project / "spark1"


def certificate(*options: str) -> str:
    """A new one, by the options of `openssl req`, without its key."""
    kind = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-noenc", "-subj", "/CN=spark1")
    argv = ["openssl", "req", "-x509", *kind, *options, "-keyout", "/dev/null"]
    return subprocess.run(argv, check=True, capture_output=True, text=True).stdout


AS_MADE = ("-addext", "basicConstraints=critical,CA:FALSE")


def proxied(node: Path, pem: str = "") -> str:
    """Have the proxy guard the endpoint; return its certificate."""
    pem = pem or certificate(*AS_MADE)
    access = {"url": "https://10.0.0.1:8443/v1", "api_key": True, "tls": "self-signed"}
    put(node / DESCRIPTION.lstrip("/"), json.dumps(access))
    put(node / "certificate", pem)
    script = f'#!/bin/sh\n[ "$*" = "x509 -in {SELF_SIGNED}" ] && cat {node}/certificate\n'
    put(node / "usr/local/bin/openssl", script, 0o755)
    return pem


def test_what_serves_is_asked_and_the_certificate_is_saved(run, serving, project, monkeypatch):
    pem = proxied(serving)
    monkeypatch.setenv("MY_KEY", "abc-123")
    status, out, _ = run("clients", "--json")
    assert status == 0
    found = json.loads(out)
    endpoint = found["endpoint"]
    assert (endpoint["url"], endpoint["model"]) == ("https://10.0.0.1:8443/v1", "gemma")
    assert (endpoint["context"], endpoint["key_variable"]) == (9, "MY_KEY")
    ca_file = Path(endpoint["ca_file"])
    assert ca_file.read_text() == pem
    assert ca_file.is_relative_to(project / "state")
    assert "abc-123" not in out
    assert "abc-123" in run("clients", "--json", "--show-key")[1]


@pytest.mark.parametrize("kind", ["an authority", "two", "none", "one behind rubbish"])
def test_a_certificate_that_could_sign_others_is_not_saved(run, serving, project, kind):
    """Programs would take the node for any server: NODE_EXTRA_CA_CERTS is for all of them."""
    authority = certificate("-addext", "basicConstraints=critical,CA:TRUE")
    rubbish = "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n"  # some read on
    kinds = {
        "an authority": authority,
        "one behind rubbish": certificate(*AS_MADE) + rubbish + authority,
        "two": certificate(*AS_MADE) + certificate(*AS_MADE),
        "none": "x\n",
    }
    proxied(serving, kinds[kind])
    status, _, err = run("clients")
    assert status == 1
    assert "not that of one server" in err
    assert not list((project / "state").rglob("*.pem"))


def test_of_several_models_it_is_for_the_first(run, serving, engine):
    node = serving
    proxied(node)
    access = json.loads((node / DESCRIPTION.lstrip("/")).read_text())
    one = {"node": "spark1", "address": "127.0.0.1", "port": engine, "program": "p", "kind": "chat"}
    models = [{**one, "names": ["gemma", "alias"]}, {**one, "names": ["words"]}]
    put(node / DESCRIPTION.lstrip("/"), json.dumps({**access, "models": models}))
    put(node / "usr/local/bin/docker", "#!/bin/sh\nexit 1\n", 0o755)
    endpoint = json.loads(run("clients", "--json")[1])["endpoint"]
    assert (endpoint["url"], endpoint["model"]) == ("https://10.0.0.1:8443/v1", "gemma")
    assert endpoint["context"] == 9


def test_one_client_alone_can_be_written_to_a_file(run, serving):
    status, out, err = run("clients", "opencode")
    assert status == 0
    assert json.loads(out)["provider"]["spark"]["models"]["gemma"]["limit"]["context"] == 9
    assert "spark-cluster tunnel" in err


def test_people_read_all_of_them(run, serving):
    proxied(serving)
    status, out, _ = run("clients")
    assert status == 0
    assert "gemma at https://10.0.0.1:8443/v1" in out
    assert "up to 9 tokens a request; with the API key in MY_KEY" in out
    for title in ("curl", "Python (openai)", "Open WebUI", "opencode", "Continue"):
        assert title in out


def test_a_tunnel_names_the_clients_of_its_own_port(serving, run, monkeypatch):
    opened = TunnelEvent("open", "spark1", url="http://127.0.0.1:9001/v1", to="http://x:8000/v1")
    monkeypatch.setattr(clients, "keep_open", lambda *_: iter([opened]))
    _, _, err = run("tunnel", "--port", "9001")
    assert "`spark-cluster clients --port 9001` shows how to use it" in err

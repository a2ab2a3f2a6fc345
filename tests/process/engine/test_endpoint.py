"""Where the endpoint is, what guards it, and what is refused before anything is started."""

import subprocess
from pathlib import Path
from types import SimpleNamespace

import pytest
from cases import cases
from factories import make_node

from spark_cluster.config.inventory import Inventory
from spark_cluster.config.inventory_schema import ServeEntry, Tls
from spark_cluster.config.secret import SecretReference
from spark_cluster.engine import deployment, proxy
from spark_cluster.engine.deployment import Endpoint
from spark_cluster.errors import Failed, UsageError
from spark_cluster.node.containers import ENDPOINT
from spark_cluster.runner.session import Answer

CASES = cases(__file__, "endpoint.toml")


def of(address="10.0.0.1", own=("10.0.0.1/24", "192.168.177.11/24"), **serve):
    inventory = Inventory(Path("inventory.yaml"), {}, {}, ServeEntry(**serve), (), 9000)
    head = make_node("a", address=address, own=own)
    return deployment.endpoint_of(inventory, head, "paris")


@pytest.fixture
def key(monkeypatch):
    """`key("text")`: what the inventory refers to."""

    def refer(text):
        monkeypatch.setenv("A_KEY", text)
        return SecretReference(env="A_KEY")

    return refer


def test_without_a_proxy_vllm_has_the_port_and_else_one_of_its_own(key):
    plain = of(port=9000)
    assert (plain.url, plain.engine_url) == ("http://127.0.0.1:9000/v1",) * 2
    assert plain.engine_port is None
    for serve, where in (
        ({"bind": "management", "open": True}, "http://10.0.0.1"),
        ({"bind": "10.0.0.1", "open": True}, "http://10.0.0.1"),
        ({"api_key": key("sk-1")}, "http://127.0.0.1"),
        ({"tls": Tls(self_signed=True)}, "https://127.0.0.1"),
    ):
        found = of(port=9000, **serve)
        assert found.engine_url == "http://127.0.0.1:18000/v1"
        assert found.url == f"{where}:9000/v1"
        assert (found.host, found.engine_port) == (where.rpartition("/")[2], 18000)
    assert of(api_key=key("sk-1"), engine_port=7000).engine_url == "http://127.0.0.1:7000/v1"


@pytest.mark.parametrize(
    ("address", "bind"), [("10.0.0.1", "10.9.9.9"), ("10.9.9.9", "management")]
)
def test_an_address_that_the_head_does_not_have(address, bind):
    """The second one is behind a forwarded port, say: binding to it could not work."""
    with pytest.raises(Failed, match=r"10\.9\.9\.9 is not one of the node's own addre") as caught:
        of(address, bind=bind, open=True)
    assert caught.value.where == "a"
    assert "192.168.177.11" in str(caught.value)


def test_the_address_of_a_head_that_is_known_by_its_name():
    own = ("127.0.0.1/8", "10.0.0.1/24")
    assert of("localhost", own, bind="management", open=True).url == "http://127.0.0.1:8000/v1"


@pytest.mark.parametrize("text", ["two words", "a,b", "schlüssel", "tab\there", '"quoted"'])
def test_a_key_that_a_header_cannot_carry(key, text):
    with pytest.raises(UsageError, match="cannot carry") as caught:
        of(api_key=key(text))
    assert text not in str(caught.value)


def test_nothing_shows_the_key(key):
    found = of(api_key=key("sk-very-secret"))
    assert "sk-very-secret" not in f"{found!r} {found.access()} {found.access().to_dict()}"
    assert found.headers["Authorization"] == "Bearer sk-very-secret"
    assert "Authorization" not in of().headers


def test_a_request_is_what_a_user_sends(key):
    asked = []
    session = SimpleNamespace(http=lambda url, **how: asked.append((url, how)) or Answer(200, ""))
    of(api_key=key("sk-1"), tls=Tls(self_signed=True)).request(session, "/x")
    ((url, options),) = asked
    assert url == "https://127.0.0.1:8000/x"
    assert options["headers"]["Authorization"] == "Bearer sk-1"
    assert options["certificate"] == proxy.SELF_SIGNED


# -- what runs ---------------------------------------------------------------------------------


@pytest.mark.parametrize("case", CASES["running"], ids=str)
def test_where_a_server_that_runs_answers(case):
    labels = {ENDPOINT: case["label"], "spark-cluster.model": "m"}
    found = deployment.running(labels, case.get("description"), "k")
    assert (found.url if found else None) == case.get("url")
    if found:
        assert (found.model, found.api_key) == ("m", "k")


@pytest.mark.parametrize("case", CASES["guarded"], ids=lambda case: case["words"])
def test_how_it_is_guarded_in_words(case):
    assert str(Endpoint(port=1, model="m", **case["endpoint"]).access("0a1b")) == case["words"]


# -- the user's certificate --------------------------------------------------------------------


@pytest.fixture(scope="module")
def pems(tmp_path_factory):
    """Two certificates with their keys, and one of the keys with a passphrase."""
    folder = tmp_path_factory.mktemp("pems")
    new = "req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -noenc -subj /CN=x"
    for command in (
        *(f"{new} -keyout {name}.key -out {name}.pem" for name in ("a", "b")),
        "pkey -in a.key -aes128 -passout pass:secret -out locked.key",
    ):
        argv = ["openssl", *command.split()]
        subprocess.run(argv, check=True, capture_output=True, cwd=folder)
    for file in folder.iterdir():
        file.chmod(0o600)
    (folder / "none.pem").write_text("no PEM\n")
    (folder / "binary.pem").write_bytes(b"\xff\xfe")
    (folder / "shared.key").write_bytes((folder / "a.key").read_bytes())
    (folder / "shared.key").chmod(0o640)
    return folder


def test_certificate_and_key_go_as_one_file(pems):
    found = of(tls=Tls(certificate=pems / "a.pem", key=pems / "a.key"))
    assert found.pem.startswith("-----BEGIN CERTIFICATE-----")
    assert found.pem.count("-----BEGIN PRIVATE KEY-----") == 1
    assert "PRIVATE" not in repr(found)
    assert found.certificate == proxy.CERTIFICATE


@pytest.mark.parametrize("case", CASES["certificate"], ids=lambda case: case["said"])
def test_a_certificate_that_cannot_be_used(pems, case):
    certificate, key = (pems / name for name in case["files"])
    with pytest.raises(UsageError, match=case["said"]):
        of(tls=Tls(certificate=certificate, key=key))

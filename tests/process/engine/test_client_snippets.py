"""What clients are told: snippets, which run against a real server, and the unit of the tunnel."""

from __future__ import annotations

import ast
import json
import os
import re
import shutil
import ssl
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from cases import cases, each_case, holds
from factories import put
from ruamel.yaml import YAML
from waiting import HANG_S
from web_server import WebServer

from spark_cluster.config.inventory_schema import ServeEntry
from spark_cluster.engine import client_target
from spark_cluster.engine.client_target import CLIENTS, ClientTarget, snippets, target_of
from spark_cluster.engine.proxy import Access
from spark_cluster.errors import Failed, UsageError

KEY = "abc-123"
PLAIN = ClientTarget("http://127.0.0.1:8000/v1", "gemma", context=32768, tunnel=True)
KEYED = ClientTarget(
    "https://10.0.0.5:8443/v1", "gemma", key_variable="MY_KEY", ca_file="/home/a/spark 1.pem"
)


@pytest.fixture
def server():
    """Answers a chat completion, in the form of either API."""
    replies = json.loads(Path(__file__).with_name("client_replies.json").read_text())
    with WebServer(lambda asked: (200, replies[asked.path])) as made:
        yield made


def seen(server):
    """Return the path, the key and the document of each request."""
    return [(one.path, one.headers["Authorization"], one.document) for one in server.asked]


@pytest.fixture
def tls_server(server, tmp_path):
    """The same over TLS, with a certificate as the nodes make it; `server.certificate`."""
    from spark_cluster.node.host import Host
    from spark_cluster.resources import SelfSignedCertificate

    host = Host(tmp_path)
    pem = "/certificate.pem"
    resource = SelfSignedCertificate(pem, ("spark1", "127.0.0.1"))
    resource.converge(host, resource.observe(host))
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(tmp_path / "certificate.pem")
    server.socket = context.wrap_socket(server.socket, server_side=True)
    both = (tmp_path / "certificate.pem").read_text()
    (public,) = re.findall(r"-----BEGIN CERTIFICATE-----.*?END CERTIFICATE-----\n", both, re.S)
    server.certificate = client_target.write_certificate(tmp_path / "state", "spark1", public)
    return server


def target(server, **more):
    scheme = "https" if "ca_file" in more else "http"
    return ClientTarget(f"{scheme}://127.0.0.1:{server.server_address[1]}/v1", "gemma", **more)


def text(client, of):
    return next(snippet.text for snippet in snippets(of) if snippet.client == client)


PROGRAMS = {
    "python": "/v1/chat/completions",
    "anthropic": "/v1/messages",
    "litellm": "/v1/chat/completions",
}
"""Python programs, which run with the real library, and where each asks."""
RUNS = ["curl", *PROGRAMS]


def run_client(client, given):
    """Run the snippet of a client as its user does."""
    command = text(client, given)
    if client != "curl":
        assert ran([sys.executable, "-c", command], MY_KEY=KEY) == "Hello.\n"
    elif shutil.which("curl") is None:
        pytest.skip("no curl here")
    else:
        ran(["sh", "-ec", command], MY_KEY=KEY)


def must_have_asked(server, client, key):
    ((path, given, body),) = seen(server)
    assert path == PROGRAMS.get(client, "/v1/chat/completions")
    assert given == key
    assert (body["model"], body["messages"][0]["role"]) == ("gemma", "user")


@pytest.mark.parametrize("client", ["curl", "python"])
def test_a_client_without_a_key_runs(server, client):
    run_client(client, target(server))
    must_have_asked(server, client, None if client == "curl" else "Bearer none")


@pytest.mark.parametrize("client", RUNS)
def test_a_client_sends_the_key_and_trusts_the_certificate_of_the_node(tls_server, client):
    certificate = str(tls_server.certificate)
    run_client(client, target(tls_server, key_variable="MY_KEY", ca_file=certificate))
    must_have_asked(tls_server, client, f"Bearer {KEY}")


@pytest.mark.parametrize("client", PROGRAMS)
@pytest.mark.parametrize("key", ["", "MY_KEY"])
def test_a_program_without_a_certificate_is_one(client, key):
    program = text(client, ClientTarget(PLAIN.url, "gemma", key_variable=key))
    ast.parse(program)
    assert ("MY_KEY" in program) is bool(key)


def test_llm_finds_the_model_in_its_file(server, tmp_path):
    given = target(server, key_variable="MY_KEY")
    (tmp_path / "extra-openai-models.yaml").write_text(text("llm", given))
    (tmp_path / "keys.json").write_text(json.dumps({"spark": KEY}))
    argv = [sys.executable, "-m", "llm", "-m", "gemma", "--no-stream", "Hi"]
    assert ran(argv, LLM_USER_PATH=str(tmp_path)) == "Hello.\n"
    assert seen(server)[0][1] == f"Bearer {KEY}"


VARIABLES = cases(__file__, "client_variables.json", KEY=KEY, URL=KEYED.url, CA_FILE=KEYED.ca_file)


@pytest.mark.parametrize(("client", "variables"), VARIABLES.items(), ids=VARIABLES)
def test_the_variables_are_set_by_a_shell(client, variables):
    """Claude Code gets the address below which the messages are."""
    script = text(client, KEYED) + "".join(f'echo "${name}"\n' for name in variables)
    assert ran(["sh", "-ec", script], MY_KEY=KEY).splitlines() == list(variables.values())


OFFLINE = {"LITELLM_LOCAL_MODEL_COST_MAP": "True"}
"""litellm fetches prices when it is imported."""


def ran(argv, **environment):
    """Return what a program prints; it ends well, and others see no key among its arguments."""
    how = {"text": True, "timeout": HANG_S, "env": {**os.environ, **OFFLINE, **environment}}
    done = subprocess.run(argv, check=False, capture_output=True, **how)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_the_key_is_no_argument_of_curl():
    command = text("curl", ClientTarget(KEYED.url, "gemma", key_variable="MY_KEY", key=KEY))
    piped, _, curl = command.partition("|\n")
    assert KEY in piped
    assert KEY not in curl


# -- files ------------------------------------------------------------------------------------


@each_case(__file__, "client_documents.json")
def test_a_file_of_a_client_says_where_the_model_is(case):
    given = {"plain": PLAIN, "keyed": KEYED, "short": replace(PLAIN, context=4096)}[case["target"]]
    document = YAML(typ="safe").load(text(case["client"], given))
    assert holds(document, case["document"]), document


def test_a_key_that_is_shown_stands_where_its_variable_would():
    shown = ClientTarget(KEYED.url, "gemma", key_variable="MY_KEY", key="a$b")
    for snippet in snippets(shown):
        assert "MY_KEY" not in snippet.text, snippet.client
    assert "a$$b" in text("open-webui", shown)
    assert "a$b" not in str(shown.to_dict())
    assert "a$b" not in repr(shown)


@pytest.mark.parametrize("kind", ["chat", "embedding", "reranking", "transcription"])
def test_each_kind_has_requests_of_its_own(kind):
    made = {s.client: s.text for s in snippets(ClientTarget(PLAIN.url, "m", kind=kind))}
    assert set(made) == {name for name, about in CLIENTS.items() if kind in about["kinds"]}
    assert ("chat/completions" in str(made)) is (kind == "chat")
    if "python" in made:
        ast.parse(made["python"])


# -- what they are made of --------------------------------------------------------------------

SERVE = ServeEntry.model_validate({"api_key": {"env": "MY_KEY"}})


def current(url="http://127.0.0.1:8000/v1", model="gemma", **access):
    return client_target.Current(Access(url, **access), model, "chat", 4096)


def test_an_endpoint_on_the_loopback_is_reached_by_the_tunnel():
    for port, more in ((8000, {}), (9000, {"port": 9000})):
        found = target_of(current(), ServeEntry(), "spark1", **more)
        assert (found.url, found.tunnel) == (f"http://127.0.0.1:{port}/v1", True)
        assert "`spark-cluster tunnel" in found.notes[0]
        assert ("--port 9000" in found.notes[0]) is bool(more)


def test_an_endpoint_on_the_network_is_reached_at_its_address():
    there = current("https://10.0.0.5:8443/v1", api_key=True, tls="self-signed")
    found = target_of(there, SERVE, "spark1", ca_file="/c")
    assert (found.url, found.key_variable) == ("https://10.0.0.5:8443/v1", "MY_KEY")
    assert (found.ca_file, found.tunnel) == ("/c", False)
    tunnelled = target_of(there, SERVE, "spark1", tunnel=True)
    assert tunnelled.url == "https://spark1:8443/v1"
    assert any("/etc/hosts" in note for note in tunnelled.notes)


def test_where_the_key_comes_from_is_said(monkeypatch, tmp_path):
    keyed = current(api_key=True)
    assert "export MY_KEY=..." in target_of(keyed, SERVE, "spark1").notes[-1]
    monkeypatch.setenv("MY_KEY", KEY)
    assert not any("MY_KEY" in note for note in target_of(keyed, SERVE, "h").notes)
    of_file = ServeEntry.model_validate({"api_key": {"file": str(tmp_path / "my key")}})
    found = target_of(keyed, of_file, "spark1")
    assert found.key_variable == "SPARK_API_KEY"
    assert f"head -n 1 '{tmp_path}/my key'" in found.notes[-1]


@pytest.mark.parametrize("model", ["a{env:HF_TOKEN}", "a$HOME", "a\nb", "", 'a"b', "${{ x }}"])
def test_a_name_that_would_be_read_as_something_else_is_refused(model):
    with pytest.raises(Failed, match="cannot stand in a configuration"):
        target_of(current(model=model), ServeEntry(), "spark1")


@pytest.mark.parametrize(
    "url", ["", "nonsense", "http://a b:80/v1", "http://$(x):80/v1", "ftp://a:1/v1", "http://a/v1"]
)
def test_an_address_that_is_none_is_refused(url):
    with pytest.raises(Failed, match="not a base URL"):
        target_of(current(url), ServeEntry(), "spark1")


def test_a_certificate_that_cannot_be_written_is_an_error(tmp_path):
    (tmp_path / "certificates").write_text("a file")
    with pytest.raises(Failed, match="cannot be written"):
        client_target.write_certificate(tmp_path, "spark1", "PEM")
    assert Path(tmp_path / "certificates").read_text() == "a file"


# -- the tunnel as a systemd user service ---------------------------------------------------------


ARGV = ["/opt/python 3/bin/python", "-m", "spark_cluster", "--project", '/home/a/50%"x$y', "tunnel"]


@pytest.fixture
def systemctl(tmp_path, monkeypatch):
    """`systemctl(status)`: a program of that name, which notes its arguments in `calls`."""
    folder, calls = tmp_path / "bin", tmp_path / "calls"

    def make(status=0):
        said = "echo 'Failed to connect to bus: No medium found' >&2\n" if status else ""
        script = f'#!/bin/sh\necho "$*" >> {calls}\n{said}exit {status}\n'
        put(folder / "systemctl", script, 0o755)
        return calls

    monkeypatch.setenv("PATH", str(folder))
    return make


def test_install_writes_the_unit_and_starts_it(systemctl, tmp_path):
    calls, folder = systemctl(), tmp_path / "config" / "systemd" / "user"
    path = client_target.install(folder, "spark1", ARGV)
    name = "spark-cluster-tunnel-spark1.service"
    assert path == folder / name
    asked = ("show-environment", "daemon-reload", f"enable {name}", f"restart {name}")
    assert calls.read_text().splitlines() == [f"--user {words}" for words in asked]
    assert '"/home/a/50%%\\"x$$y"' in path.read_text()


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="no systemd here")
def test_systemd_finds_nothing_wrong_with_the_unit(tmp_path):
    path = tmp_path / client_target.unit_name("spark1")
    path.write_text(client_target.unit_text("spark1", [sys.executable, *ARGV[1:]]))
    argv = ["systemd-analyze", "verify", "--man=no", str(path)]
    done = subprocess.run(argv, check=False, capture_output=True, text=True)
    assert str(path) not in done.stderr
    assert path.name not in done.stderr


def test_without_systemd_or_its_session_the_reason_and_another_way_are_given(
    systemctl, tmp_path, monkeypatch
):
    systemctl(status=1)
    with pytest.raises(Failed, match="No medium found") as caught:
        client_target.install(tmp_path / "new", "spark1", ARGV)
    assert "login session" in caught.value.hint
    assert not (tmp_path / "new").exists()
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(UsageError, match="systemd") as caught:
        client_target.install(tmp_path / "other", "spark1", ARGV)
    assert "launchd" in caught.value.hint
    assert not (tmp_path / "other").exists()


def test_a_control_character_is_refused():
    with pytest.raises(UsageError, match="control character"):
        client_target.unit_text("spark1", ["/bin/a\nb"])


@pytest.mark.parametrize(
    ("given", "base"),
    [("", "/home/a/.config"), ("/conf", "/conf"), ("relative", "/home/a/.config")],
)
def test_the_folder_of_the_users_units(given, base):
    environment = {"XDG_CONFIG_HOME": given} if given else {}
    found = client_target.unit_folder(environment, Path("/home/a"))
    assert found == Path(base, "systemd/user")


def test_the_commands_of_the_service(systemctl, tmp_path, monkeypatch, capsys):
    from spark_cluster.cli import main

    systemctl()
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    monkeypatch.chdir(tmp_path)
    (tmp_path / "inventory.yaml").write_text(
        "nodes: {spark1: {address: 10.0.0.1, roles: [head]}}\n"
    )
    for option in ("--install", "--remove"):
        words = ["tunnel", option, "--json", "--port", "8123", "--remote-port", "9000"]
        monkeypatch.setattr("sys.argv", ["spark-cluster", *words])
        with pytest.raises(SystemExit) as ended:
            main()
        assert ended.value.code == 0
        found = json.loads(capsys.readouterr().out)
        assert found["changed"]
        file = Path(found["file"])
        if option == "--install":
            words = f'"--project" "{tmp_path}" "tunnel" "--port" "8123" "--remote-port" "9000"'
            assert f'"-P" "-m" "spark_cluster" {words}' in file.read_text()
        else:
            assert not file.exists()
            assert not client_target.remove(file.parent, "spark1"), "it is gone"

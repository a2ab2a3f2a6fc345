"""The tunnel over a real sshd: it carries, is made again when cut, and says what does not work."""

import contextlib
import errno
import getpass
import http.client
import json
import os
import queue
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
import urllib.error
import urllib.request
from pathlib import Path
from types import SimpleNamespace

import pytest
from cases import each_case
from factories import put
from free_ports import free_port
from hung_processes import lives
from own_sshd import STUBBORN_PROXY, public, start_sshd, way_to
from relay import Relay
from small_server import answering
from waiting import HANG_S, until

from spark_cluster.config.inventory_schema import ServeEntry
from spark_cluster.engine import client_target
from spark_cluster.engine.client_target import TunnelEvent, keep_open, url_on_head
from spark_cluster.engine.proxy import Access
from spark_cluster.errors import Unreachable, UsageError
from spark_cluster.runner import dialer
from spark_cluster.runner.dialer import carried, forward, held

CHECKOUT = Path(__file__).parents[3]
pytestmark = pytest.mark.usefixtures("trusted")


@pytest.fixture
def endpoint():
    """A port that answers with the path; `/stream` waits in the middle of its answer."""
    go_on = threading.Event()

    def answer(request):
        if request.path != "/stream":
            return 200, {}, request.path
        request.send_response(200)
        request.send_header("Content-Length", "100")
        request.end_headers()
        request.wfile.write(request.path.encode())
        go_on.wait(HANG_S)
        return None

    with answering(answer) as port:
        yield port
        go_on.set()


def fetched(port, path):
    with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", timeout=HANG_S) as answer:
        return answer.read().decode()


class Running:
    """A tunnel in a thread, until its test ends."""

    def __init__(self, target, remote_port):
        self.events: queue.Queue[TunnelEvent] = queue.Queue()
        self.port = free_port()
        self.error = None
        self.ended = False
        there = f"http://127.0.0.1:{remote_port}/v1"

        def find(_connection):
            if self.ended:
                raise KeyboardInterrupt
            return there

        def run():
            try:
                for event in keep_open(target, find, self.port):
                    self.events.put(event)
                    if self.ended:
                        return
            except Unreachable as error:
                self.error = error
            except KeyboardInterrupt:
                pass

        self.thread = threading.Thread(target=run, daemon=True)
        self.thread.start()

    def next(self, kind):
        event = self.events.get(timeout=HANG_S)
        assert event.event == kind, event
        return event

    def get(self, path="/models"):
        return fetched(self.port, path)


@pytest.fixture
def run(target, monkeypatch):
    """`run(remote_port, **target) -> (dialer, relay)`: through a relay that can be cut."""
    monkeypatch.setattr(client_target, "PAUSES_S", (0.01, 0.02))
    made = []

    def start(remote_port, *, port=None, **given):
        relay = Relay(port or target().node.port)
        write_host_key(target(), relay.port)
        made.append((Running(target(port=relay.port, **given), remote_port), relay))
        return made[-1]

    yield start
    for running, relay in made:  # let none try again and again while other tests run
        running.ended = True
        relay.close()
        running.thread.join(HANG_S)
        assert not running.thread.is_alive()


def write_host_key(known, port):
    """Have the sshd's key known at another port, too."""
    path = Path.home() / ".ssh" / "known_hosts"
    lines = path.read_text()
    key = public(known.node.identity_file.with_name("host_key"))
    path.write_text(f"{lines}[127.0.0.1]:{port} {key}\n")


def test_a_cut_connection_is_made_again_and_a_cut_answer_is_an_error(run, endpoint):
    running, relay = run(endpoint)
    running.next("open")
    client = http.client.HTTPConnection("127.0.0.1", running.port, timeout=HANG_S)
    with contextlib.closing(client):
        client.request("GET", "/stream")
        answer = client.getresponse()
        assert answer.read(7) == b"/stream"
        relay.cut()
        with pytest.raises((http.client.IncompleteRead, ConnectionResetError)):
            answer.read()
    assert running.next("cut").message == "the connection was cut"
    running.next("open")
    assert running.get("/again") == "/again"


def test_it_tries_again_until_the_node_is_back(run, endpoint):
    running, relay = run(endpoint)
    running.next("open")
    relay.refuse()
    running.next("cut")
    assert "refused the connection" in running.next("cut").message
    with pytest.raises(OSError):
        running.get()
    assert bind_error(running.port) == errno.EADDRINUSE, "another user would get the API key"
    relay.listen()
    until(lambda: running.events.get(timeout=HANG_S).event == "open")
    assert running.get("/back") == "/back"


def bind_error(port):
    """Return why nobody else can listen at a port of the loopback; 0 if he can."""
    with contextlib.suppress(OSError), socket.socket() as other:
        other.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        other.bind(("127.0.0.1", port))
        other.listen()
        return 0
    return errno.EADDRINUSE


def test_an_endpoint_that_does_not_listen_is_reported_once(run):
    port = free_port()
    running, _ = run(port)
    running.next("open")
    for _ in range(2):
        with pytest.raises((OSError, urllib.error.URLError)):
            running.get()
    event = running.next("refused")
    assert event.message == f"nothing listens at 127.0.0.1:{port} there"
    assert "status" in event.hint
    assert running.events.empty()


def test_an_sshd_that_forbids_forwarding_is_named(run, sshd, home, endpoint, tmp_path):
    server = start_sshd(tmp_path / "own", key=sshd.key, more="PermitOpen none\n")
    known = tmp_path / "known"
    try:
        running, relay = run(endpoint, port=server.port, known_hosts=known)
        key = public(server.folder / "host_key")
        (home / ".ssh" / "known_hosts").write_text(f"[127.0.0.1]:{relay.port} {key}\n")
        until(lambda: running.events.get(timeout=HANG_S).event == "open")
        with pytest.raises((OSError, urllib.error.URLError)):
            running.get()
        assert "forbids forwarding" in running.next("refused").message
    finally:
        server.stop()


def test_the_first_connection_must_be_made(target):
    running = Running(target(port=free_port()), 8000)
    until(lambda: running.error)
    assert "refused the connection" in running.error.message


def test_a_port_that_is_taken_is_refused(target, endpoint):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        found = keep_open(target(), lambda _: f"http://127.0.0.1:{endpoint}", port)
        with pytest.raises(UsageError, match=f"port {port} .*another program listens") as caught:
            next(found)
    assert "--port" in caught.value.hint


def test_the_port_is_on_the_loopback_only(target, endpoint):
    with forward(target(), "127.0.0.1", endpoint) as port, socket.socket() as other:
        # all of 127.0.0.0/8 is this machine; 127.0.0.2 stands for its other addresses
        refused = (errno.ECONNREFUSED, errno.EADDRNOTAVAIL)
        assert other.connect_ex(("127.0.0.2", port)) in refused


def test_a_server_that_is_silent_is_taken_to_be_cut(run, endpoint, monkeypatch):
    monkeypatch.setattr(dialer, "KEEPALIVE_S", 1)
    running, relay = run(endpoint)
    running.next("open")
    relay.hold()
    assert running.next("cut").message == "sshd did not answer within 2 s"


@each_case(__file__, "endpoints.json")
def test_where_the_endpoint_is(case):
    entry, access = ServeEntry.model_validate(case["serve"]), case["access"]
    head = SimpleNamespace(address="10.0.0.5")
    assert url_on_head(access and Access(**access), entry, head) == case["url"]


def test_the_command_carries_until_ctrl_c(sshd, trusted, endpoint, tmp_path, home):
    port = free_port()
    (tmp_path / "inventory.yaml").write_text(
        f"nodes:\n  spark1:\n    address: 127.0.0.1\n    port: {sshd.port}\n    roles: [head]\n"
        f"    identity_file: {sshd.key}\nserve: {{port: {endpoint}}}\n"
    )
    command = [sys.executable, "-m", "spark_cluster", "tunnel", "--port", str(port), "--json"]
    environment = {**os.environ, "PYTHONPATH": str(CHECKOUT), "HOME": str(home)}
    with subprocess.Popen(
        command, cwd=tmp_path, env=environment, stdout=subprocess.PIPE, text=True
    ) as process:
        event = json.loads(process.stdout.readline())
        assert (event["event"], event["url"]) == ("open", f"http://127.0.0.1:{port}/v1")
        assert fetched(port, "/health") == "/health"
        process.send_signal(signal.SIGINT)
        assert process.wait(HANG_S) == 0


# -- what carries it -------------------------------------------------------------------------------


def group_of(port):
    """Return the processes of the group that carries a port, each with its words."""
    groups = {}
    for path in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            group = path.read_text().rpartition(")")[2].split()[2]
            words = path.with_name("cmdline").read_text().split("\0")
            groups.setdefault(group, {})[int(path.parent.name)] = words
    for found in groups.values():
        if any(word.endswith(f":127.0.0.1:{port}") for words in found.values() for word in words):
            return found
    return {}


def test_a_forward_ends_with_its_block_and_all_of_its_processes(target, endpoint):
    with forward(target(), "127.0.0.1", endpoint) as port:
        processes = group_of(endpoint)
        assert len(processes) > 1
        assert fetched(port, "/x") == "/x"
    until(lambda: not any(map(lives, processes)))
    socket.create_server(("127.0.0.1", port)).close()


@pytest.mark.parametrize("name", ["long" * 30, "a:b %h"])
def test_a_forward_needs_no_short_name_of_a_folder(target, endpoint, tmp_path, monkeypatch, name):
    """A Unix socket's has 104 bytes at most, and ssh reads `:` and `%` in it."""
    (tmp_path / name).mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / name))
    with forward(target(), "127.0.0.1", endpoint) as port:
        assert fetched(port, "/x") == "/x"


def test_many_clients_at_once_do_not_wait_for_one_another(target, endpoint):
    with forward(target(), "127.0.0.1", endpoint) as port, contextlib.ExitStack() as ends:
        begun = time.monotonic()
        clients = [ends.enter_context(socket.socket()) for _ in range(200)]
        for client in clients:
            client.setblocking(False)
            client.connect_ex(("127.0.0.1", port))
        for client in clients:
            client.setblocking(True)
            client.sendall(b"GET /x HTTP/1.0\r\n\r\n")
        assert time.monotonic() - begun < 0.9, "Linux tries again after a second"


def test_tokens_are_passed_on_as_they_come(tmp_path):
    """A client that has sent several requests acknowledges late, for which Nagle would wait."""

    def answer():
        client, _ = model.accept()
        for _ in range(5):
            client.sendall(client.recv(1))
        for _ in range(10):
            client.sendall(f"{time.monotonic()}\n".encode())
            time.sleep(0.01)
        client.close()

    def latest():
        threading.Thread(target=answer, daemon=True).start()
        with socket.create_connection(entrance.server_address, HANG_S) as client:
            for _ in range(5):
                client.sendall(b"?")
                assert client.recv(1) == b"?"
            stream = client.makefile("rb")
            return max(time.monotonic() - float(line) for line in stream)

    with socket.socket(socket.AF_UNIX) as model, held(0) as entrance:
        entrance.way = str(tmp_path / "way")
        model.bind(entrance.way)
        model.listen()
        assert min(latest() for _ in range(5)) < 0.015


def test_the_port_of_a_forward_stays_ours_when_its_ssh_has_ended(target, endpoint):
    """Another user could listen there, and would be sent Ray's token by the next request."""
    with forward(target(), "127.0.0.1", endpoint) as port:
        os.killpg(os.getpgid(next(iter(group_of(endpoint)))), signal.SIGKILL)
        until(lambda: not group_of(endpoint))
        assert bind_error(port) == errno.EADDRINUSE
        with pytest.raises(OSError):
            fetched(port, "/x")


def test_a_forward_that_hangs_is_killed(target, endpoint, monkeypatch):
    monkeypatch.setattr(dialer, "ENDS_WITHIN_S", 0.2)
    with forward(target(), "127.0.0.1", endpoint):
        processes = group_of(endpoint)
        os.killpg(os.getpgid(next(iter(processes))), signal.SIGSTOP)
    until(lambda: not any(map(lives, processes)))


KILLED = """\
import os, sys
from pathlib import Path
from spark_cluster.config.inventory import InventoryNode
from spark_cluster.runner.dialer import forward
from spark_cluster.runner.ssh_route import Target
port, key, to = sys.argv[1:]
node = InventoryNode("spark1", "127.0.0.1", 0, "head", port=int(port), identity_file=Path(key))
with forward(Target(node), "127.0.0.1", int(to)) as here:
    print(here, flush=True)
    os.kill(os.getpid(), 9)
"""


def test_a_forward_ends_when_its_program_is_killed(sshd, trusted, endpoint, home):
    argv = [sys.executable, "-c", KILLED, str(sshd.port), str(sshd.key), str(endpoint)]
    environment = {**os.environ, "PYTHONPATH": str(CHECKOUT), "HOME": str(home)}
    done = subprocess.run(
        argv, check=False, env=environment, capture_output=True, text=True, timeout=HANG_S
    )
    assert done.returncode == -signal.SIGKILL
    until(lambda: not group_of(endpoint))


def test_a_proxy_command_that_outlives_ssh_hides_no_cut(target, sshd, home, endpoint):
    """It holds the output of ssh open, on which the end is heard."""
    (home / "proxy.py").write_text(STUBBORN_PROXY)
    command = f"{sys.executable} {home}/proxy.py 127.0.0.1 {sshd.port}"
    (home / ".ssh" / "config").write_text(f"Host *\n  ProxyCommand {command}\n")
    with held(0) as entrance, carried(target(), entrance, "127.0.0.1", endpoint) as news:
        processes = group_of(endpoint)
        os.kill(next(pid for pid, words in processes.items() if words[0] == "ssh"), signal.SIGKILL)
        assert list(news) == [("cut", "the connection was cut")]


def unreachable(target):
    """Return why a tunnel is refused."""
    with pytest.raises(Unreachable) as caught, forward(target, "127.0.0.1", 1):
        raise AssertionError("it opened")
    return caught.value


def test_an_unknown_host_key_is_refused_whatever_the_configuration_says(target, trusted, home):
    loose = "Host *\n  StrictHostKeyChecking no\n  UserKnownHostsFile /dev/null\n"
    (home / ".ssh" / "config").write_text(loose)
    assert "Host key verification failed" in unreachable(target()).message
    (home / ".ssh" / "config").unlink()
    trusted.write_text("")
    assert "Host key verification failed" in unreachable(target()).message


@pytest.mark.parametrize("jump", [None, "hop.example.net"])
def test_no_configuration_of_the_user_loosens_a_tunnel(target, home, tmp_path, monkeypatch, jump):
    """As the real ssh reads the file and the arguments that it is started with, on each hop."""
    (home / ".ssh" / "config").write_text(
        "Host *\n  ForwardAgent yes\n  ForwardX11 yes\n  StrictHostKeyChecking no\n"
        "  VerifyHostKeyDNS yes\n  UpdateHostKeys yes\n  ControlMaster auto\n  BatchMode no\n"
    )
    real, programs = shutil.which("ssh"), tmp_path / "programs"
    put(
        programs / "ssh",
        f'#!/bin/sh\nfor arg; do [ "$last" = -F ] && file=$arg; last=$arg; done\n'
        f'{real} -G "$@" >{tmp_path}/node\n'
        f'{real} -G -F "$file" hop.example.net >{tmp_path}/hop\n',
        0o755,
    )
    monkeypatch.setenv("PATH", f"{programs}:{os.environ['PATH']}")
    unreachable(target(jump=jump))
    strict = {
        *("forwardagent no", "forwardx11 no", "stricthostkeychecking true", "batchmode yes"),
        *("verifyhostkeydns false", "updatehostkeys false", "controlmaster false"),
        "exitonforwardfailure yes",
    }
    for hop in ("node", "hop"):
        assert strict - set((tmp_path / hop).read_text().lower().splitlines()) == set(), hop


@pytest.mark.parametrize("known", ["", "{J} {N}\n", "{J} {K}\n@revoked * {K}\n"])
def test_the_host_key_of_a_jump_host_is_asked_for_as_strictly(
    target, sshd, second_sshd, trusted, home, known
):
    """Unknown, changed, revoked; whatever ssh_config says of jump hosts."""
    (home / ".ssh" / "config").write_text(
        "Host *\n  StrictHostKeyChecking no\n  NoHostAuthenticationForLocalhost yes\n"
    )
    node, hop = public(sshd.folder / "host_key"), public(second_sshd.folder / "host_key")
    known = known.replace("{J}", f"[127.0.0.1]:{second_sshd.port}").replace("{K}", hop)
    trusted.write_text(known.replace("{N}", node) + sshd.host_line)
    jump = f"{getpass.getuser()}@127.0.0.1:{second_sshd.port}"
    assert "Host key verification failed" in unreachable(target(jump=jump)).message


def test_a_tunnel_goes_through_a_jump_host(target, sshd, second_sshd, trusted, endpoint):
    """Also one whose name is hashed in known_hosts."""
    trusted.write_text(sshd.host_line + second_sshd.host_line)
    subprocess.run(["ssh-keygen", "-q", "-H", "-f", trusted], check=True, capture_output=True)
    jump = f"{getpass.getuser()}@127.0.0.1:{second_sshd.port}"
    with forward(target(jump=jump), "127.0.0.1", endpoint) as port:
        assert fetched(port, "/jumped") == "/jumped"


def test_the_known_hosts_of_the_inventory_count_too(target, sshd, trusted, endpoint, tmp_path):
    trusted.unlink()
    known = tmp_path / "known hosts"
    known.write_text(sshd.host_line)
    with forward(target(known_hosts=known), "127.0.0.1", endpoint) as port:
        assert fetched(port, "/known") == "/known"


def test_no_name_becomes_an_option(target, tmp_path):
    touched = tmp_path / "touched"
    hostile = f"-oProxyCommand=touch {touched}"
    error = unreachable(way_to(hostile, user=hostile, connect_timeout_s=HANG_S))
    assert "ssh made no tunnel" in error.message
    assert not touched.exists()


def test_where_it_leads_is_an_address(target):
    with pytest.raises(Unreachable, match="is not an address"):
        forward(target(), "127.0.0.1:22 -R 9:x", 1).__enter__()


def test_a_forward_that_ssh_config_has_already_does_no_harm_or_is_said(target, home, endpoint):
    taken, config = free_port(), home / ".ssh" / "config"
    config.write_text(f"Host *\n  LocalForward {taken} 127.0.0.1:1\n")
    with held(taken) as entrance, carried(target(), entrance, "127.0.0.1", endpoint):
        assert fetched(taken, "/ours") == "/ours"
    config.write_text(f"Host *\n  LocalForward 127.0.0.1:{taken} 127.0.0.1:1\n")
    with (
        pytest.raises(UsageError, match=f"port {taken} .*cannot be used") as caught,
        held(taken) as entrance,
        carried(target(), entrance, "127.0.0.1", endpoint),
    ):
        raise AssertionError("it opened")
    assert "LocalForward" in caught.value.message

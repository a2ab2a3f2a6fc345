"""Ray's token goes to a program of root's: anyone can listen at its port while Ray is down."""

import socket
import threading
from pathlib import Path

import pytest
from hostile import user

from spark_cluster.node import http
from spark_cluster.node.http import ask

LISTENER = """
with socket.create_server(("{host}", 0)) as server:
    print(server.getsockname()[1], flush=True)
    with server.accept()[0] as taken:
        print(taken.recv(1000), flush=True)
"""


@pytest.fixture
def token(tmp_path: Path) -> Path:
    path = tmp_path / "token"
    path.write_text("s3cret-of-ray\n")
    return path


def asked(port: int, token: Path) -> dict[str, object]:
    return ask({"url": f"http://127.0.0.1:{port}/", "timeout": 5, "bearer_file": str(token)})


@user.needs_root
@pytest.mark.parametrize("host", ["127.0.0.1", "0.0.0.0"])
def test_another_users_program_gets_nothing(token, host):
    program = user.running("print(flush=True)" + LISTENER.format(host=host))
    with program as listener:
        port = int(listener.stdout.readline())
        found = asked(port, token)
        assert found["status"] == 0
        assert f"port {port} belongs to another user" in str(found["reason"])
        assert listener.stdout.readline() == "b''\n"


@user.needs_root
@pytest.mark.parametrize("accepts", ["server.accept()[0]", "None"])
def test_who_listens_after_the_connection_answers_for_nobody(accepts, monkeypatch):
    """Another user takes the connection, and leaves the port to Ray."""
    monkeypatch.setattr(http, "ACCEPTED_S", 0.3)
    program = f"""
with socket.create_server(("127.0.0.1", 0)) as server:
    print(server.getsockname()[1], flush=True)
    server.listen()
    taken = {accepts}
    time.sleep(0.2)
    if taken:
        server.close()
    print("done", flush=True)
    time.sleep(60)
"""
    with user.running("print(flush=True)" + program) as other:
        port = int(other.stdout.readline())
        with socket.create_connection(("127.0.0.1", port)) as connection:
            assert other.stdout.readline() == "done\n"
            if accepts != "None":
                socket.create_server(("127.0.0.1", port)).close()
            with pytest.raises(OSError, match="gets no token"):
                http.must_be_roots(connection)


def test_our_own_program_gets_it(token):
    got = []

    def answer() -> None:
        with server.accept()[0] as taken:
            got.append(taken.recv(1000))
            taken.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok")

    with socket.create_server(("127.0.0.1", 0)) as server:
        thread = threading.Thread(target=answer)
        thread.start()
        assert asked(server.getsockname()[1], token) == {"status": 200, "body": "ok"}
        thread.join()
    assert b"Authorization: Bearer s3cret-of-ray\r\n" in got[0]

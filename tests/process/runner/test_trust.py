"""`trust` on the command line, against real servers: new, changed, revoked, and jump hosts."""

import getpass
import json
from functools import partial

import pytest
import readme
from cases import each_case
from hung_processes import ended
from json_schema import document as fits
from own_sshd import keygen
from program import invoke

ME = getpass.getuser()


@pytest.fixture
def folder(home, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def call(folder, sshd):
    """`call("trust", ..., jump=...)`: status, JSON, and what was said."""

    def run(*words, jump="", port=0):
        (folder / "inventory.yaml").write_text(
            f"ssh: {{user: {ME}, port: {port or sshd.port}, identity_file: {sshd.key}}}\n"
            f"nodes:\n  spark1: {{address: 127.0.0.1{', jump: ' + jump if jump else ''}}}\n"
        )
        done = invoke(*words, "--json")
        assert done.exception is None or isinstance(done.exception, SystemExit), done.exception
        read = partial(fits, "trust") if words[0] == "trust" else json.loads
        return done.exit_code, read(done.stdout), done.stderr

    return run


def test_new_trusted_changed_replaced(call, sshd, home, tmp_path):
    known = home / ".ssh/known_hosts"
    other = keygen(tmp_path / "other").with_suffix(".pub").read_text().split()[1]
    status, document, _ = call("trust")
    assert (status, document["nodes"][0]["was"], known.exists()) == (1, "new", False)
    status, document, _ = call(*readme.words("spark-cluster trust"), "--yes")
    assert (status, document["nodes"][0]["trusted"], document["jump_hosts"]) == (0, True, [])
    assert call("trust")[1]["nodes"][0]["was"] == "trusted"
    known.write_text(f"github.com,[127.0.0.1]:{sshd.port} ssh-ed25519 {other}\n")
    known.chmod(0o644)
    status, document, said = call("trust", "--yes")
    assert (status, document["nodes"][0]["was"]) == (1, "changed")
    assert f"{known}:1" in said
    status, document, _ = call("trust", "--yes", "--replace")
    assert (status, document["nodes"][0]["trusted"]) == (0, True)
    assert known.read_text() == f"github.com ssh-ed25519 {other}\n{sshd.host_line}"
    assert known.stat().st_mode & 0o777 == 0o644


@pytest.mark.parametrize("known_too", [True, False])
def test_a_revoked_key_is_never_accepted(call, sshd, home, known_too):
    known = home / ".ssh/known_hosts"
    key = sshd.host_line.split(" ", 1)[1]
    known.write_text(f"@revoked * {key}" + (sshd.host_line if known_too else ""))
    before = known.read_text()
    status, document, said = call("trust", "--yes", "--replace")
    assert (status, document["nodes"][0]["was"]) == (1, "revoked")
    assert document["nodes"][0]["trusted"] is False
    assert "REVOKED" in said
    assert f"by {known}:1" in said
    assert "ssh-keygen -A" in said, "what to do"
    assert "trusted already" not in said
    assert "accept it?" not in said
    assert known.read_text() == before
    status, document, _ = call("ping")
    assert status == 3
    assert f"revoked by {known}:1" in document["nodes"][0]["error"]


def test_a_jump_host_is_accepted_first_and_the_node_through_it(call, sshd, second_sshd, home):
    known = home / ".ssh/known_hosts"
    jump = f"{ME}@127.0.0.1:{second_sshd.port}"
    status, document, said = call("trust", jump=jump)
    assert status == 1
    assert "jump host of spark1" in said
    assert document["jump_hosts"][0]["was"] == "new"
    assert "jump host" in document["nodes"][0]["error"]
    assert not known.exists()
    status, document, said = call("trust", "--yes", jump=jump)
    assert status == 0
    (hop,) = document["jump_hosts"]
    assert (hop["nodes"], hop["was"], hop["trusted"]) == (["spark1"], "new", True)
    assert hop["host"] == f"[127.0.0.1]:{second_sshd.port}"
    assert hop["fingerprint"] == second_sshd.fingerprint
    assert known.read_text() == second_sshd.host_line + sshd.host_line
    assert call("ping", jump=jump)[0] == 0
    assert call("trust", jump=jump)[0] == 0


def test_the_key_of_a_jump_host_goes_into_the_file_that_it_is_looked_up_in(
    call, sshd, second_sshd, home
):
    (home / ".ssh/config").write_text(
        f"Host hop\n  HostName 127.0.0.1\n  Port {second_sshd.port}\n"
        f"  UserKnownHostsFile {home}/hops\n"
    )
    status, document, said = call("trust", "--yes", jump=f"{ME}@hop")
    assert (status, document["nodes"][0]["trusted"]) == (0, True), said
    assert (home / "hops").read_text() == second_sshd.host_line
    assert (home / ".ssh/known_hosts").read_text() == sshd.host_line
    assert call("ping", jump=f"{ME}@hop")[0] == 0


def test_one_is_asked_for_a_jump_host_of_several_nodes_once(
    folder, sshd, second_sshd, home, monkeypatch
):
    (folder / "inventory.yaml").write_text(
        f"ssh: {{user: {ME}, identity_file: {sshd.key}, "
        f"jump: '{ME}@127.0.0.1:{second_sshd.port}'}}\n"
        "nodes:\n"
        f"  spark1: {{address: 127.0.0.1, port: {sshd.port}, roles: [head]}}\n"
        f"  spark2: {{address: 127.0.0.1, port: {second_sshd.port}}}\n"
    )
    done = invoke("trust", "--yes")
    assert done.exit_code == 0, done.output
    assert done.output.count("jump host of spark1, spark2") == 1
    assert (home / ".ssh/known_hosts").read_text() == second_sshd.host_line + sshd.host_line


def test_a_revoked_jump_host(call, second_sshd, home):
    known = home / ".ssh/known_hosts"
    known.write_text(f"@revoked * {second_sshd.host_line.split(' ', 1)[1]}")
    jump = f"{ME}@127.0.0.1:{second_sshd.port}"
    status, document, _ = call("trust", "--yes", "--replace", jump=jump)
    assert status == 1
    assert document["jump_hosts"][0]["was"] == "revoked"
    assert "revoked" in document["nodes"][0]["error"]


@each_case(__file__, "unusable_ssh_configs.json")
def test_a_configuration_that_cannot_be_used(call, home, case):
    """File and line where ssh gives them, and never a traceback."""
    (home / ".ssh/config").write_text(case["config"].replace("{HOME}", str(home)))
    status, document, said = call("trust", "--yes")
    assert status in (1, 2)
    assert case["where"] in said
    assert case["words"] in said
    assert case["words"] in document["nodes"][0]["error"]
    assert call("ping")[0] != 0


def test_a_program_of_the_configuration_that_hangs(call, home, monkeypatch):
    """It is ended with all that it started, and said."""
    from spark_cluster.runner import ssh_route

    monkeypatch.setattr(ssh_route, "LIMIT_S", 0.5)
    mark = home / "started"
    (home / ".ssh/config").write_text(f'Match exec "echo $$ >{mark}; sleep 1000 | cat"\n')
    status, document, _ = call("ping")
    assert status == 2
    assert "did not end within 0.5 s" in document["nodes"][0]["error"]
    if mark.exists():  # a busy machine may not have come so far
        ended(int(mark.read_text()))


def test_no_ssh_program_here(call, home, monkeypatch, sshd):
    """It reads ssh_config, and ssh-keygen next to it known_hosts: nothing is guessed at."""
    from spark_cluster.runner import ssh_route

    monkeypatch.setattr(ssh_route.shutil, "which", lambda name: None)
    (home / ".ssh/known_hosts").write_text(sshd.host_line)
    status, document, _ = call("ping")
    assert status == 1
    assert "no program `ssh`" in document["nodes"][0]["error"]

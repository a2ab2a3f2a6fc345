"""fabric over our own connections: what people know from it works, and hosts are verified."""

import getpass
import runpy
from types import SimpleNamespace

import fabric
import pytest
from factories import put

from spark_cluster import Cluster
from spark_cluster.config.facts import Facts
from spark_cluster.config.topology import Node
from spark_cluster.errors import Refused, Unreachable
from spark_cluster.runner.node_connection import LocalConnection

ME = getpass.getuser()
FABFILE = """\
from fabric import task

@task
def where(c, name="it"):
    return c.run(f"echo {name} is $SSH_CONNECTION", hide=True).stdout
"""


def test_each_time_it_connects_the_host_is_verified(ssh, sshd, second_sshd, trusted):
    connection = ssh().fabric(owned=True)
    connection.open()
    connection.close()
    trusted.write_text("")
    with pytest.raises(Unreachable, match="is not known"):
        connection.run("true")
    trusted.write_text(sshd.host_line)
    jumped = ssh(jump=f"{ME}@127.0.0.1:{second_sshd.port}").fabric(owned=True)
    with pytest.raises(Unreachable, match=r"host key of the jump host .* is not known"):
        jumped.run("true")
    trusted.write_text(sshd.host_line + second_sshd.host_line)
    assert jumped.run("echo through", hide=True).stdout == "through\n"


def test_a_connection_that_was_cut_is_made_again_with_its_jump_host(
    ssh, sshd, second_sshd, trusted
):
    """As fabric does it; the jump host's connection, which is open still, is not left behind."""
    trusted.write_text(sshd.host_line + second_sshd.host_line)
    jumped = ssh(jump=f"{ME}@127.0.0.1:{second_sshd.port}").fabric(owned=True)
    with jumped:
        assert jumped.run("echo once", hide=True).stdout == "once\n"
        before = jumped.gateway.transport
        jumped.transport.close()
        assert jumped.run("echo again", hide=True).stdout == "again\n"
        assert not before.is_active()
    assert not jumped.gateway.is_connected


def test_a_cut_connection_of_a_run_starts_no_command(ssh, trusted):
    """A run notices the end, and connects again by itself."""
    mine = ssh()
    mine.open().transport.close()
    with pytest.raises(Unreachable, match="SSH"):
        mine.start(["true"])


def test_a_connection_of_a_run_stays(ssh, trusted):
    """What a playbook closes is not the connection over which its agent is reached."""
    mine = ssh()
    with mine.fabric(owned=False) as connection:
        connection.run("true", hide=True)
        connection.sftp()
    assert mine.open().transport.is_active()
    assert connection.run("echo again", hide=True).stdout == "again\n"


def test_a_group_runs_the_tasks_of_a_fabfile(sshd, second_sshd, home, tmp_path):
    known = put(tmp_path / "known_hosts", sshd.host_line + second_sshd.host_line)
    nodes = "".join(
        f"  {name}: {{address: 127.0.0.1, roles: [{role}], user: {ME}, port: {one.port}, "
        f"identity_file: {sshd.key}, known_hosts: {known}}}\n"
        for name, role, one in (("spark1", "head", sshd), ("spark2", "worker", second_sshd))
    )
    put(tmp_path / "inventory.yaml", f"nodes:\n{nodes}")
    where = runpy.run_path(str(put(tmp_path / "fabfile.py", FABFILE)))["where"]
    with Cluster(project=tmp_path).group() as group:
        assert isinstance(group, fabric.Group)
        ports = [where(connection, "node").split()[-1] for connection in group]
        assert ports == [str(sshd.port), str(second_sshd.port)]
        assert {done.stdout for done in group.run("echo both", hide=True).values()} == {"both\n"}


def test_where_there_is_no_connection():
    with pytest.raises(Refused, match="only a node of a run"):
        assert Node("spark1", facts=Facts()).connection
    with pytest.raises(Refused, match="not reached over SSH"):
        LocalConnection("spark1", lambda: None).fabric(owned=False)
    node = Node("spark1", connect=lambda: SimpleNamespace(host="h"))
    assert node.connection.host == "h"

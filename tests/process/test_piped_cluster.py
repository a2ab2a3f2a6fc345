"""What keeps tests over piped nodes from this machine."""

from __future__ import annotations

from piped_cluster import PipedCluster


def test_a_program_that_a_node_lacks_is_not_this_machines(one_node: PipedCluster) -> None:
    session = one_node.play.session(one_node.play.head)
    assert session.run(["systemd-run", "reboot"]).status == 127

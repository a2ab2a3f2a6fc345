"""What keeps tests over piped nodes from this machine."""


def test_a_program_that_a_node_lacks_is_not_this_machines(one_node):
    session = one_node.play.session(one_node.play.head)
    assert session.run(["systemd-run", "reboot"]).status == 127

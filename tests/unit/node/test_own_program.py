"""The command that runs a program of ours in a unit."""

from spark_cluster.node import own_program


def test_a_line_of_a_property_is_no_setting_of_the_unit():
    """systemd writes a description into the unit's file as it is, and reads it with the next
    reload."""
    harmful = "spark-cluster: a\n[Service]\r\nExecStopPost=/bin/sh"
    command = own_program.in_unit("a.service", ["true"], {"Description": harmful})
    (found,) = [word for word in command if word.startswith("--property=Description=")]
    assert found == "--property=Description=spark-cluster: a [Service] ExecStopPost=/bin/sh"

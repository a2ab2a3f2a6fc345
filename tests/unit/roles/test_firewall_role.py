"""firewall: whom nobody locks out, and who reaches copies; the rest is in cases/firewall.json."""

from ipaddress import IPv4Interface

from role_samples import a_spark, one, together

from spark_cluster.config.facts import Interface

GUARD = {
    "state": "present",
    "peers": ("spark1", "spark2"),
    "ports": ((6379, 6379), (8265, 8265), (18301, 18309), (18400, 18899), (29501, 29501)),
}
SENDING = {"state": "copies", "peers": (), "ports": ((18960, 18967),)}


def pair(**facts):
    return together(a_spark(**facts), a_spark(1, **facts))


def rules(resources):
    """The table's own lines, without comments."""
    lines = [line.strip() for line in one(resources, "NftTable").chains.splitlines()]
    return [line for line in lines if line and not line.startswith("#")]


def test_the_firewall_comes_back_whatever_is_done_to_nftables(role):
    """Its service flushes all tables at start, stop and reload; systemd appends to these lists."""
    found = role("firewall", pair()[0], **GUARD)
    drop_in, read = one(found, "File", "/etc/systemd/system/nftables.service.d"), found[4]
    assert drop_in.path == "/etc/systemd/system/nftables.service.d/spark-cluster.conf"
    for when in ("ExecStartPost", "ExecReload", "ExecStopPost"):
        assert f"\n{when}=-/usr/sbin/nft -f {one(found, 'NftTable').file}\n" in drop_in.content
    assert (read.argv, read.when_changed) == (("systemctl", "daemon-reload"), (drop_in,))


def test_no_one_is_locked_out_of_ssh(role):
    """At any port; the usual one is in none of the ranges."""
    told = rules(role("firewall", pair(ssh_ports=(22, 18302, 40022))[0], **GUARD))
    assert told[-3] == "tcp dport { 18302, 40022 } accept"


def test_copies_lock_no_one_out_of_ssh_either_nor_of_the_endpoint(role):
    node = pair(ssh_ports=(22, 18960))[0]
    told = rules(role("firewall", node, **SENDING, endpoint_port=18961))
    assert told[-3] == "tcp dport { 18960, 18961 } accept"


def addresses(*found):
    """Interfaces of these addresses."""
    return tuple(
        Interface(f"eth{number}", "", 1500, True, (IPv4Interface(address),))
        for number, address in enumerate(found)
    )


def test_only_the_other_nodes_reach_the_ports_on_which_a_node_sends_copies(role):
    bridge = "172.17.0.1/16"  # Docker's: each node has it, and so it is no other node's
    others = addresses("10.89.0.12/24", "10.7.7.7/24", "127.0.0.1/8", bridge)
    own = addresses("10.89.0.11/24", bridge)
    head, _ = together(a_spark(interfaces=own), a_spark(1, interfaces=others))
    found = role("firewall", head, **SENDING)
    fabric, table = '{ "enp1s0f1np1", "enP2p1s0f1np1" }', one(found, "NftTable")
    assert (table.table, table.state) == ("spark_cluster_copies", "present")
    assert rules(found) == [
        "chain input {",
        "type filter hook input priority filter - 10; policy accept;",
        "meta l4proto != tcp accept",
        "tcp flags & (syn | ack) != syn accept",
        "tcp dport != { 18960-18967 } accept",
        f"iifname {fabric} ip saddr {{ 192.168.177.12, 192.168.178.12 }} accept",
        f"iifname != {fabric} ip saddr {{ 10.7.7.7, 10.89.0.12 }} accept",
        "counter drop",
        "}",
    ]

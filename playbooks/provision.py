"""Provision a fresh or drifted Spark until it is ready to serve. Run again, it changes nothing."""

from __future__ import annotations

from collections.abc import Mapping

from spark_cluster.engine.provisioning import (
    REBOOT,
    Provisioned,
    apply_until_settled,
    link_changed,
    read_applied,
    report,
    roles_of_link,
    update_firmware,
    verify_nodes,
)
from spark_cluster.runner.host_key_change import replace_shared_keys
from spark_cluster.runner.play import Play


def main(
    play: Play,
    *,
    allow_reboot: bool = False,
    allow_restart: bool = False,
    firmware: bool = False,
    bandwidth: bool = False,
    laptop_keys: Mapping[str, str] | None = None,
) -> Provisioned:
    """Provision every node of the play; a node that fails does not stop the others.

    Args:
        allow_reboot: reboot a node when something that was changed needs it.
        allow_restart: restart Docker for new settings although that ends the engine that serves.
        firmware: update firmware with fwupd.
        bandwidth: measure the link even when nothing of it was changed.
        laptop_keys: node to the public key that shall log in from now on.
    """
    done = Provisioned()
    keys = {"laptop_keys": dict(laptop_keys)} if laptop_keys else {}
    bootstrap = play.role("bootstrap", **keys)
    drivers = play.role("drivers", **({"allow_reboot": True} if allow_reboot else {}))
    containers = play.role("containers", **({"allow_restart": True} if allow_restart else {}))
    link = roles_of_link(play, "network", "ssh_mesh", "copies")
    roles = [bootstrap, drivers, *link, "memory", "power", containers, "caches"]
    with play.stage("apply"):
        selection = play.options.selection
        if selection.partial and not (firmware and selection.start_at):
            play.refuse_unknown(*roles, *([[REBOOT]] if firmware else []))
        replace_shared_keys(play, bootstrap, done.notes, done.failures)
        applied = apply_until_settled(play, roles, once=drivers)
        read_applied(play, applied, done)
    if firmware:
        with play.stage("firmware"):
            update_firmware(play, allow_reboot=allow_reboot)
    if not play.check:
        with play.stage("verify"):
            verify_nodes(play, done, measure=bandwidth or link_changed(applied))
    report(play, done)
    return done

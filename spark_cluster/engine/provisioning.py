"""The steps of `provision`: apply roles until they are settled, prove what holds, and report it.

Firmware is asked for and installed by fwupd.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from spark_cluster.config.facts import awaiting_reboot, load_pins
from spark_cluster.config.topology import Node
from spark_cluster.engine import link_check
from spark_cluster.errors import SparkClusterError, VerificationFailed
from spark_cluster.issues.entries import catalogue
from spark_cluster.node.replies import at, decoded, objects_of, text_of
from spark_cluster.resources import Command, File, Reboot
from spark_cluster.runner.play import Applied, Play, RoleCall

NEVER_FLASHED = re.compile("ConnectX|MT2910", re.IGNORECASE)
"""Devices whose firmware is not for us to update: DGX OS does, and others have bricked it."""


def devices(text: str) -> list[dict[str, Any]]:
    """Return the devices in fwupd's JSON; none when it is not what was expected."""
    found = objects_of(at(decoded(text), "Devices"))
    return [d for d in found if text_of(d.get("Name")) and text_of(d.get("DeviceId"))]


def updates(text: str) -> list[Command]:
    """Return the firmware that fwupd offers, one command a device; the ConnectX-7 is left out."""
    found = []
    for device in devices(text):
        releases = objects_of(device.get("Releases"))
        if not releases or NEVER_FLASHED.search(device["Name"]):
            continue
        old, new = device.get("Version", "?"), releases[0].get("Version", "?")
        options = ("--assume-yes", "--no-reboot-check", "--json")
        found.append(
            Command(
                f"firmware of {device['Name']}: {old} to {new}",
                ("fwupdmgr", "update", device["DeviceId"], *options),
                long=True,
                timeout_s=3600,
                also_ok=(2,),
            )
        )
    return found


REBOOT = Reboot("new firmware", required=False, timeout_s=1200)
"""What follows an update, which most firmware needs."""


def update_firmware(play: Play, *, allow_reboot: bool) -> None:
    """Install what fwupd offers, node by node; then reboot, which flashes most of it.

    Check mode uses what fwupd knows already: fetching its lists again would be a change.
    """
    for node in play.nodes:
        if "fwupd" not in node.facts.packages:
            play.note(
                "fwupd is not installed: its firmware was not checked", warning=True, node=node
            )
            continue
        session = play.session(node)
        if play.check:
            play.note("firmware updates are those of the last `fwupdmgr refresh` there", node=node)
        else:
            session.run(["fwupdmgr", "refresh", "--json"], timeout=300)  # fails when it is fresh
        wanted = updates(session.run(["fwupdmgr", "get-updates", "--json"], timeout=120).stdout)
        if not wanted:
            play.note("no firmware update is offered", node=node)
            continue
        if not play.check:
            play.note("do not unplug it until it is back: firmware is being written", node=node)
        marker = File("/run/reboot-required", content="*** System restart required ***\n")
        play.apply(node, [*wanted, marker, replace(REBOOT, allowed=allow_reboot)], fail_fast=False)


Roles = Sequence[str | RoleCall]

UNKNOWN_BEFORE = {
    "MachineId:": "its machine id is new; programs use it from the next boot on",
    "User:": "its login user is in the group docker now: every new login is in it, a shell that is "
    "open already joins with `newgrp docker`",
}
"""What is said of a changed resource, by the beginning of its id."""


@dataclass
class Provisioned:
    """The result of provisioning.

    Attributes:
        failures: node to what does not hold on it, although everything was put in place.
        notes: node to what its user should know.
        firmware: node to device to version, where fwupd is there.
        bandwidth: each interface of the link that was measured.
    """

    failures: dict[str, list[SparkClusterError]] = field(default_factory=lambda: defaultdict(list))
    notes: dict[str, list[str]] = field(default_factory=lambda: defaultdict(list))
    firmware: dict[str, dict[str, str]] = field(default_factory=dict)
    bandwidth: list[link_check.Bandwidth] = field(default_factory=list)


def roles_of_link(play: Play, network: str, mesh: str, copies: str) -> Roles:
    """Return the roles of what is between nodes; none when there is one only.

    Raises:
        Failed: a node's two ports lead to different nodes, so that there is no switch.
    """
    names = tuple(play.inventory.nodes)
    if len(names) < 2:
        return []
    joined = play.role(mesh, peers=names)
    link_check.must_be_switched(play.nodes, play.session)
    dark = [node for node in play.nodes if not node.links]
    if not (play.out and dark):
        return [network, joined, copies]
    for node in dark:
        play.note(
            f"no ConnectX-7 interface is up; {', '.join(play.out)} was not reached, and a Spark "
            "that is off takes the link down. The link was not set up: start it, then "
            "spark-cluster provision again",
            warning=True,
            node=node,
        )
    return [joined, copies]


def apply_until_settled(play: Play, roles: Roles, once: RoleCall) -> Applied:
    """Apply all roles; after a change once more, except one that would ask to reboot again.

    Some of it was decided by facts that are others then: a key that has just been made, a package
    that was installed, a driver that answers again.
    """
    applied = play.apply(play.nodes, *roles, fail_fast=False)
    if applied.changed and not play.check:
        play.refresh(play.nodes, fail_fast=False)
        play.apply(play.nodes, *[role for role in roles if role is not once], fail_fast=False)
        play.refresh(play.nodes, fail_fast=False)
    return applied


def read_applied(play: Play, applied: Applied, done: Provisioned) -> None:
    """Note what follows from changes, and the versions of the firmware."""
    for node, results in applied.results.items():
        ids = [] if play.check else applied.changes(node)
        for start, text in UNKNOWN_BEFORE.items():
            if any(i.startswith(start) for i in ids):
                done.notes[node].append(text)
        result = results.get("Command:firmware state")
        if result is not None and result.output:
            found = devices(result.output)
            done.firmware[node] = {d["Name"]: d.get("Version", "") for d in found}
    missing = [node.name for node in play.nodes if not node.facts.mesh_key]
    wanted = play.options.selection.wants_part(missing, "ssh_mesh")
    if play.check and missing and wanted and len(play.inventory.nodes) > 1:
        play.note(
            f"{', '.join(missing)} will get a key for SSH between the nodes; after it, each node "
            "gets the nodes' names in /etc/hosts, authorized_keys, known hosts and ssh_config"
        )


def link_changed(applied: Applied) -> bool:
    """Return whether addresses of the link were changed, so that it is to be measured."""
    changed = [i for node in applied.results for i in applied.changes(node)]
    return any(i.startswith("Netplan:") for i in changed)


def verify_nodes(play: Play, done: Provisioned, *, measure: bool) -> None:
    """Prove drivers and link, the link's bandwidth on request; note known-bad combinations."""
    hops = link_check.checked_hops(play.nodes)

    def verify(node: Node) -> list[SparkClusterError]:
        try:
            own = [hop for hop in hops if hop.source.name == node.name]
            return [*_drivers(play, node), *link_check.verify(own, {node.name: play.session(node)})]
        except SparkClusterError as error:
            return [error]

    found = play.on_each(play.nodes, verify)
    done.failures.update({name: failures for name, failures in found.items() if failures})
    if measure and not done.failures:
        _measure(play, hops, done)
    known = load_pins(play.project.load_role("drivers").path.parent / "pins.json")
    for node in play.nodes:
        for bad in known.running(node.facts):
            issue = catalogue()[bad.issue]
            text = f"{bad.found}: {issue.title}; {issue.fix_on(node.name)}"
            done.notes[node.name].append(text)


def _drivers(play: Play, node: Node) -> list[SparkClusterError]:
    """Return what does not hold: nvidia-smi answers, and what is pinned is what runs."""
    settings: Any = play.project.load_role("drivers").settings_for(play.inventory.nodes[node.name])
    remarks = awaiting_reboot(settings.pinned, node.facts)
    if node.facts.nvml_error:
        remarks.insert(0, f"nvidia-smi does not answer: {node.facts.nvml_error.splitlines()[0]}")
    return [VerificationFailed(text, where=node.name, hint=_in_force(text)) for text in remarks]


def _in_force(text: str) -> str:
    """Return what to do about something that is installed and does not run."""
    hint = "a reboot activates it: spark-cluster provision --allow-reboot"
    if not text.startswith("kernel"):
        return hint
    return (
        f"{hint}; if another one runs after it, the boot loader takes that: purge the newer "
        "linux-image package, or set GRUB_DEFAULT in /etc/default/grub and run update-grub"
    )


def _measure(play: Play, hops: Sequence[link_check.Hop], done: Provisioned) -> None:
    """Measure each interface once, in one direction; together they would share the port."""
    wanted = [
        hop
        for hop in hops
        if all("perftest" in n.facts.packages for n in (hop.source, hop.target))
        and hop.ours.hca
        and hop.source.index < hop.target.index
    ]
    without = [node.name for node in play.nodes if "perftest" not in node.facts.packages]
    if hops and without:
        names = ", ".join(without)
        play.note(f"the link was not measured: ib_write_bw (perftest) is not on {names}")
    rates = link_check.bandwidths(wanted, play.session)
    for hop, gbits in zip(wanted, rates, strict=True):
        if isinstance(gbits, SparkClusterError):
            done.failures[hop.source.name].append(gbits)
            continue
        result = link_check.Bandwidth(hop, gbits)
        done.bandwidth.append(result)
        if result.verdict != "good":
            done.notes[hop.source.name].append(link_check.slow(result))


def report(play: Play, done: Provisioned) -> None:
    """Show the notes and failures, and what was left undone for want of nodes (`--limit`)."""
    selection = play.options.selection
    between = {"network", "ssh_mesh"} - selection.skip_tags
    if selection.tags:
        between &= selection.tags
    here = [node.name for node in play.nodes]
    away = [name for name in play.inventory.nodes if name not in here and name not in play.out]
    for name in here if between and away else ():
        done.notes[name].append(
            f"without {', '.join(away)} in this run, SSH between the nodes and traffic over the "
            "link were not checked; spark-cluster provision for all nodes does that"
        )
    for node in play.nodes:
        failures = [f"{one.message}\n  {one.hint}" for one in done.failures.get(node.name, ())]
        for text in (*done.notes.get(node.name, ()), *failures):
            play.note(text, warning=True, node=node)

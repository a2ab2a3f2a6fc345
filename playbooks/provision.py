"""Provision a fresh or drifted Spark until it is ready to serve. Run again, it changes nothing."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from spark_cluster.cluster import host_key_change
from spark_cluster.engine import link_check
from spark_cluster.engine.link_cabling import must_be_switched
from spark_cluster.errors import SparkClusterError, VerificationFailed
from spark_cluster.facts import pins
from spark_cluster.resources import Command, File, Reboot, Resource
from spark_cluster.runner.play import Applied, Play, RoleCall
from spark_cluster.topology import Node

NEVER_FLASHED = re.compile("ConnectX|MT2910", re.IGNORECASE)
"""Devices whose firmware is not for us to update: DGX OS does, and others have bricked it."""

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
        bandwidth: each twin that was measured.
    """

    failures: dict[str, list[SparkClusterError]] = field(default_factory=dict)
    notes: dict[str, list[str]] = field(default_factory=dict)
    firmware: dict[str, dict[str, str]] = field(default_factory=dict)
    bandwidth: list[link_check.Bandwidth] = field(default_factory=list)


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
    bootstrap = play.role(
        "bootstrap", **({"laptop_keys": dict(laptop_keys)} if laptop_keys else {})
    )
    drivers = play.role("drivers", **({"allow_reboot": True} if allow_reboot else {}))
    containers = play.role("containers", **({"allow_restart": True} if allow_restart else {}))
    roles = [bootstrap, drivers, *_link(play), "memory", "power", containers, "caches"]
    with play.stage("apply"):
        if not play.check:
            for node in play.nodes:  # of a run that was cut
                host_key_change.forget_replaced(play.connections, node.name)
        if _shares_host_keys(play.nodes) and not play.check:
            _own_host_keys(play, bootstrap, done)
        applied = play.apply(play.nodes, *roles, fail_fast=False)
        _read(applied, done, changed=not play.check)
        if play.check:
            _preview_check_mode(play)
        if applied.changed and not play.check:
            play.refresh(play.nodes, fail_fast=False)
            # Some of it was decided by facts that are others now: a key that has just been made,
            # a package that is there now, a driver that answers again.
            again = [role for role in roles if role is not drivers]  # it would ask to reboot twice
            play.apply(play.nodes, *again, fail_fast=False)
            play.refresh(play.nodes, fail_fast=False)
    if firmware:
        with play.stage("firmware"):
            _update_firmware(play, allow_reboot=allow_reboot)
    if not play.check:
        with play.stage("verify"):
            _verify(play, done, measure=bandwidth or _link_changed(applied))
    _report_skipped(play, done)
    _print_notes(play, done)
    return done


def _link(play: Play) -> list[str | RoleCall]:
    """The roles of what is between nodes; none when there is one only."""
    names = tuple(play.inventory.nodes)
    if len(names) < 2:
        return []
    mesh = play.role("ssh_mesh", peers=names)
    must_be_switched(play.nodes, play.session)
    dark = [node for node in play.nodes if not node.links]
    if not (play.out and dark):
        return ["network", mesh, "copies"]
    for node in dark:
        play.note(
            f"no ConnectX-7 interface is up; {', '.join(play.out)} was not reached, and a Spark "
            "that is off takes the link down. The link was not set up: start it, then "
            "spark-cluster provision again",
            warning=True,
            node=node,
        )
    return [mesh, "copies"]


# -- host keys -------------------------------------------------------------------------------------


def _shares_host_keys(nodes: list[Node]) -> bool:
    keys = [key for node in nodes for key in set(node.facts.host_keys)]
    return len(keys) > len(set(keys))


def _own_host_keys(play: Play, bootstrap: RoleCall, done: Provisioned) -> None:
    """New host keys for the later node, which the laptop knows before they are in force.

    Whatever is cut in between, known_hosts has the key that the node shows: the new ones are
    written next to the old ones first, and the old ones go when a new one was seen.
    """
    ready = play.apply(play.nodes, play.role("bootstrap", prepare_host_keys=True), fail_fast=False)
    printed = {}
    for node in play.nodes:
        if node.name in ready.results:
            path, prints = host_key_change.announce(play.connections, node.name)
            printed.update({node.name: (path, prints)} if prints else {})
    play.apply(play.nodes, bootstrap, fail_fast=False)
    play.refresh(play.nodes, fail_fast=False)
    for node in play.nodes:
        if node.name not in printed:
            continue
        path, prints = printed[node.name]
        done.notes.setdefault(node.name, []).append(
            f"it has new SSH host keys ({', '.join(prints)}); they came over the connection that "
            f"was verified with the old one, and are in {path} now. Other machines that know the "
            "node will report a changed key"
        )
        _forget_old_host_keys(play, node, done)


def _forget_old_host_keys(play: Play, node: Node, done: Provisioned) -> None:
    try:
        seen = host_key_change.verify(play.connections, node.name)
    except SparkClusterError as error:
        done.failures.setdefault(node.name, []).append(error)
        return
    if not seen:
        done.notes.setdefault(node.name, []).append(
            "its sshd still shows the old host key: `systemctl reload ssh` there; both are in "
            "known_hosts until the next run"
        )


def _preview_check_mode(play: Play) -> None:
    """Say what check mode cannot know: it hangs on keys that are not made yet."""
    lacking = [node.name for node in play.nodes if not node.facts.mesh_key]
    if lacking and len(play.inventory.nodes) > 1:
        play.note(
            f"{', '.join(lacking)} will get a key for SSH between the nodes; with it follow the "
            "nodes' names in /etc/hosts, authorized_keys, known hosts and ssh_config on each"
        )


# -- firmware --------------------------------------------------------------------------------------


def _read(applied: Applied, done: Provisioned, *, changed: bool) -> None:
    """Notes on what was changed, and the firmware's versions."""
    for node, results in applied.results.items():
        ids = applied.changes(node) if changed else []
        remarks = [
            text for start, text in UNKNOWN_BEFORE.items() if any(i.startswith(start) for i in ids)
        ]
        if remarks:
            done.notes.setdefault(node, []).extend(remarks)
        result = results.get("Command:firmware state")
        if result is not None and result.output:
            done.firmware[node] = {d["Name"]: d.get("Version", "") for d in devices(result.output)}


def devices(text: str) -> list[dict[str, Any]]:
    """The devices in fwupd's JSON; none when it is not what was expected."""
    try:
        found = json.loads(text).get("Devices", [])
    except (ValueError, AttributeError):
        return []
    return [d for d in found if isinstance(d, dict) and d.get("Name") and d.get("DeviceId")]


def updates(text: str) -> list[Command]:
    """The firmware that fwupd offers, one command a device; the ConnectX-7 is left out."""
    found = []
    for device in devices(text):
        releases = device.get("Releases") or []
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


def _update_firmware(play: Play, *, allow_reboot: bool) -> None:
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
        wanted: list[Resource] = list(
            updates(session.run(["fwupdmgr", "get-updates", "--json"], timeout=120).stdout)
        )
        if not wanted:
            play.note("no firmware update is offered", node=node)
            continue
        if not play.check:
            play.note("do not unplug it until it is back: firmware is being written", node=node)
        marker = File("/run/reboot-required", content="*** System restart required ***\n")
        reboot = Reboot("new firmware", allowed=allow_reboot, required=False, timeout_s=1200)
        play.apply(node, [*wanted, marker, reboot], fail_fast=False)


# -- proof -----------------------------------------------------------------------------------------


def _link_changed(applied: Applied) -> bool:
    changed = [i for node in applied.results for i in applied.changes(node)]
    return any(i.startswith("Netplan:") for i in changed)


def _verify(play: Play, done: Provisioned, *, measure: bool) -> None:
    found = link_check.checked_hops(play.nodes)

    def verify_login(node: Node) -> list[SparkClusterError]:
        try:
            own = [hop for hop in found if hop.source.name == node.name]
            return [*_drivers(play, node), *link_check.verify(own, {node.name: play.session(node)})]
        except SparkClusterError as error:
            return [error]

    outcomes = play.on_each(play.nodes, verify_login)
    done.failures.update({name: failures for name, failures in outcomes.items() if failures})
    if measure and not done.failures:
        _measure(play, found, done)
    known = pins.load(play.project.load_role("drivers").path.parent / "pins.json")
    for node in play.nodes:
        for bad in known.running(node.facts):
            done.notes.setdefault(node.name, []).append(_explained(bad, node.name))


def _explained(bad: pins.Bad, node: str) -> str:
    """A known-bad combination with its known issue's fix."""
    from spark_cluster.known_issues.entries import catalogue

    issue = catalogue()[bad.issue]
    return f"{bad.found}: {issue.title}; {issue.fix_on(node)}"


def _drivers(play: Play, node: Node) -> list[SparkClusterError]:
    """nvidia-smi answers, and what is pinned is what runs."""
    settings: Any = play.project.load_role("drivers").settings_for(play.inventory.nodes[node.name])
    remarks = pins.waiting(settings.pinned, node.facts)
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


def _measure(play: Play, found: Iterable[link_check.Hop], done: Provisioned) -> None:
    """Each twin once, in one direction, and one of a node at a time: together they share the port.

    Of nodes on a switch each is measured to the next; no pair waits for another one.
    """
    wanted = [
        hop
        for hop in found
        if all("perftest" in n.facts.packages for n in (hop.source, hop.target))
        and hop.ours.hca
        and hop.source.index < hop.target.index
    ]

    def measured(hop: link_check.Hop) -> float:
        return link_check.measure(play.session(hop.target), play.session(hop.source), hop)

    for hop, gbits in zip(wanted, link_check.in_rounds(wanted, measured), strict=True):
        if isinstance(gbits, SparkClusterError):
            done.failures.setdefault(hop.source.name, []).append(gbits)
            continue
        result = link_check.Bandwidth(hop, gbits)
        done.bandwidth.append(result)
        if result.verdict != "good":
            done.notes.setdefault(hop.source.name, []).append(slow(result))


def slow(result: link_check.Bandwidth) -> str:
    """Return what a low bandwidth means."""
    from spark_cluster.known_issues.entries import catalogue

    text = (
        f"{result.gbits:.1f} Gb/s from {result.hop}; {link_check.GOOD_GBITS:g} or more are expected"
    )
    known = "link-at-13-gbps" if result.verdict == "degraded" else "rdma-below-rate"
    issue = catalogue()[known]
    nodes = f"{result.hop.source.name},{result.hop.target.name}"
    return f"{text}. {issue.cause}: {issue.fix_on(nodes)}"


def _report_skipped(play: Play, done: Provisioned) -> None:
    """Say what was left undone for want of nodes that `--limit` leaves out."""
    selection = play.options.selection
    between = {"network", "ssh_mesh"} - selection.skip_tags
    if selection.tags:
        between &= selection.tags
    here = [node.name for node in play.nodes]
    away = [name for name in play.inventory.nodes if name not in here and name not in play.out]
    if not (between and away):
        return
    for name in here:
        done.notes.setdefault(name, []).append(
            f"without {', '.join(away)} in this run, SSH between the nodes and traffic over the "
            "link were not checked; spark-cluster provision for all nodes does that"
        )


def _print_notes(play: Play, done: Provisioned) -> None:
    for node in play.nodes:
        for text in done.notes.get(node.name, []):
            play.note(text, warning=True, node=node)
        for failure in done.failures.get(node.name, []):
            play.note(f"{failure.message}\n  {failure.hint}", warning=True, node=node)

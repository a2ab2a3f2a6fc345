"""Firmware of a node by fwupd: what is offered, and its installation."""

from __future__ import annotations

import json
import re
from typing import Any

from spark_cluster.resources import Command, File, Reboot
from spark_cluster.runner.play import Play

NEVER_FLASHED = re.compile("ConnectX|MT2910", re.IGNORECASE)
"""Devices whose firmware is not for us to update: DGX OS does, and others have bricked it."""


def devices(text: str) -> list[dict[str, Any]]:
    """Return the devices in fwupd's JSON; none when it is not what was expected."""
    try:
        found = json.loads(text).get("Devices", [])
    except (ValueError, AttributeError):
        return []
    return [d for d in found if isinstance(d, dict) and d.get("Name") and d.get("DeviceId")]


def updates(text: str) -> list[Command]:
    """Return the firmware that fwupd offers, one command a device; the ConnectX-7 is left out."""
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
        reboot = Reboot("new firmware", allowed=allow_reboot, required=False, timeout_s=1200)
        play.apply(node, [*wanted, marker, reboot], fail_fast=False)

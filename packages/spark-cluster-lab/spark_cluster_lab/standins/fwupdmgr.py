"""fwupdmgr: get-devices, get-history, get-updates, update and refresh, of a Spark."""

from __future__ import annotations

import json
from hashlib import sha1
from typing import Any

from .state import load, save

VERSIONS = {
    "Embedded Controller": "0x03000302",
    "UEFI Device Firmware": "0x0200980f",
    "USB-PD": "0x00000516",
}
SUCCESS, FAILED = 2, 3
NOTHING = 2
"""Exit status when there is nothing to tell or to do."""


def devices(state: dict[str, Any]) -> list[dict[str, Any]]:
    """Every device with firmware that it knows."""
    versions = VERSIONS | {"MT2910 Family (ConnectX-7)": state["firmware"]}
    versions |= state["firmware_versions"]
    return [
        {"Name": name, "DeviceId": identifier(name), "Version": version, "Vendor": "NVIDIA"}
        for name, version in versions.items()
    ]


def identifier(name: str) -> str:
    return sha1(name.encode(), usedforsecurity=False).hexdigest()


def history(state: dict[str, Any]) -> list[dict[str, Any]]:
    """Updates that were tried; none unless a test says how the last one failed."""
    if not state["firmware_update_error"]:
        return []
    device = next(d for d in devices(state) if d["Name"] == "USB-PD")
    return [device | {"UpdateState": FAILED, "UpdateError": state["firmware_update_error"]}]


def offered(state: dict[str, Any]) -> list[dict[str, Any]]:
    """Devices for which there is something newer; none unless a test says so."""
    offers = state["firmware_offers"]
    return [
        device | {"Releases": [{"Version": offers[device["Name"]]}]}
        for device in devices(state)
        if device["Name"] in offers
    ]


def update(state: dict[str, Any], words: list[str], as_json: bool) -> int:
    """Flash what is offered, for one device or for all."""
    wanted = [d for d in offered(state) if not words or d["DeviceId"] in words]
    if not wanted:
        return tell([], "No updatable devices", as_json)
    new = {d["Name"]: d["Releases"][0]["Version"] for d in wanted}
    left = {n: v for n, v in state["firmware_offers"].items() if n not in new}
    save({"firmware_versions": state["firmware_versions"] | new, "firmware_offers": left})
    print("{}" if as_json else "Successfully installed firmware")
    return 0


def tell(found: list[dict[str, Any]], nothing: str, as_json: bool) -> int:
    """Print devices, or that there are none."""
    if not found:
        error = {"Error": {"Domain": "FwupdError", "Code": 8, "Message": nothing}}
        print(json.dumps(error, indent=2) if as_json else nothing)
        return NOTHING
    if as_json:
        print(json.dumps({"Devices": found}, indent=2))
        return 0
    for device in found:
        print(f"{device['Name']}:")
        print(f"  Device ID:          {device['DeviceId']}")
        print(f"  Current version:    {device['Version']}")
        if device.get("UpdateState") == FAILED:
            print("  Update State:       Failed")
            print(f"  Update Error:       {device['UpdateError']}")
    return 0


def main(argv: list[str]) -> int:
    state, as_json = load(), "--json" in argv
    command, *words = [word for word in argv if not word.startswith("-")] or [""]
    if command == "get-devices":
        return tell(devices(state), "No detected devices", as_json)
    if command == "get-history":
        return tell(history(state), "No history", as_json)
    if command in ("get-updates", "get-upgrades"):
        return tell(offered(state), "No updatable devices", as_json)
    if command in ("update", "upgrade"):
        return update(state, words, as_json)
    if command == "refresh":
        print("Metadata is up to date; use --force to refresh again.")
        return NOTHING
    print(f"Command not found: {command}" if command else "usage: fwupdmgr COMMAND")
    return 1

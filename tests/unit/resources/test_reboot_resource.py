"""Reboot, on the node's side: pending or not, allowed or not, and the rest of the document."""

import pytest

from spark_cluster.agent.apply import DocumentRun
from spark_cluster.node.values import BOOT_ID
from spark_cluster.resources import File, Reboot

REQUIRED = "/run/reboot-required"


@pytest.fixture
def booted(node):
    """A node that can be booted again: `boot("2")`."""

    def boot(name):
        node.put(BOOT_ID, f"boot-{name}\n")
        node.path(REQUIRED).unlink(missing_ok=True)
        return node

    node.boot = boot
    return boot("1")


def run(node, *resources, rebooted=None, **options):
    """(verdicts by id, the reply)."""
    events = []
    document = DocumentRun(resources, node.host(**options), events.append, rebooted=rebooted)
    reply = document.apply()
    return {e["id"]: e["verdict"] for e in events if e["event"] == "result"}, reply


@pytest.mark.parametrize("path", [REQUIRED, "/var/lib/fwupd/pending"])
def test_the_document_stops_for_the_laptop_and_goes_on_after_it(booted, path):
    reboot = Reboot("new kernel", pending_when=("/var/lib/fwupd/pending",), allowed=True)
    rest = (reboot, File("/after", content="x"))
    booted.put(path)
    verdicts, reply = run(booted, File("/before", content="x"), *rest)
    assert verdicts == {"File:/before": "change"}
    told = reply["reboot"]
    assert (told["at"], told["id"], told["boot_id"]) == (1, reboot.id, "boot-1")
    assert told["changes"] == {"asked_for_by": [[path], []]}
    booted.path(path).unlink()
    verdicts, reply = run(booted.boot("2"), *rest, rebooted=told)
    assert verdicts == {reboot.id: "change", "File:/after": "change"}
    assert reply == {"ok": True}
    assert run(booted, *rest)[0] == {reboot.id: "ok", "File:/after": "ok"}


def test_a_reboot_that_was_none_and_one_that_did_not_help(booted):
    reboot = Reboot("new kernel", allowed=True)
    booted.put(REQUIRED)
    told = run(booted, reboot)[1]["reboot"]
    events = []
    DocumentRun([reboot], booted.host(), events.append, rebooted=told).apply()
    assert "should have been rebooted, and was not" in events[-1]["error"]
    booted.boot("2").put(REQUIRED)
    DocumentRun([reboot], booted.host(), events.append, rebooted=told).apply()
    assert f"another one is still requested, by {REQUIRED}" in events[-1]["error"]


def test_a_trigger_asks_for_it_until_the_node_has_booted(booted):
    grub = File("/grub", content="kho=off")
    reboot = Reboot("kernel command line", when_changed=(grub,), allowed=True)
    checked = booted.results(grub, reboot, check=True)
    assert [r.verdict for r in checked] == ["change", "change"]
    assert checked[1].reason == "would reboot: a change of File:/grub"
    told = run(booted, grub, reboot)[1]["reboot"]
    assert told["changes"] == {"restart": ["pending", "none"]}
    # The laptop was switched off, and the node is in the same boot: it is still owed.
    assert "reboot" in run(booted, grub, reboot)[1]
    # Somebody has rebooted it.
    assert run(booted.boot("2"), grub, reboot)[0] == {grub.id: "ok", reboot.id: "ok"}

"""What a change did, in words; and what belongs together in one line."""

from __future__ import annotations

import io

import pytest

from spark_cluster.cli.changes import summary
from spark_cluster.cli.display import Display
from spark_cluster.cli.terminal import Console
from spark_cluster.runner.events import Result, RunFinished, RunStarted

PENDING = {"restart": ["pending", None]}
STOPPED = {"state": ["running", "absent"]}


@pytest.mark.parametrize(
    ("resource", "changes", "said"),
    [
        ("Service:docker", PENDING, "restarted"),
        ("Service:x", {"running": [False, True], "enabled": [False, True], **PENDING},
         "started, enabled"),
        ("Service:x", {"running": [True, False], "enabled": [True, False]}, "stopped, disabled"),
        ("Service:x", {"unit_file": ["changed since", "as loaded"]}, "systemd reloaded"),
        ("Command:read nftables.service's drop-in", {"done": [False, True], **PENDING}, "done"),
        ("Container:v", STOPPED | {"secrets": ["others", "none"]},
         "stopped and removed, with its secrets"),
        ("Container:v", {"state": ["exited", "absent"]}, "removed"),
        ("Container:v", {"secrets": ["others", "none"]}, "its secrets removed"),
        ("Container:v", {"state": ["absent", "running"], "spec": [None, "a"]}, "new"),
        ("Container:v", {"spec": ["a", "b"], "image": ["another", "current"]},
         "made again: new settings, new image"),
        ("Unit:v", {"state": ["activating (auto-restart)", "running"]},
         "made again: was activating (auto-restart)"),
        ("NftTable:t", {"file": ["7c37450be777", "absent"], "in_force": ["yes", "no"]},
         "removed, lifted"),
        ("NftTable:t", {"file": ["absent", "8a034cb83991"], "in_force": ["no", "yes"]},
         "new, in force"),
        ("File:/f", {"kind": ["file", "absent"]}, "removed"),
        ("File:/f", {"sha256": ["a", "b"], "mode": ["0600", "0644"]},
         "new content, mode 0600 → 0644"),
        ("Package:vim", {"vim": ["absent", "present"]}, "vim installed"),
        ("Netplan:/n", {"addresses": [{}, {"a": "10.0.0.1/24"}], "mtu": [{"a": 1}, {"a": 9}]},
         "addresses a 10.0.0.1/24 added, mtu a 1 → 9"),
        ("Line:/f", {"line": [None, "# a"]}, "# a added"),
        ("Own:x", {"on": [True, False]}, "on yes → no"),
    ],
)  # fmt: skip
def test_words(resource, changes, said):
    assert summary(resource, changes) == said


def shown(*events, verbose=False):
    out = io.StringIO()
    display = Display(lambda: Console(file=out, width=200), verbose=verbose, titled=False)
    for event in (RunStarted("r1", "up", ("spark1", "spark2")), *events, RunFinished(True, 1.0)):
        display.take(event)
    display.close()
    return [line.strip() for line in out.getvalue().splitlines()]


def new(path, node="spark1", kind="File", **more):
    changes = {"kind": ["absent", "file"]}
    return Result(node, "model", f"{kind}:{path}", "change", changes=changes, **more)


MODEL = [new(f"/srv/m/{name}", seconds=0.5) for name in "abcdefg"]
OTHER = new("/srv/m/a", node="spark2")


def test_what_belongs_together_is_one_line():
    assert shown(*MODEL[:3], OTHER, *MODEL[3:]) == [
        "spark1  changed 7 files in /srv/m  new  3.5 s",
        "spark2  changed File:/srv/m/a  new",
    ]


def test_each_of_them_is_told_when_asked_for():
    assert len(shown(*MODEL, verbose=True)) == 7
    assert len(shown(*(new(f"/{n}", diff="+x") for n in range(9)))) == 18


@pytest.mark.parametrize("other", [
    new("/srv/x", kind="Directory"), new("relative"), new("/x", reason="it is another's"),
])  # fmt: skip
def test_what_does_not_belong_to_them_has_its_own_line(other):
    lines = shown(*MODEL[:5], other, *MODEL[5:])
    assert [line.split()[2] for line in lines] == ["5", other.resource, *(
        one.resource for one in MODEL[5:])]  # fmt: skip


def test_a_few_are_told_one_by_one():
    assert len(shown(*MODEL[:3])) == 3

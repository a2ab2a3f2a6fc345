"""What a change did, in words; and what belongs together in one line."""

import io

import pytest
from cases import cases

from spark_cluster.cli.changes import summary
from spark_cluster.cli.display import Display
from spark_cluster.cli.terminal import Console
from spark_cluster.runner.events import Result, RunFinished, RunStarted

CASES = cases(__file__, "changes.json")


@pytest.mark.parametrize(("resource", "changes", "said"), CASES["words"])
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


def test_each_of_a_few_is_told_and_of_all_when_asked_for():
    assert len(shown(*MODEL[:3])) == 3
    assert len(shown(*MODEL, verbose=True)) == 7
    assert len(shown(*(new(f"/{n}", diff="+x") for n in range(9)))) == 18


@pytest.mark.parametrize("other", [
    new("/srv/x", kind="Directory"), new("relative"), new("/x", reason="it is another's"),
])  # fmt: skip
def test_what_does_not_belong_to_them_has_its_own_line(other):
    lines = shown(*MODEL[:5], other, *MODEL[5:])
    assert [line.split()[2] for line in lines] == ["5", other.resource, *(
        one.resource for one in MODEL[5:])]  # fmt: skip

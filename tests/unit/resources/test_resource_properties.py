"""Properties that hold for any value: encoding for the wire, and Line."""

import dataclasses
import json
import string
import tempfile
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from resource_samples import public_key

from docs.generate import docstring
from spark_cluster import resources
from spark_cluster.node.host import Host
from spark_cluster.node.values import Blob, Secret
from spark_cluster.resources import Directory, File, Netplan, Resource, Unit, base

names = st.text(string.ascii_lowercase, min_size=2, max_size=8)
paths = st.lists(names, min_size=2, max_size=4).map(lambda parts: "/" + "/".join(parts))
text = st.text(st.characters(exclude_categories=["Cs"]), max_size=40)
words = st.lists(text, max_size=4).map(tuple)
maybe = st.booleans()
mappings = st.dictionaries(names, text, max_size=3)
contents = st.one_of(text, text.map(Secret), st.binary(max_size=40), st.just(Blob("a" * 64, 7)))

ANY = {
    "File": st.builds(
        File, path=paths, content=contents, mode=st.sampled_from([0o600, 0o4755]), tags=words
    ),
    "Command": st.builds(
        resources.Command,
        title=text,
        argv=st.lists(text, min_size=1).map(tuple),
        env=st.dictionaries(names, st.one_of(text, text.map(Secret))),
        stdin=st.one_of(text, st.text("abc", min_size=1).map(Secret), st.binary()),
        also_ok=st.lists(st.integers(0, 255)).map(tuple),
        long=maybe,
        retries=st.none() | st.tuples(st.integers(1, 20), names),
        when_changed=st.lists(st.one_of(paths, paths.map(Directory))).map(tuple),
    ),
    "JsonKeys": st.builds(
        resources.JsonKeys,
        path=paths,
        keys=st.dictionaries(names, st.one_of(text, mappings, maybe), min_size=1, max_size=3),
    ),
    "Container": st.builds(
        resources.Container,
        container=names,
        image=names,
        command=st.lists(text.filter(lambda t: "\0" not in t)).map(tuple),
        env=st.dictionaries(names, text.filter(lambda t: "\0" not in t), max_size=3),
        secret_files=st.dictionaries(paths, text.map(Secret), max_size=2),
        ulimits=st.dictionaries(names, st.one_of(st.integers(-1, 99), names)),
        init=maybe,
    ),
    "AuthorizedKey": st.just(resources.AuthorizedKey("me", public_key())),
    "Image": st.builds(resources.Image, ref=names, archive=st.none() | paths),
    "Netplan": st.just(
        Netplan("/etc/netplan/a.yaml", content="x", addresses={"eth0": "10.0.0.1/24"}, mtu=9000)
    ),
    "Reboot": st.just(resources.Reboot("kernel", when_changed=(Directory("/a/b"),))),
    "Service": st.just(resources.Service("ab", restart_when=(Directory("/a/b"),))),
    "Unit": st.just(Unit("ab", ("c",), secret_files={"/k": Secret("x")}, limits={"MEMLOCK": "1"})),
}
"""What is tried of a kind; one that is not here is tried as its docstring gives it."""


def kinds() -> list[str]:
    modules = Path(*resources.__path__).glob("*.py")
    names = {base.class_name(path.stem) for path in modules}
    return sorted({name for name in names if base.resource_class(name)} - {"Program"})


def documented(kind: str) -> st.SearchStrategy[Resource]:
    """Return the resource of the example in the docstring of its class."""
    example = docstring.parse(base.resource_class(kind)).example
    return st.just(eval(example, vars(resources) | {kind: base.resource_class(kind)}))


def by_id(resource: Resource) -> Resource:
    """With other resources named by their ids, as they are after the wire."""
    return dataclasses.replace(
        resource,
        **{
            f.name: base.ids(getattr(resource, f.name))
            for f in dataclasses.fields(resource)
            if f.name in ("when_changed", "restart_when")
        },
    )


def test_every_resource_can_be_imported_by_a_playbook():
    everything: dict[str, object] = {}
    exec("from spark_cluster.resources import *", everything)
    assert {*kinds()} < set(everything)
    assert set(ANY) < {*kinds()}


@pytest.mark.parametrize("kind", kinds())
def test_wire_round_trip(kind):
    @given(ANY[kind] if kind in ANY else documented(kind))
    @settings(max_examples=settings.default.max_examples // 5)
    def check(resource):
        back = base.from_wire(json.loads(json.dumps(base.to_wire(resource))))
        assert back == by_id(resource)
        assert back.id == resource.id
        assert back.triggers() == resource.triggers()
        assert back.provides() == resource.provides()
        assert back.desired() == resource.desired()
        assert base.differences(resource.desired(), back.desired()) == {}
        json.dumps(resource.desired())
        for item in dataclasses.fields(resource):
            assert type(getattr(back, item.name)) is type(getattr(by_id(resource), item.name))

    check()


@given(st.text(min_size=1, max_size=20).map(Secret))
def test_secrets_stay_secrets(secret):
    file = base.from_wire(base.to_wire(File("/a/b", content=secret)))
    assert isinstance(file.content, Secret)
    assert repr(file) == repr(File("/a/b", content=Secret("other")))
    container = resources.Container("ab", "cd", secret_files={"/k": secret})
    assert isinstance(base.from_wire(base.to_wire(container)).secret_files["/k"], Secret)


raw = st.binary(max_size=60).map(lambda b: b.replace(b"\0", b"\n"))
wanted = st.text("ab= ", min_size=1, max_size=6)


@given(raw, wanted, st.sampled_from([None, "^a", "b"]), st.sampled_from(["present", "absent"]))
def test_line_is_idempotent_and_keeps_the_others(before, line, match, state):
    try:
        resource = resources.Line("/f", line=line, match=match, state=state)
    except resources.InvalidResource:
        return
    with tempfile.TemporaryDirectory() as folder:
        host = Host(root=Path(folder))
        file = host.path("/f")
        file.write_bytes(before)
        if not base.differences(resource.observe(host), resource.desired()):
            return
        resource.converge(host, resource.observe(host))
        after = file.read_bytes()
        assert not base.differences(resource.observe(host), resource.desired())
        resource.converge(host, resource.observe(host))
        assert file.read_bytes() == after

    def others(data):
        content = data.decode(errors="surrogateescape")
        lines = content.removesuffix("\n").split("\n") if content else []
        return [text for text in lines if not resource._matches(text)]

    assert others(after) == others(before)

"""Which node has the image first, who gets it from there, and what is refused."""

from __future__ import annotations

import json
from dataclasses import replace
from functools import partial
from ipaddress import IPv4Interface
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from factories import make_inventory, make_node, make_recipe

from spark_cluster.errors import Failed, Refused
from spark_cluster.node.store.manifest import Manifest
from spark_cluster.runner.options import Selection
from spark_cluster.runner.play import Play
from spark_cluster.topology import Link, Node
from spark_cluster.transfer import images as module
from spark_cluster.transfer.copy import Copied
from spark_cluster.transfer.images import ImageOnNode

REF, PIN = "repo/image:1", f"sha256:{'d' * 64}"
FILES = [
    {"path": path, "size": 1, "blob": str(n) * 64, "algorithm": "sha256"}
    for n, path in enumerate(("a", "b", "manifest.json"), 1)
]


def image(letter: str = "1", *digests: str, layers: tuple[str, ...] = ("la", "lb")) -> ImageOnNode:
    return ImageOnNode(f"sha256:{letter * 64}", frozenset(digests), layers, 5_000_000_000)


VERBOSE = json.dumps(
    [
        {"Descriptor": {"digest": f"sha256:{'9' * 64}", "platform": {"architecture": "arm64"}},
         "OCIManifest": {"config": {"digest": f"sha256:{'1' * 64}"}}},
        {"Descriptor": {"digest": f"sha256:{'8' * 64}"},
         "SchemaV2Manifest": {"config": {"digest": f"sha256:{'7' * 64}"}}},
    ]
)  # fmt: skip
"""What `docker manifest inspect --verbose` prints of an index with two platforms."""


def spark(number: int, *, fabric: bool) -> Node:
    """A node, with its address on the link where there is one."""
    address = f"192.168.177.{10 + number}/24"
    own = (f"10.0.0.{number}/24", *([address] if fabric else []))
    node = make_node(f"spark{number}", head=number == 1, address=f"10.0.0.{number}", own=own)
    return replace(node, links=(Link("eth0", IPv4Interface(address)),) if fabric else ())


class Cluster:
    """Two nodes; roles that are applied give the image, and what agents are asked is noted."""

    check = False

    def __init__(self, folder: Path, settings: str = "", *, fabric: bool = True) -> None:
        self.nodes = [spark(1, fabric=fabric), spark(2, fabric=fabric)]
        hosts = "spark1: {address: 10.0.0.1, roles: [head]}, spark2: {address: 10.0.0.2}"
        text = f"nodes: {{{hosts}}}\n" + (f"settings: {{images: {settings}}}\n" if settings else "")
        self.inventory = make_inventory(folder, text)
        self.options = SimpleNamespace(selection=Selection())
        self.docker: dict[str, ImageOnNode | None] = {"spark1": None, "spark2": None}
        self.pulled: dict[str, ImageOnNode] = {"spark1": image("1", PIN), "spark2": image("1", PIN)}
        self.done: list[str] = []
        self.common = 0
        self.source = ""
        self.containerd: set[str] = set()
        self.left: set[str] = set()
        self.changed = False
        self.registry = {"status": 0, "stdout": VERBOSE}

    def role(self, name: str, **given: Any) -> Any:
        assert name == "images"
        return given

    def apply(self, nodes: Any, given: Any) -> Any:
        for node in nodes if isinstance(nodes, list) else [nodes]:
            known = self.docker[node.name]
            wanted = given.get("digest")
            if known is None or (wanted and not known.has(wanted)):
                self.done.append(f"pull {node.name}")
                self.docker[node.name] = self.pulled[node.name]
        return SimpleNamespace(changed=self.changed)

    def note(self, text: str, **_how: Any) -> None:
        self.done.append(text)

    def together(self, *jobs: Any) -> list[Any]:
        return Play.together(self, *jobs)  # type: ignore[arg-type]

    def on_each(self, nodes: Any, job: Any) -> Any:
        return Play.on_each(self, nodes, job)  # type: ignore[arg-type]

    def session(self, node: Any) -> Any:
        def answer(what: str, **given: Any) -> dict[str, Any]:
            if what == "state":
                known = self.docker[node.name]
                about = known and {
                    "id": known.id,
                    "digests": [f"repo/image@{one}" for one in known.digests],
                    "layers": list(known.layers),
                    "size": known.size,
                    "left": node.name in self.left,
                }
                return {"image": about}
            self.done.append(f"{what} {node.name}")
            if what in {"export", "load"}:
                self.left.add(node.name)
            elif what == "clean":
                self.left.remove(node.name)
            if what == "common":
                return {"count": self.common, "containerd": node.name in self.containerd}
            if what == "export":
                document = {k: given[k] for k in ("repository", "commit")} | {"files": FILES}
                return {"manifest": document, "layers": ["a", "b"]}
            if what == "load":
                self.docker[node.name] = self.docker[self.source]
                self.loaded = [one["path"] for one in given["manifest"]["files"]]
            return {}

        return SimpleNamespace(
            submit=lambda _op, **given: SimpleNamespace(wait=lambda: answer(**given)),
            request=lambda _op, _on_event=None, **given: answer(**_without(given)),
            run=lambda argv, **_how: self._docker(node, argv),
        )

    def _docker(self, node: Any, argv: list[str]) -> Any:
        assert argv == ["docker", "manifest", "inspect", "--verbose", f"repo/image@{PIN}"]
        self.done.append(f"registry {node.name}")
        return SimpleNamespace(**{"stderr": "no basic auth credentials\n", **self.registry})

    def bring(self, **given: Any) -> None:
        before = module.images_on(self, self.nodes, REF)  # type: ignore[arg-type]
        module.bring(self, self.nodes, {"ref": REF, **given}, before)  # type: ignore[arg-type]


def _without(given: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in given.items() if name != "timeout"}


@pytest.fixture
def cluster(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    def copy(play: Cluster, manifest: Manifest, source: Any, targets: Any, **_how: Any) -> Any:
        names, play.source = [node.name for node in targets], source.name
        play.done.append(f"copy {source.name} to {','.join(names)}")
        return [Copied(name, source.name, 5_000_000_000, 0, 5.0, fabric=True) for name in names]

    monkeypatch.setattr(module, "copy", copy)
    return partial(Cluster, tmp_path)


COPIED = [
    "common spark1",
    "common spark2",
    "export spark1",
    "copy spark1 to spark2",
    f"{REF} on spark2: 5.0 GB from spark1 over the fabric in 5.0 s, 1.0 GB/s",
    "load spark2",
]


def test_it_is_pulled_by_the_head_and_copied(cluster):
    two = cluster()
    two.bring(digest=PIN)
    two.done[1:3] = sorted(two.done[1:3])
    assert two.done.pop(3) == "registry spark2", "who gets it asks what the digest stands for"
    assert two.done[:7] == ["pull spark1", *COPIED]
    assert sorted(two.done[7:]) == ["clean spark1", "clean spark2"]
    assert two.docker["spark2"] == two.docker["spark1"]


def test_another_image_than_the_pinned_one_is_not_taken_from_a_node(cluster):
    """A node says which digests its image has; only the registry knows."""
    two = cluster()
    two.docker = {"spark1": image("6", PIN), "spark2": None}
    with pytest.raises(Failed, match=f"another image than its registry's: sha256:{'6' * 12}") as e:
        two.bring(digest=PIN)
    assert e.value.where == "spark1"
    assert not any(done.startswith(("export", "copy", "load")) for done in two.done)


def test_a_registry_that_is_not_reached_is_said(cluster):
    two = cluster()
    two.registry = {"status": 1, "stdout": ""}
    two.bring(digest=PIN)
    told = [done for done in two.done if "not verified against its registry" in done]
    assert told == [
        f"repo/image@{PIN} is not verified against its registry (no basic auth credentials)"
    ]
    assert "load spark2" in two.done


@pytest.mark.parametrize(
    ("ref", "name"),
    [
        ("vllm/vllm-openai:v1", "vllm/vllm-openai"),
        ("image", "image"),
        ("image:1", "image"),
        ("localhost:5000/a/b:1", "localhost:5000/a/b"),
        ("localhost:5000/b", "localhost:5000/b"),
    ],
)
def test_a_registry_is_asked_for_the_digest_and_not_for_the_tag(ref, name):
    """With both, `docker manifest inspect` asks for the tag, which may have moved."""
    assert module.without_tag(ref) == name


@pytest.mark.parametrize(
    "printed",
    [
        "",
        "no",
        "[" * 100_000,
        "[1]",
        "{}",
        '{"Descriptor": 1}',
        '[{"OCIManifest": {"config": []}}]',
    ],
)
def test_what_a_registry_prints_in_no_known_form(printed):
    assert module.ids_of(printed) == set()


def test_what_all_have_is_not_moved(cluster):
    two = cluster()
    two.docker = dict.fromkeys(two.docker, image("1", PIN))
    two.bring(digest=PIN)
    assert two.done == []


def test_what_a_cut_run_has_left_is_removed(cluster):
    two = cluster()
    two.docker = dict.fromkeys(two.docker, image("1", PIN))
    two.left = {"spark1"}
    two.bring(digest=PIN)
    assert two.done == ["clean spark1"]


def test_who_has_the_pinned_one_sends_it(cluster):
    two = cluster()
    two.docker = {"spark1": image("2"), "spark2": image("1", PIN)}
    two.bring(digest=PIN)
    assert "copy spark2 to spark1" in two.done
    assert not any(done.startswith("pull") for done in two.done)


def test_layers_that_are_there_are_not_sent(cluster):
    two = cluster()
    two.common = 1
    two.bring()
    assert two.loaded == ["b", "manifest.json"]
    assert any(done.endswith("; 1 of 2 layers were there") for done in two.done)


def test_without_a_fabric_each_pulls_and_all_must_be_equal(cluster):
    two = cluster(fabric=False)
    two.bring()
    assert two.done == ["pull spark1", "pull spark2"]
    other = cluster(fabric=False)
    other.pulled["spark2"] = image("3")
    with pytest.raises(Failed, match="is not the same image on all nodes") as caught:
        other.bring()
    assert "image.digest" in caught.value.hint


def test_dockers_with_different_stores_pull_it_each(cluster):
    """The same image has another id in each; the registry's digest says that it is the same."""
    two = cluster()
    two.containerd = {"spark2"}
    two.pulled["spark2"] = image("5", PIN)
    two.bring(digest=PIN)
    assert [done for done in two.done if done.startswith("pull")] == ["pull spark1", "pull spark2"]
    assert not any(done.startswith(("export", "copy")) for done in two.done)


@pytest.mark.parametrize(
    ("settings", "given"),
    [
        ("{copies: false}", {}),
        ("", {"archive": "/srv/image.tar"}),
        ("", {"base_archive": "/srv/b"}),
    ],
)
def test_what_each_node_has_by_itself(cluster, settings, given):
    two = cluster(settings)
    two.bring(**given)
    assert two.done == ["pull spark1", "pull spark2"]


def test_an_image_that_was_built_anew_is_copied(cluster):
    two = cluster()
    two.docker = dict.fromkeys(two.docker, image("1"))
    two.changed = True
    two.pulled["spark1"] = image("4")
    two.bring(dockerfile="FROM x\n")
    assert two.done == [], "nothing differs after all"


def test_offline_it_has_to_be_there():
    recipe = make_recipe().image
    with pytest.raises(Refused, match="no node has the image"):
        module.must_be_there(recipe, {"spark1": None})
    has = image("1", *([recipe.digest] if recipe.digest else []))
    module.must_be_there(recipe, {"spark1": None, "spark2": has})


@pytest.mark.parametrize("answer", [{"id": "x"}, "text", {"id": None}])
def test_an_answer_that_is_none(answer):
    pending = SimpleNamespace(wait=lambda: {"image": answer})
    session = SimpleNamespace(submit=lambda *_a, **_k: pending)
    play: Any = SimpleNamespace(session=lambda _node: session)
    with pytest.raises(Failed, match="gave no id"):
        module.images_on(play, [make_node("spark1")], REF)

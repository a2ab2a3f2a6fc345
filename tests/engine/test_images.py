"""How each node gets the image, who sends it, and what is refused."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from ipaddress import IPv4Interface
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from factories import make_inventory, make_node, make_recipe

from spark_cluster.engine.copies import images as module
from spark_cluster.engine.copies.copy import Copied
from spark_cluster.engine.copies.images import ImageOnNode
from spark_cluster.errors import Failed, Refused
from spark_cluster.runner.options import Selection
from spark_cluster.runner.play import Play
from spark_cluster.topology import Link, Node

REF, PIN = "repo/image:1", f"sha256:{'d' * 64}"


def image(letter: str = "1", *digests: str) -> ImageOnNode:
    return ImageOnNode(f"sha256:{letter * 64}", frozenset(digests), 5_000_000_000)


def spark(number: int, *, fabric: bool) -> Node:
    """A node, with its address on the link where there is one."""
    address = f"192.168.177.{10 + number}/24"
    own = (f"10.0.0.{number}/24", *([address] if fabric else []))
    node = make_node(f"spark{number}", head=number == 1, address=f"10.0.0.{number}", own=own)
    return replace(node, links=(Link("eth0", IPv4Interface(address)),) if fabric else ())


class Cluster:
    """Two nodes; roles that are applied give the image, and what is asked is noted."""

    check = False
    known_now = Play.known_now

    def __init__(self, folder: Path, settings: str = "", *, fabric: bool = True) -> None:
        self.nodes = [spark(1, fabric=fabric), spark(2, fabric=fabric)]
        hosts = "spark1: {address: 10.0.0.1, roles: [head]}, spark2: {address: 10.0.0.2}"
        text = f"nodes: {{{hosts}}}\n" + (f"settings: {{images: {settings}}}\n" if settings else "")
        self.inventory = make_inventory(folder, text)
        self.options = SimpleNamespace(selection=Selection())
        self.docker: dict[str, ImageOnNode | None] = {"spark1": None, "spark2": None}
        self.pulled: dict[str, ImageOnNode] = {"spark1": image("1", PIN), "spark2": image("1", PIN)}
        self.done: list[str] = []
        self.containerd: set[str] = set()
        self.changed = False
        self.registry = 0
        """Exit status of `docker manifest inspect`."""

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
        def answer(_op: str, what: str, **_given: Any) -> dict[str, Any]:
            if what == "store":
                return {"containerd": node.name in self.containerd}
            assert what == "state"
            known = self.docker[node.name]
            about = known and {
                "id": known.id,
                "digests": [f"repo/image@{one}" for one in known.digests],
                "size": known.size,
            }
            return {"image": about}

        return SimpleNamespace(
            submit=lambda *words, **given: SimpleNamespace(wait=lambda: answer(*words, **given)),
            request=answer,
            run=lambda argv, **_how: self._docker(node, argv),
        )

    def _docker(self, node: Any, argv: list[str]) -> Any:
        assert argv == ["docker", "manifest", "inspect", f"repo/image@{PIN}"]
        self.done.append(f"registry {node.name}")
        return SimpleNamespace(status=self.registry, stderr="no basic auth credentials\n")

    def bring(self, *, offline: bool = False, **given: Any) -> None:
        play: Any = self
        before = module.images_on(play, self.nodes, REF)
        module.bring(play, self.nodes, {"ref": REF, **given}, before, offline=offline)


@pytest.fixture
def cluster(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    def copy(play: Cluster, about: Any, source: Node, target: Node) -> Copied:
        known = play.docker[source.name]
        assert known is not None
        assert about["id"] == known.id
        play.docker[target.name] = known
        return Copied(target.name, source.name, 5_000_000_000, 0, 5.0, fabric=True)

    monkeypatch.setattr(module, "copy_image", copy)
    return partial(Cluster, tmp_path)


def sent(source: int, target: int) -> str:
    """What is said of a copy."""
    way = f"spark{target}: 5.0 GB from spark{source} over the fabric in 5.0 s, 1.0 GB/s"
    return f"{REF} on {way}"


def test_what_is_pinned_is_pulled_by_its_digest_on_each_node(cluster):
    two = cluster()
    two.bring(digest=PIN)
    assert two.done == ["registry spark2", "pull spark1", "pull spark2"]
    assert two.docker["spark2"] == two.docker["spark1"]


def test_what_may_move_is_pulled_by_the_head_and_copied(cluster):
    two = cluster()
    two.pulled["spark2"] = image("9")
    two.bring()
    assert two.done == ["pull spark1", sent(1, 2)]
    assert two.docker["spark2"] == two.docker["spark1"]


def test_another_image_than_the_pinned_one_is_not_taken_from_a_node(cluster):
    """A node says which digests its image has; only the registry knows."""
    two = cluster()
    two.docker = {"spark1": image("6", PIN), "spark2": None}
    two.bring(digest=PIN)
    assert two.done == ["registry spark2", "pull spark2"]


def test_without_its_registry_it_is_copied_and_that_is_said(cluster):
    two = cluster()
    two.docker["spark1"], two.registry = image("1", PIN), 1
    two.bring(digest=PIN)
    told = f"repo/image@{PIN} is not verified against its registry (no basic auth credentials)"
    assert two.done == ["registry spark2", told, sent(1, 2)]


def test_offline_no_registry_is_asked(cluster):
    two = cluster()
    two.docker["spark2"] = image("1", PIN)
    two.bring(digest=PIN, offline=True)
    assert two.done == [sent(2, 1)], "who has it sends it"


def test_a_copy_that_is_another_image_is_refused(cluster, monkeypatch):
    two = cluster()

    def lied(play: Cluster, _about: Any, _source: Node, target: Node) -> str:
        play.docker[target.name] = image("7")
        play.pulled[target.name] = image("7")
        return "copied"

    monkeypatch.setattr(module, "copy_image", lied)
    with pytest.raises(Failed, match="is not the same image on all nodes"):
        two.bring()


def test_what_all_have_is_not_moved(cluster):
    two = cluster()
    two.docker = dict.fromkeys(two.docker, image("1", PIN))
    two.bring(digest=PIN)
    assert two.done == []


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
    two.bring()
    assert [done for done in two.done if done.startswith("pull")] == ["pull spark1", "pull spark2"]
    assert "different stores" in two.done[1]


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
        module.must_be_present(recipe, {"spark1": None})
    has = image("1", *([recipe.digest] if recipe.digest else []))
    module.must_be_present(recipe, {"spark1": None, "spark2": has})


@pytest.mark.parametrize("answer", [{"id": "x"}, "text", {"id": None}])
def test_an_answer_that_is_none(answer):
    pending = SimpleNamespace(wait=lambda: {"image": answer})
    session = SimpleNamespace(submit=lambda *_a, **_k: pending)
    play: Any = SimpleNamespace(session=lambda _node: session)
    with pytest.raises(Failed, match="gave no id"):
        module.images_on(play, [make_node("spark1")], REF)

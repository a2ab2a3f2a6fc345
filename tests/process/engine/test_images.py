"""How each node gets the image, who sends it, and what is refused."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
from cases import each_case
from factories import make_recipe
from fake_programs import Program, Said
from piped_cluster import Make, PipedCluster

from spark_cluster.engine import image_copies
from spark_cluster.engine.image_copies import ImageOnNode
from spark_cluster.errors import Failed, Refused
from spark_cluster.node.dockerd import CONTAINERD_STORE
from spark_cluster.runner.events import Event, Note

REF, PIN = "repo/image:1", f"sha256:{'d' * 64}"
PINNED = f"repo/image@{PIN}"
ASKED = {"pull": "pull", "load": "load", "build": "build", "manifest": "registry"}
"""What Docker is asked to the word that `Two.done` has for it."""


class Two:
    """Two nodes whose registry has the image; how it gets to each of them is noted in `done`."""

    def __init__(self, cluster: PipedCluster) -> None:
        self.cluster, self.nodes, self.done = cluster, cluster.nodes, list[str]()
        cluster.on_event = self._told
        for name, node in cluster.nodes.items():
            node.have_image(REF, PIN, at="registry")
            node.programs["docker"] = partial(self._docker, name, node.programs["docker"])

    def _told(self, event: Event) -> None:
        """Keep a note, without a copy's size and time."""
        if isinstance(event, Note):
            self.done.append(re.sub(r": [\d.]+ \w+ from (.*) in .*", r" from \1", event.text))

    def _docker(self, name: str, docker: Program, words: list[str], stdin: str) -> Said | str:
        if words[0] in ASKED and (words[0] != "load" or words[1:]):
            self.done.append(f"{ASKED[words[0]]} {name}")
        return docker(words, stdin)

    @property
    def docker(self) -> dict[str, ImageOnNode | None]:
        """Node to its image."""
        return image_copies.images_on(self.cluster.play, self.cluster.play.nodes, REF)

    def bring(self, *, offline: bool = False, **given: Any) -> None:
        play = self.cluster.play
        wanted = {"ref": REF, **given}
        play.options.offline = offline
        image_copies.WantedImage(play, play.nodes, wanted, self.docker).bring()


@pytest.fixture
def cluster(piped_cluster: Make, own_ports: None) -> Callable[..., Two]:
    """`cluster(settings)`: two nodes whose fabric, if they have one, is this machine's loopback."""

    def make(settings: str = "", *, fabric: bool = True) -> Two:
        more = f"settings: {{images: {settings}}}\n" if settings else ""
        more = f"trusted_network: true\n{more}"
        made = piped_cluster("spark1", "spark2", more=more, network="127.0.1")
        for number, node in enumerate(made.nodes.values(), 11):
            node.fabric = f"127.0.0.{number}/8" if fabric else ""
        made.marked("copies")
        return Two(made)

    return make


def sent(source: int, target: int) -> str:
    """What is said of a copy."""
    return f"{REF} on spark{target} from spark{source} over the fabric"


@each_case(__file__, "images.toml")
def test_how_each_node_gets_it(cluster, case):
    two = cluster(case.get("settings", ""), fabric="unlinked" not in case)
    for name, digests, how in case.get("there", ()):
        two.nodes[name].have_image(REF, *digests, **how)
    for node in two.nodes.values():
        node.put("/srv/image.tar")
        with node.state("docker") as docker:
            docker["archives"] = {"image.tar": {REF: docker["registry"][REF]}}
            if node.name == "spark2" and "refuses" in case:
                docker["registry"][PINNED] = case["refuses"]
    two.bring(**case.get("given", {}), **({"digest": PIN} if case.get("pinned") else {}))
    assert sorted(two.done) == sorted(case["done"])
    assert (two.docker["spark2"] == two.docker["spark1"]) is case.get("same", True)


def test_the_pinned_image_is_pulled_by_its_digest(cluster):
    two = cluster()
    two.bring(digest=PIN)
    assert all(node.calls("docker").count(["pull", PINNED]) == 1 for node in two.nodes.values())


def test_offline_no_registry_is_asked_and_what_all_have_is_not_moved(cluster):
    two = cluster()
    two.nodes["spark2"].have_image(REF, PIN)
    two.bring(digest=PIN, offline=True)
    assert two.done == [sent(2, 1)], "who has it sends it"
    two.bring(digest=PIN)
    assert two.done == [sent(2, 1)]


def test_a_copy_that_is_another_image_is_refused(cluster):
    two = cluster()
    docker = two.nodes["spark1"].programs["docker"]

    def lies(words: list[str], stdin: str) -> Said | str:
        if words[0] != "save":
            return docker(words, stdin)
        return json.dumps({REF: {"Id": f"sha256:{'7' * 64}", "RepoDigests": []}})

    two.nodes["spark1"].programs["docker"] = lies
    with pytest.raises(Failed, match=f"repo/image@sha256:{'1' * 64}") as caught:
        two.bring()
    assert caught.value.where == "spark2: role images"


def test_images_that_each_pulled_must_be_equal(cluster):
    two = cluster(fabric=False)
    two.nodes["spark2"].have_image(REF, number="3", at="registry")
    with pytest.raises(Failed, match="is not the same image on all nodes") as caught:
        two.bring()
    assert "image.digest" in caught.value.hint


def test_dockers_with_different_stores_pull_it_each(cluster):
    """The same image has another id in each; the registry's digest says that it is the same."""
    two = cluster()
    two.nodes["spark2"].have_image(REF, PIN, number="5", at="registry")
    with two.nodes["spark2"].state("docker") as docker:
        docker["store"] = CONTAINERD_STORE
    two.bring()
    assert [done for done in two.done if done.startswith("pull")] == ["pull spark1", "pull spark2"]
    assert "different stores" in two.done[1]


def test_an_image_that_was_built_anew_is_copied(cluster):
    two = cluster()
    for node in two.nodes.values():
        node.have_image(REF)
        node.have_image("base:1")
    two.bring(dockerfile="FROM base:1\n")
    assert two.done == ["build spark1", sent(1, 2)]
    assert two.docker["spark2"] == two.docker["spark1"]
    two.bring(dockerfile="FROM base:1\n")
    assert len(two.done) == 2, "nothing differs any more"


def test_offline_it_has_to_be_there():
    recipe = make_recipe().image
    with pytest.raises(Refused, match="no node has the image"):
        image_copies.must_be_present(recipe, {"spark1": None})
    has = ImageOnNode(f"sha256:{'1' * 64}", frozenset([recipe.digest or ""]), 5_000_000_000)
    image_copies.must_be_present(recipe, {"spark1": None, "spark2": has})


@pytest.mark.parametrize("said", ["x", None])
def test_an_answer_that_is_none(piped_cluster, said):
    cluster = piped_cluster("spark1")
    cluster.head.programs["docker"] = lambda _words, _stdin: json.dumps([{"Id": said}])
    with pytest.raises(Failed, match="gave no id"):
        image_copies.images_on(cluster.play, cluster.play.nodes, REF)

"""Who fetches a model, who copies it, and what is refused before the first byte."""

import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from cases import each_case
from factories import make_inventory, make_node, make_recipe

from spark_cluster.engine import fetch
from spark_cluster.engine.hub_models import Have, PullPreview, Stored, Wanted, wanted_by
from spark_cluster.engine.node_copies import Copied
from spark_cluster.errors import Failed, Refused
from spark_cluster.node.store.manifest import Manifest
from spark_cluster.runner.events import Options
from spark_cluster.runner.play import Play

HUB = "/hub"
WANTED = Wanted("org/model")
OLD, NEW = "a" * 40, "b" * 40
SIZE = 60_000_000_000


def manifest(commit: str = NEW) -> Manifest:
    files = [{"path": "w", "size": SIZE, "blob": "a" * 64, "algorithm": "sha256"}]
    return Manifest.from_document({"repository": "org/model", "commit": commit, "files": files})


def have(
    commit: str | None = None,
    *,
    missing: int = 0,
    free: int = 1 << 40,
    adoptable: str | None = None,
) -> Have:
    """What a node has: nothing, or a commit of which so many bytes are missing; and the commit that
    another tool has downloaded there. A commit is told by its digit."""
    known, other = (manifest(digit * 40) if digit else None for digit in (commit, adoptable))
    elsewhere = "/root/.cache/huggingface/hub" if other else ""
    at = known.commit if known else None
    return Have(at, known, ("w",) if missing else (), missing, (), "", elsewhere, other, free)


class Cluster:
    """Two nodes; what is pulled, copied and taken over is noted."""

    known_now, progress_of = Play.known_now, Play.progress_of

    def __init__(self, folder: Path, **on: Have) -> None:
        self.nodes = [make_node("spark1"), make_node("spark2", head=False)]
        hosts = "spark1: {address: 10.0.0.1, roles: [head]}, spark2: {address: 10.0.0.2}"
        self.inventory = make_inventory(folder, f"nodes: {{{hosts}}}\n")
        self.stored, self.options, self.pulled = Stored(HUB, {WANTED: on}), Options(), NEW
        self.done: list[tuple[str, ...]] = []
        self.notes: list[str] = []
        self.compared: list[tuple[str, str]] = []
        self.refusal: Failed | None = None
        self.copying = threading.Event()

    def note(self, text: str, **_options: Any) -> None:
        self.notes.append(text)

    def together(self, *jobs: Any) -> list[Any]:
        return Play.together(self, *jobs)  # type: ignore[arg-type]

    def session(self, node: Any) -> Any:
        def request(_op: str, _on_event: Any, **given: Any) -> None:
            self.done.append(("adopt", node.name, given["commit"][:1]))

        return SimpleNamespace(request=request)

    def bring(self) -> dict[str, str]:
        return fetch.bring(self, self.nodes, self.stored)  # type: ignore[arg-type]

    # -- in place of the functions of these names, whose first argument is the play ----------------

    def preview(self, node: Any, *_wanted: Any, **_how: Any) -> PullPreview:
        self.done.append(("preview", node.name))
        return PullPreview(manifest(NEW), SIZE, 1 << 40)

    def pull(self, node: Any, *_wanted: Any, **_how: Any) -> Manifest:
        if self.refusal is not None:
            raise self.refusal
        assert self.copying.wait(10), "it is copied meanwhile"
        self.done.append(("pull", node.name))
        return manifest(self.pulled)

    def copy(self, files: Manifest, source: Any, targets: Any, **_how: Any) -> Any:
        self.copying.set()
        names = ",".join(node.name for node in targets)
        if files.commit == NEW != self.pulled:
            raise Failed("its download there has ended without it", where=targets[0].name)
        self.done.append(("copy", source.name, names, files.commit[:1]))
        return [Copied(node.name, source.name, SIZE, 0, 10.0, fabric=True) for node in targets]

    def must_be_the_hubs(self, _files: Any, holder: Any, receiver: Any, **_how: Any) -> None:
        self.compared.append((holder.name, receiver.name))


def must_be_present(stored: Stored, *, adopt: bool) -> None:
    recipe = make_recipe(image={"archive": "/image.tar"})  # of which none is asked for
    fetch.must_be_present(recipe, stored, adopt=adopt)


@pytest.fixture
def cluster(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Makes a cluster, whose pulls take until the copy has begun."""
    for name in ("preview", "pull", "copy", "must_be_the_hubs"):
        monkeypatch.setattr(fetch, name, getattr(Cluster, name))
    return lambda **on: Cluster(tmp_path, **on)


@each_case(__file__, "fetching.toml")
def test_who_fetches_it_and_who_copies_it(cluster, case):
    two = cluster(**{name: have(**case.get(name, {})) for name in ("spark1", "spark2")})
    two.pulled = OLD if case.get("moved") else NEW
    wish = case.get("adopt", {})
    consent = (lambda _text: True) if wish.get("yes") else None
    two.options = Options(adopt=wish.get("adopt", False), consent=consent)
    if wish:
        must_be_present(two.stored, adopt=two.options.may_adopt)
    folder = f"{HUB}/models--org--model/snapshots/{case['served'] * 40}"
    assert two.bring() == {"org/model": folder}
    assert sorted(map(" ".join, two.done)) == case["done"]
    assert two.compared == [tuple(pair) for pair in case.get("compared", ())]


def test_a_large_download_and_its_copy_are_announced(cluster):
    two = cluster(spark1=have(), spark2=have())
    two.bring()
    large, moved = two.notes
    assert large.startswith("org/model: 60 GB are to be fetched, which takes 10 min")
    assert moved == "org/model on spark2: 60.0 GB from spark1 over the fabric in 10.0 s, 6.0 GB/s"


@pytest.mark.parametrize("asked", [None, []])
def test_without_the_users_word_it_is_downloaded(cluster, asked):
    """A person is asked what and where; else it is said how it would be taken."""
    two = cluster(spark1=have(), spark2=have(adoptable="a"))
    if asked is not None:
        two.options = Options(consent=lambda text: bool(asked.append(text)))
    assert two.bring()["org/model"].endswith(NEW)
    assert ("pull", "spark1") in two.done
    assert not any(what == "adopt" for what, *_ in two.done)
    told = any("with --adopt a copy of it would be taken" in note for note in two.notes)
    assert told == (asked is None)
    if asked is not None:
        (text,) = asked
        assert text.startswith("org/model (60.0 GB) is in /root/.cache/huggingface/hub of spark2: ")


def test_offline_each_nodes_lack_is_told_and_other_caches_count_with_adopt_only(cluster):
    stored = cluster(spark1=have(), spark2=have(adoptable="a")).stored
    with pytest.raises(Refused, match="no node has") as caught:
        must_be_present(stored, adopt=False)
    assert "--adopt" in caught.value.hint
    must_be_present(stored, adopt=True)
    two = cluster(spark1=have(), spark2=have("b", missing=2_000_000_000))
    with pytest.raises(Refused, match=r"spark1: not there; spark2: 2\.0 GB are missing"):
        must_be_present(two.stored, adopt=True)


def test_a_disk_that_is_too_small_is_named_before_the_first_byte(cluster):
    two = cluster(spark1=have(), spark2=have(free=SIZE))
    with pytest.raises(Refused, match=r"60\.0 GB more .* 60\.0 GB are free") as caught:
        two.bring()
    assert caught.value.where == "spark2"
    assert two.done == [("preview", "spark1")]


def test_the_pulls_reason_is_the_one_that_is_told(cluster):
    two = cluster(spark1=have(), spark2=have())
    two.refusal = Failed("the licence is not accepted", where="spark1")
    with pytest.raises(Failed, match="licence"):
        two.bring()


def test_what_is_wanted_in_the_hub_cache():
    name = "gemma4-26b-a4b-fp8-mtp"
    recipe = make_recipe(name)
    names = [wanted.repository for wanted in wanted_by(recipe)]
    assert names == [recipe.model.name, recipe.drafter.name if recipe.drafter else ""]
    own = make_recipe(name, model={"path": "/srv/models/x"}, drafter=None)
    assert len(wanted_by(own)) == 0


def test_what_is_there_counts_for_the_plan():
    on = {"spark1": have("b"), "spark2": have("b", missing=SIZE // 2), "spark3": have()}
    stored = Stored(HUB, {WANTED: on})
    assert stored.gib_present("org/drafter") == {}
    there = stored.gib_present("org/model")
    assert there["spark1"] == float("inf")
    assert there["spark2"] == pytest.approx(SIZE / 2 / 2**30)
    assert there["spark3"] == 0

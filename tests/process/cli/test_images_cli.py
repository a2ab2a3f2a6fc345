"""`images` on a real agent over a pipe; a program in Docker's place has the node's images."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from factories import put

INVENTORY = "nodes:\n  spark1: {address: 10.0.0.1, roles: [head]}\n"
RECIPE = """\
name: mine
model: {name: org/m, served_name: m}
image:
  ref: local/mine:1
  build: {why: a test, dockerfile: "FROM base:2\\nRUN true\\n"}
"""
DOCKER = """#!/bin/sh
here={here}
case "$1 $2" in
"image ls") cat "$here/ids" ;;
"image inspect") cat "$here/images.json" ;;
"container ls") echo c1 ;;
"container inspect") echo '[{{"Name": "/spark-vllm", "Image": "sha256:{used}"}}]' ;;
"image rm") shift 2; echo "rm $*" >> "$here/asked"
    case "$*" in *stuck*) echo "Error: conflict: image is being used" >&2; exit 1 ;; esac ;;
*) exit 1 ;;
esac
"""
NAMES = {
    "a": ["vllm:old"],
    "b": ["vllm:new"],
    "c": ["base:2"],
    "d": ["local/mine:1"],
    "e": ["stuck:1"],
    "f": ["<none>:<none>"],
}


@pytest.fixture
def project_with_images(project: Path, agent: Any, monkeypatch: pytest.MonkeyPatch) -> Path:
    """spark1 with six images: one is used, one is needed, one is what that is built on."""

    monkeypatch.setenv("COLUMNS", "200")
    put(project / "inventory.yaml", INVENTORY)
    put(project / "recipes/mine.yaml", RECIPE)
    found = [
        {
            "Id": f"sha256:{letter * 64}",
            "RepoTags": names,
            "RepoDigests": [],
            "Size": 1_000_000_000 * number,
            "Created": f"2026-0{number}-01T00:00:00Z",
            "RootFS": {"Layers": ["sha256:1"]},
        }
        for number, (letter, names) in enumerate(NAMES.items(), 1)
    ]
    put(project / "docker/images.json", json.dumps(found))
    put(project / "docker/ids", "\n".join(one["Id"] for one in found))
    text = DOCKER.format(here=project / "docker", used="b" * 64)
    put(project / "spark1/usr/local/bin/docker", text, 0o755)
    return project


def test_images_are_listed_with_what_needs_them(run, project_with_images):
    status, out, err = run("images", "list", "--json")
    assert status == 0, err
    [node] = json.loads(out)["nodes"]
    found = {one["id"][7]: one for one in node["images"]}
    assert found["b"]["used_by"] == ["spark-vllm"]
    assert found["d"]["recipes"] == found["c"]["recipes"] == ["mine"], "the base, too"
    assert found["f"]["names"] == []
    status, out, _ = run("images", "list")
    assert "in use by spark-vllm" in out
    assert "6 images" in out


def test_nothing_is_removed_without_apply(run, project_with_images):
    status, out, _ = run("images", "prune")
    assert status == 0
    assert "would go  vllm:old  1.0 GB" in out
    assert "stays  vllm:new  the container spark-vllm uses it" in out
    assert "stays  base:2  recipe mine needs it" in out
    assert "--apply does it" in out
    assert not (project_with_images / "docker/asked").exists()


def test_what_may_go_is_removed_and_what_docker_keeps_is_told(run, project_with_images):
    status, out, _ = run("images", "prune", "--apply", "--json")
    assert status == 1
    [node] = json.loads(out)["nodes"]
    assert [one["id"][7] for one in node["removed"]] == ["a", "f"]
    assert node["freed"] == 7_000_000_000
    [refused] = node["refused"]
    assert refused["name"] == "stuck:1"
    assert "image is being used" in refused["reason"]
    asked = (project_with_images / "docker/asked").read_text().splitlines()
    assert asked == ["rm vllm:old", "rm stuck:1", f"rm sha256:{'f' * 64}"]


@pytest.mark.parametrize(
    ("words", "gone"),
    [
        (("vllm:old",), ["a"]),
        (("vllm:new",), []),
        (("--free", "3"), ["a", "e"]),
        (("f" * 12,), "f"),
    ],
)
def test_only_what_is_named_and_only_so_much(run, project_with_images, words, gone):
    _, out, _ = run("images", "prune", *words, "--json")
    [node] = json.loads(out)["nodes"]
    assert [one["id"][7] for one in node["removed"]] == list(gone)


def test_a_name_that_no_node_has_is_no_success(run, project_with_images):
    status, _, err = run("images", "prune", "vlm:old", "--apply")
    assert status == 1
    assert "vlm:old is on no node" in err


def test_a_recipe_that_cannot_be_read_stops_it(run, project_with_images):
    put(project_with_images / "recipes/broken.yaml", "name: broken\n")
    status, _, err = run("images", "prune", "--apply")
    assert status != 0
    assert "broken.yaml" in err
    assert not (project_with_images / "docker/asked").exists()


@pytest.mark.parametrize("printed", ["", "{}", '["x"]', "no JSON"])
def test_what_docker_prints_is_foreign(run, project_with_images, printed):
    put(project_with_images / "docker/images.json", printed)
    status, _, err = run("images", "list")
    assert status == 1
    assert "printed no list of objects" in err


def test_a_node_without_docker(run, project_with_images):
    put(project_with_images / "spark1/usr/local/bin/docker", "#!/bin/sh\nexit 1\n", 0o755)
    status, _, err = run("images", "list")
    assert status == 1
    assert "spark1" in err

"""Image, against a docker that keeps real state in a file."""

import os

import pytest
from resource_samples import DIGEST, MACHINE, WRONG, image

from spark_cluster.node import dockerd, paths
from spark_cluster.resources import File, Image, Package, Service

OTHER = "arm64" if MACHINE == "amd64" else "amd64"
REF = "vllm/vllm-openai:v0.12.0"


@pytest.fixture
def docker(docker):
    with docker.state("docker") as state:
        state["registry"] = {
            REF: image(),
            f"vllm/vllm-openai@{DIGEST}": image(),
            f"vllm/vllm-openai@{WRONG}": image(digest=DIGEST),
        }
    return docker


def test_absent_is_pulled_and_then_left(docker):
    docker.must_change(Image(REF))
    assert f"{REF}: 2 of 2 layers" in docker.progress
    before = len(docker.calls("docker"))
    assert docker.apply(Image(REF)).verdict == "ok"
    assert docker.calls("docker")[before:] == [["docker", "image", "inspect", REF]]


def test_pinned_digest_is_pulled_named_and_verified(docker):
    pinned = Image(REF, digest=DIGEST)
    with docker.state("docker") as state:
        state["images"] = {REF: image(number="2", digest=WRONG)}
    docker.must_change(pinned)
    assert docker.changing_calls("docker") == [
        ["docker", "pull", f"vllm/vllm-openai@{DIGEST}"],
        ["docker", "tag", f"vllm/vllm-openai@{DIGEST}", REF],
    ]
    assert docker.apply(pinned).verdict == "ok"
    assert docker.apply(Image(f"vllm/vllm-openai@{DIGEST}")).verdict == "ok"
    result = docker.apply(Image(REF, digest=WRONG))
    assert f"{REF} is {DIGEST}, not the pinned {WRONG}" in result.error


def test_a_copy_of_a_pinned_image_is_not_pulled_again(docker):
    """`docker load` keeps no digest of a registry."""
    copied = image(number="2", digest=None)
    with docker.state("docker") as state:
        state["images"] = {REF: copied}
    pinned, path = Image(REF, digest=DIGEST), docker.path(paths.IMAGE_DIGESTS)
    assert docker.check(pinned).verdict == "change"
    for damaged in ("", "[]", '{"a": 1}'):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(damaged)
        assert docker.check(pinned).verdict == "change"
    dockerd.remember(path, copied["Id"], [DIGEST, "not a digest"])
    assert docker.apply(pinned).verdict == "ok"
    dockerd.remember(path, copied["Id"], [WRONG])
    assert dockerd.remembered(path, copied["Id"]) == sorted([DIGEST, WRONG])
    with docker.state("docker") as state:
        state["images"] = {REF: image(number="3", digest=None)}
    assert docker.check(pinned).verdict == "change"


def test_archive_is_loaded(docker):
    docker.put("/srv/vllm.tar", "x")
    with docker.state("docker") as state:
        state["archives"] = {"vllm.tar": {"spark-vllm:1": image(digest=None)}}
    loaded = Image("spark-vllm:1", archive="/srv/vllm.tar", digest="sha256:" + "1" * 64)
    docker.must_converge(loaded)
    docker.path("/srv/vllm.tar").unlink()
    assert docker.apply(loaded).verdict == "ok"


def test_archive_that_holds_something_else_or_nothing(docker):
    docker.put("/srv/vllm.tar", "x")
    with docker.state("docker") as state:
        state["archives"] = {"vllm.tar": {"other:1": image()}}
    result = docker.apply(Image("spark-vllm:1", archive="/srv/vllm.tar"))
    assert "/srv/vllm.tar does not hold spark-vllm:1; it holds other:1" in result.error
    docker.put("/srv/bad.tar", "x")
    result = docker.apply(Image("spark-vllm:1", archive="/srv/bad.tar"))
    assert "unrecognized image format" in result.error


def test_missing_archive(docker):
    loaded = Image("spark-vllm:1", archive="/srv/vllm.tar")
    for result in (docker.check(loaded), docker.apply(loaded)):
        assert "/srv/vllm.tar, to load spark-vllm:1 from, does not exist" in result.error
    docker.path("/srv").mkdir()
    assert docker.check(File("/srv/vllm.tar", content="x"), loaded).verdict == "change"


def test_wrong_architecture_names_both(docker):
    with docker.state("docker") as state:
        state["registry"] = {REF: image(OTHER)}
        state["images"] = {REF: image(OTHER)}
    assert docker.check(Image(REF)).verdict == "change"
    result = docker.apply(Image(REF))
    assert (
        f"linux/{OTHER}, wanted linux/{MACHINE} (the node is {os.uname().machine})" in result.error
    )
    assert docker.apply(Image(REF, platform=f"linux/{OTHER}")).verdict == "ok"


@pytest.mark.parametrize(
    ("said", "text"),
    [
        ("Error: no matching manifest for linux/arm64/v8 in the manifest list", "architecture"),
        ("Error: pull access denied for x, repository does not exist", "it is private"),
        ("Error: Head https://nvcr.io/v2/: unauthorized: authentication required", "docker login"),
        (
            "Error: Get https://registry-1.docker.io/v2/: dial tcp: no such host",
            "cannot be reached",
        ),
        ("Error: toomanyrequests: You have reached your pull rate limit", "rate limit"),
        ("failed to register layer: write /x: no space left on device", "disk"),
        ("Error: something new", "something new"),
    ],
)
def test_refusals_of_the_registry(docker, said, text):
    with docker.state("docker") as state:
        state["registry"][REF] = said
    result = docker.apply(Image(REF))
    assert text in result.error
    assert said.removeprefix("Error: ") in result.error


def test_what_the_catalogue_explains_gets_no_hint_here(docker):
    """P05: the laptop adds cause and fix of a known issue to an error that has no hint."""
    said = "Error response from daemon: error from registry: Incorrect Repository Format"
    with docker.state("docker") as state:
        state["registry"][REF] = said
    result = docker.apply(Image(REF))
    assert said in result.event["error"]
    assert result.event["hint"] == ""


def test_no_such_tag(docker):
    assert "the registry has no such tag" in docker.apply(Image("vllm:none")).error


def test_no_docker_and_no_daemon(docker):
    with docker.state("docker") as state:
        state["down"] = True
    with docker.state("systemd") as state:
        state["units"] = {
            "docker.service": {"active": "failed", "sub": "failed", "result": "exit-code"}
        }
    result = docker.apply(Image(REF))
    assert "docker.service is failed (failed), result exit-code" in result.error
    result = docker.check(Service("docker"), Image(REF))
    assert (result.verdict, result.reason) == ("unknown", "after: Service:docker")
    with docker.state("docker") as state:
        state["down"], state["forbidden"] = False, True
    assert "no access to the Docker daemon" in docker.apply(Image(REF)).error


def test_no_docker_command(node):
    node.install("apt")
    for result in (node.check(Image(REF)), node.apply(Image(REF))):
        assert "there is no docker command" in result.error
    result = node.check(Package("docker.io", makes=("command:docker",)), Image(REF))
    assert (result.verdict, result.reason) == ("unknown", "after: Package:docker.io")


@pytest.mark.parametrize(
    "ref", ["a", "a:1", "nvcr.io/nvidia/vllm:26.02-py3", "localhost:5000/a/b_c:X", f"a:1@{DIGEST}"]
)
def test_references(ref):
    assert Image(ref).name == ref

"""BuiltImage, against a docker that keeps real state in a file."""

import hashlib

import pytest
from resource_samples import image

from spark_cluster.resources import BuiltImage, Container, Image

FILE = "FROM base:1\nRUN true"
MADE = BuiltImage("local/fixed:1", FILE)


@pytest.fixture
def docker(docker):
    with docker.state("docker") as state:
        state["images"] = {"base:1": image()}
    return docker


def builds(node):
    return [c for c in node.calls("docker") if c[1] == "build"]


def test_absent_is_built_and_then_left(docker):
    docker.must_converge(MADE)
    assert len(builds(docker)) == 1
    assert builds(docker)[0][-3:] == ["--tag", "local/fixed:1", "-"]


def test_another_text_is_built_again(docker):
    docker.apply(MADE)
    other = BuiltImage("local/fixed:1", FILE + "\nRUN more")
    docker.must_converge(other)
    assert docker.apply(MADE).verdict == "change"


def test_an_image_of_that_name_that_someone_else_made(docker):
    with docker.state("docker") as state:
        state["images"]["local/fixed:1"] = image()
    docker.must_converge(MADE)


def test_its_container_waits_for_it_in_check_mode(docker):
    result = docker.check(MADE, Container("vllm", "local/fixed:1"))
    assert (result.verdict, result.reason) == ("unknown", "after: BuiltImage:local/fixed:1")
    container = Container("vllm", "local/fixed:1", stays_s=0.0)
    assert docker.apply(MADE, container).verdict == "change"


@pytest.mark.parametrize(
    ("dockerfile", "text"),
    [
        ("FROM base:1\nRUN false", "returned a non-zero code: 1 | the Dockerfile is in the recipe"),
        ("FROM base:1\nCOPY x /x", "gets the Dockerfile alone"),
        ("FROM other:1\nRUN true", "pull access denied for other"),
    ],
)
def test_a_build_that_fails(docker, dockerfile, text):
    result = docker.apply(BuiltImage("local/fixed:1", dockerfile))
    assert result.verdict == "failed"
    assert "building local/fixed:1 failed; it ends:" in result.error
    assert text in result.error
    with docker.state("docker") as state:
        assert "local/fixed:1" not in state["images"]


def test_the_base_is_an_image_of_its_own(docker):
    assert [r.verdict for r in docker.results(Image("base:1"), MADE)] == ["ok", "change"]


def test_no_docker_command(node):
    node.install("apt")
    assert "there is no docker command" in node.apply(MADE).error


SCRIPT = b"#!/bin/bash\nset -e\n"
CONTEXT = "/var/lib/spark-cluster/builds/0123456789ab"
STEP = 'FROM base:1\nCOPY ["fix/run.sh", "/workspace/mods/fix/"]\nRUN ["bash", "run.sh"]\n'


def with_files(content=SCRIPT, **changed):
    files = {"fix/run.sh": hashlib.sha256(content).hexdigest()}
    options = {"context": CONTEXT, "files": files, "network": "none", "timeout_s": 60.0}
    return BuiltImage("local/fixed:1", STEP, **{**options, **changed})


def test_files_are_in_the_build_and_in_the_hash(docker):
    docker.put(f"{CONTEXT}/fix/run.sh", SCRIPT)
    assert docker.apply(with_files()).verdict == "change"
    (argv,) = builds(docker)
    assert argv[argv.index("--network") + 1] == "none"
    assert "--force-rm" in argv, "the container of a step that fails would stay"
    assert argv[-3:-1] == ["--file", "-"]
    assert argv[-1].endswith(CONTEXT)
    assert docker.apply(with_files()).verdict == "ok"
    docker.put(f"{CONTEXT}/fix/run.sh", b"other")
    docker.must_change(with_files(b"other"))
    assert docker.check(with_files(b"other", network="host")).verdict == "change"
    assert docker.check(with_files(b"other")).verdict == "ok"


def test_a_file_that_is_another_one_is_not_run(docker):
    docker.put(f"{CONTEXT}/fix/run.sh", b"rm -rf /\n")
    result = docker.apply(with_files())
    assert result.verdict == "failed"
    assert "fix/run.sh has the SHA-256" in result.error
    assert not builds(docker)


def test_a_file_that_is_not_there(docker):
    result = docker.apply(with_files())
    assert result.verdict == "failed"
    assert "fix/run.sh is not there" in result.error
    assert not builds(docker)

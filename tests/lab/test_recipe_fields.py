"""Rarer fields of a recipe: an image built on the nodes, a patch, ranks without
Ray, assertions about the log, and rungs; on real Docker and real vLLM."""

from typing import Any

import pytest
import readme
from commandline import CommandLine
from exposure import only_the_endpoint
from lab_recipes import BASE_IMAGE, shipped, write
from on_nodes import containers

from spark_cluster_lab import LabNode

pytestmark = pytest.mark.lab

NAME = "lab-fields"
UP = ("up", "--tp", "2", "--recipe", NAME, "--allow-build-network")
DOCKERFILE = """\
FROM spark-vllm:lab
RUN echo built > /etc/built
ENTRYPOINT ["vllm", "serve"]
"""
"""Which begins as vllm/vllm-openai does."""


def recipe() -> dict[str, Any]:
    """The lab's recipe with all of it."""
    build = {"why": "a test", "dockerfile": DOCKERFILE}
    image = {"ref": "spark-cluster/lab-fields:1", "build": build}
    patch = {"file": "issue", "origin": "laptop", "target": "/etc/issue", "why": "a test"}
    log = {"log_expect": ["headless multiproc executor"]}  # only the worker's rank says it
    log["log_forbid"] = ["Connecting to existing Ray cluster"]
    readiness = {"rungs": ["answer"], **log}
    return shipped(name=NAME, executor="mp", image=image, patches=[patch], readiness=readiness)


@pytest.fixture(scope="module")
def user(user: CommandLine) -> CommandLine:
    """A user with a recipe and a patch of their own, on nodes that have Docker and the base."""
    (user.home / "recipes/issue").write_text("patched\n")
    write(user, recipe())
    user("playbook", user.playbook(BASE_IMAGE))
    return user


def inside(node: LabNode, path: str) -> str:
    return node.run(["docker", "exec", "spark-vllm", "cat", path]).stdout.strip()


def test_it_serves_by_ranks_without_ray(user, spark1, spark2):
    document = user.json(*UP)
    assert "Paris" in document["answer"]
    assert document["verified"] == ["answer"]
    for node in (spark1, spark2):
        assert inside(node, "/etc/built") == "built", "the image was built here"
        assert inside(node, "/etc/issue") == "patched"
        assert containers(node) == ["spark-vllm"]
    found = user.json("status")
    assert (found["state"], found["problems"], found["ray"]["nodes"]) == ("serving", [], 0)
    assert user.json(*UP)["changed"] == 0


@pytest.mark.soak
def test_a_neighbour_reaches_the_endpoint_and_nothing_else(user, spark1, spark2):
    """Ranks without Ray have no passwords at all."""
    user(*UP)
    only_the_endpoint(spark1, spark2)


def test_verify_of_a_server_without_a_tool_parser(user):
    """Real vLLM's refusal is not applicable, and the tiny model's wrong answers are failures."""
    document = user.json(
        *readme.words("spark-cluster verify"),
        "--only", "answer", "--only", "short_answers", "--only", "tool_call",
        status=5,
    )  # fmt: skip
    found = {check["id"]: check for check in document["checks"]}
    assert {name: check["status"] for name, check in found.items()} == {
        "answer": "ok",
        "short-answers": "failed",
        "tool-one": "not applicable",
        "tool-one-streamed": "not applicable",
    }
    assert "tool choice" in found["tool-one"]["found"]
    assert "expected '42'" in found["short-answers"]["found"]
    assert (document["tp"], document["recipe"]) == (2, NAME)

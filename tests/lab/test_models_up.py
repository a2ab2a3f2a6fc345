"""A chat model and an embedding model on one node behind one endpoint, with real vLLM."""

import socket
from typing import Any

import pytest
import word_model
from commandline import CommandLine
from lab_model import complete, embed
from lab_recipes import words, write
from on_nodes import started

pytestmark = pytest.mark.lab

HOST = "10.89.0.11"
URL = f"http://{HOST}:8000"
CHAT, WORDS = "spark-vllm-lab-paris", "spark-vllm-lab-words"


@pytest.fixture(scope="module")
def user(user: CommandLine) -> CommandLine:
    word_model.write(user.home / "recipes/words")
    write(user, words("embedding"))

    def several(inventory: dict[str, Any]) -> None:
        del inventory["serve"]["recipe"]
        small = {"recipe": "lab-words", "aliases": ["text-embedding-3-small"]}
        inventory["serve"]["recipes"] = ["lab-paris", small]

    return user.with_inventory("several", several)


def vector(model: str, query: str = "") -> list[float]:
    status, found, _ = embed(URL, model, query)
    assert status == 200, found
    return found["data"][0]["embedding"]


def test_two_models_on_one_node_behind_one_endpoint(user):
    document = user.json("up")
    chat, small = document["models"]
    assert (chat["model"], chat["node"], chat["kind"]) == ("paris", "spark1", "chat")
    assert "Paris" in chat["answer"]
    assert (small["aliases"], small["verified"]) == (["text-embedding-3-small"], ["embedding"])
    assert "Paris" in complete(URL, 60)
    assert vector("words") == vector("text-embedding-3-small") == vector("words", "?model=words")
    assert embed(URL, "no-such-model")[0] == 404
    for port in (18000, 18001):  # behind the proxy
        with pytest.raises(ConnectionRefusedError):
            socket.create_connection((HOST, port), 10).close()


def test_each_command_knows_both(user):
    found = user.json("status")
    assert (found["state"], found["problems"]) == ("serving", [])
    assert [(one["model"], one["state"]) for one in found["models"]] == [
        ("paris", "serving"),
        ("words", "serving"),
    ]
    held = user.json("vram")["nodes"][0]["processes"]
    assert {one.get("model") for one in held} == {"paris", "words"}
    checked = user.json("verify", "--model", "text-embedding-3-small")
    assert (checked["model"], checked["kind"], checked["ok"]) == ("words", "embedding", True)
    checks = user.json("doctor", "--probe", "--only", "serving")["checks"]
    assert [check["found"] for check in checks if check["status"] == "fail"] == []


def test_a_dead_one_is_seen_and_repaired_alone(user, spark1):
    chat = started(spark1, CHAT)
    spark1.run(["docker", "kill", WORDS])
    found = user.json("status", status=5)
    assert found["state"] == "degraded"
    assert any("words on spark1: its server is exited" in p for p in found["problems"])
    assert "Paris" in complete(URL, 60)
    assert user.json("up")["changed"] > 0
    assert started(spark1, CHAT) == chat, "the other one was not started again"
    assert user.json("status")["state"] == "serving"

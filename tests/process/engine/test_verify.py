"""`verify` over real HTTP: verdicts, their order, what is not applicable, a server that is lost."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from chat_server import STORY, ChatServer, Reply
from fake_programs import Said
from hypothesis import given
from hypothesis import strategies as st
from piped_cluster import Make, PipedCluster
from serve_plans import recipe_of, server_for
from waiting import until

from spark_cluster.config.recipe import Recipe
from spark_cluster.engine import readiness_checks, verify
from spark_cluster.engine.answer_checks import incoherent
from spark_cluster.engine.names import SERVER
from spark_cluster.engine.proxy import DESCRIPTION
from spark_cluster.engine.verify import CheckSelection, RunningServer, Verification
from spark_cluster.errors import Failed, UsageError, VerificationFailed
from spark_cluster.node import replies
from spark_cluster.node.containers import NEEDS, parse_state

Verified = Callable[..., Verification]

FLAGS = {"tool-call-parser": "gemma4", "reasoning-parser": "gemma4"}


def recipe(*rungs: str) -> Recipe:
    return recipe_of("org/gemma", "gemma", readiness={"rungs": list(rungs) or ["answer"]})


@pytest.fixture
def verified(server: ChatServer, one_node: PipedCluster) -> Verified:
    """`verified(*rungs, only=..., skip=...)`: what `verify` finds from a node."""

    def verified(*rungs: str, **selection: Any) -> Verification:
        running, chosen = RunningServer(server.endpoint, "r", 1, "chat", FLAGS), recipe(*rungs)
        return verify.verify(
            one_node.play, running, chosen, CheckSelection(**selection), patience_s=10
        )

    return verified


def test_a_healthy_server(server: ChatServer, verified: Verified) -> None:
    found = verified()
    assert {verdict.status for verdict in found.verdicts} == {"ok"}
    assert [v.id for v in found.verdicts] == [
        check.id for check in readiness_checks.of_kind("chat")
    ]
    document = found.to_dict()
    assert document["ok"] is True
    assert all(check["seconds"] >= 0 and check["found"] for check in document["checks"])


def test_a_failure_says_what_was_asked_expected_found_and_what_to_do(server, verified):
    server.change = lambda _request, reply: Reply("!!!!") if not reply.calls else None
    found = verified(only=("short_answers", "tool_call"))
    (verdict,) = found.failed
    assert (verdict.id, verdict.status) == ("short-answers", "failed")
    assert "capital of France" in verdict.request
    assert "paris" in verdict.expected
    assert "!!!!" in verdict.found
    assert "models verify" in verdict.fix
    assert (found.count("ok"), found.to_dict()["ok"]) == (2, False)


def without_parser(request: dict[str, Any]) -> tuple[int, str] | None:
    message = '"auto" tool choice requires --enable-auto-tool-choice'
    return (400, message) if request.get("tools") else None


def test_what_the_server_cannot_do_is_not_applicable_unless_the_recipe_promises_it(
    server: ChatServer, verified: Verified
) -> None:
    server.refuse = without_parser
    found = verified()
    assert (found.failed, found.count("not applicable")) == ((), 8)
    assert "tool choice" in next(v.found for v in found.verdicts if v.status == "not applicable")
    found = verified("answer", "tool_call")
    assert [verdict.id for verdict in found.failed] == ["tool-one", "tool-one-streamed"]
    assert found.count("not applicable") == 6


def test_a_toy_is_asked_only_what_its_recipe_promises(server, one_node):
    made = recipe("answer", "logprobs")
    toy = made.model_copy(update={"readiness": made.readiness.model_copy(update={"toy": True})})
    running = RunningServer(server.endpoint, "r", 1, "chat", FLAGS)

    def asked(*only: str) -> list[str]:
        found = verify.verify(one_node.play, running, toy, CheckSelection(only), patience_s=10)
        return [verdict.id for verdict in found.verdicts if verdict.status == "ok"]

    assert asked() == ["answer", "logprobs"]
    assert asked("coherence") == ["coherence"]


def test_a_server_that_is_lost_is_not_waited_for_again(server, verified):
    server.close()
    found = verified(skip=("answer",))
    assert [verdict.status for verdict in found.verdicts[:2]] == ["failed", "not run"]
    assert {verdict.status for verdict in found.verdicts[1:]} == {"not run"}
    assert "the server is gone" in found.verdicts[-1].found


def test_a_selection_by_check_and_by_rung(server: ChatServer, verified: Verified) -> None:
    found = verified(only=("tool_call", "vision-scene"), skip=("tool-one",))
    assert [verdict.id for verdict in found.verdicts] == ["tool-one-streamed", "vision-scene"]
    with pytest.raises(UsageError, match="no check of a model of kind chat is selected"):
        verified(only=("embedding",))
    with pytest.raises(UsageError, match="unknown check tools"):
        CheckSelection(("tools",)).must_be_known()
    with pytest.raises(UsageError) as misspelt:
        CheckSelection((), ("tool-onne",)).must_be_known()
    assert misspelt.value.hint == "did you mean 'tool-one'?"
    CheckSelection(("tool_use", "tool-one"), ("embedding",)).must_be_known()


# -- the server that runs --------------------------------------------------------------------------


COMMAND = ["serve", "/srv/models/gemma", "--tool-call-parser", "gemma4", "--enforce-eager"]
LABELS = {
    "spark-cluster.endpoint": "http://127.0.0.1:8000/v1",
    "spark-cluster.model": "gemma",
    "spark-cluster.recipe": "r",
    "spark-cluster.tp": "2",
}


@pytest.fixture
def cluster(piped_cluster: Make) -> PipedCluster:
    return piped_cluster("spark1", "spark2")


def test_the_running_server_tells_what_it_is(cluster: PipedCluster) -> None:
    cluster.head.run_container(SERVER, LABELS, COMMAND)
    found = verify.running_server(cluster.play, None)
    assert (found.recipe, found.tp, found.kind, found.endpoint.model) == ("r", 2, "chat", "gemma")
    assert found.flags == {"tool-call-parser": "gemma4", "enforce-eager": ""}


@pytest.mark.parametrize(
    ("runs", "said"),
    [
        ({}, "nothing serves"),
        ({"labels": LABELS, "status": "exited"}, "the server is exited"),
        ({"labels": {}}, "names no endpoint"),
    ],
)
def test_without_a_server(cluster, runs, said):
    if runs:
        cluster.head.run_container(SERVER, command=COMMAND, **runs)
    with pytest.raises(Failed, match=said) as caught:
        verify.running_server(cluster.play, None)
    assert "spark-cluster up" in caught.value.hint


MODEL = {"node": "spark2", "address": "192.168.177.12", "port": 18001, "kind": "chat"}
SEVERAL = json.dumps(
    {
        "url": "http://10.0.0.1:8000/v1", "api_key": False, "tls": None,
        "models": [
            {**MODEL, "names": ["paris"], "program": "spark-vllm-a"},
            {**MODEL, "names": ["gemma", "g"], "program": "spark-vllm-r"},
        ],
    }
)  # fmt: skip


@pytest.mark.parametrize("name", ["gemma", "g"])
def test_one_of_several_models_is_asked_through_the_endpoint(cluster, name):
    cluster.head.put(DESCRIPTION, SEVERAL)
    cluster.nodes["spark2"].run_container("spark-vllm-r", LABELS, COMMAND)
    found = verify.running_server(cluster.play, None, name)
    assert (found.recipe, found.program) == ("r", "spark-vllm-r")
    assert (found.endpoint.url, found.endpoint.model) == ("http://10.0.0.1:8000/v1", "gemma")


@pytest.mark.parametrize("status", ["created", "exited"])
def test_one_that_is_loaded_on_request_is_to_be_asked_for_first(cluster, status):
    cluster.head.put(DESCRIPTION, SEVERAL)
    told = {**LABELS, NEEDS: "15.7"}
    cluster.nodes["spark2"].run_container("spark-vllm-r", told, COMMAND, status=status)
    with pytest.raises(Failed, match="g is loaded on request, and is not loaded now") as caught:
        verify.running_server(cluster.play, None, "g")
    assert "ask the endpoint for it" in caught.value.hint


@pytest.mark.parametrize(
    ("description", "name", "text"),
    [
        (SEVERAL, None, "the endpoint has 2 models"),
        (SEVERAL, "x", "the endpoint has no model 'x'"),
        (None, "x", "the endpoint has one model"),
    ],
)
def test_the_model_must_be_named_where_there_are_several(cluster, description, name, text):
    cluster.head.run_container(SERVER, LABELS, COMMAND)
    if description is not None:
        cluster.head.put(DESCRIPTION, description)
    with pytest.raises(UsageError, match=text):
        verify.running_server(cluster.play, None, name)


def test_answers_at_two_sizes_are_compared(server, one_node, tmp_path):
    only, found = CheckSelection(("short_answers", "structured_output")), []
    for tp, word in ((1, "Paris"), (2, "**paris**")):
        server.change = lambda _asked, reply, word=word: (
            Reply(word) if reply.content == "Paris." else reply
        )
        running = RunningServer(server.endpoint, "r", tp, "chat", FLAGS)
        made = verify.verify(one_node.play, running, recipe(), only)
        found.append(verify.with_other_sizes(made, running, recipe(), tmp_path))
    assert found[0].other_sizes == ()
    (size,) = found[1].other_sizes
    assert (size.tp, size.same) == (1, ("structured-output",))
    assert [one.id for one in size.different] == ["short-answers"]
    assert found[1].to_dict()["other_sizes"][0]["tp"] == 1


def test_the_memory_that_is_held_meanwhile(verified, piped_cluster, monkeypatch):
    """The largest reading of each node; a reading that fails ends no check."""
    monkeypatch.setattr(verify, "MEMORY_EVERY_S", 0.001)
    cluster = piped_cluster("spark1")
    readings = iter([5, 9, 7])

    def nvidia_smi(_words: list[str], _stdin: str) -> Said:
        used = next(readings, None)
        if used is None:
            return Said(stderr="NVRM: no answer\n", status=9)
        return Said(f"7, VLLM::Worker, {used}\n")

    cluster.head.programs["nvidia-smi"] = nvidia_smi
    whole = verified()

    def check() -> Verification:
        until(lambda: bool(cluster.notes), what="a reading that fails")
        return whole

    found = verify.with_memory(cluster.play, check)
    assert [one.used_mib for one in found.under_load] == [9]
    (note,) = cluster.notes
    assert note.startswith("no further readings of GPU memory: nvidia-smi does not answer")
    assert found.to_dict()["under_load"][0]["used_mib"] == 9


# --- the rungs of a recipe in their order, and the judgement of texts and pictures ---------------


Climb = Callable[..., str]


@pytest.fixture
def climb(server: ChatServer, one_node: PipedCluster) -> Climb:
    """`climb(*names)`: make these checks of the server, from a node."""

    def climb(*names: str) -> str:
        recipe = recipe_of("org/gemma", "gemma", readiness={"rungs": list(names)})
        made = replace(server_for(recipe, one_node.play.head), endpoint=server.endpoint)
        return readiness_checks.run_all(one_node.play, made)

    return climb


def test_rungs_in_their_order(server: ChatServer, climb: Climb) -> None:
    assert climb("vision", "answer", "tool_call") == "Paris."
    kinds = [isinstance(request["messages"][0]["content"], list) for request, _ in server.asked]
    assert kinds == [True, True, False, False, False]
    assert ["tools" in request for request, _ in server.asked[-2:]] == [True, True]


def test_a_rung_fails_at_its_first_check(server: ChatServer, climb: Climb) -> None:
    server.change = lambda _request, _reply: Reply("no")
    with pytest.raises(VerificationFailed, match="the tool was not called"):
        climb("tool_call", "answer")
    assert len(server.asked) == 1


def test_a_rung_that_is_promised_must_hold(server: ChatServer, climb: Climb) -> None:
    server.refuse = lambda _request: (400, "gemma is not a multimodal model")
    with pytest.raises(VerificationFailed, match="is not a multimodal model"):
        climb("vision")


@given(st.recursive(st.none() | st.integers() | st.text(max_size=5), st.lists, max_leaves=5))
def test_odd_documents_have_a_reading(document: Any) -> None:
    body = json.dumps(document)
    replies.error(body)
    parse_state(body)


# -- judging -----------------------------------------------------------------------------------

MONTHS = "\n".join(f"{n}. The month number {n}, with what grows in it." for n in range(1, 10))
CHINESE = "灯塔的看守人在岩石上住了三十年。他叫得出每一阵风的名字。他多带了一桶油上楼。"
SOUND = [STORY, STORY[:90], "Paris", "2 + 2 = 4, and 3 * 3 = 9.", CHINESE, MONTHS]
UNSOUND = ["", " \n", "!" * 50, "<pad>" * 80, "the " * 100, "0.0 1.1 " * 40, STORY + " again" * 150]


@pytest.mark.parametrize(
    ("text", "sound"), [*((one, True) for one in SOUND), *((one, False) for one in UNSOUND)]
)
def test_which_texts_are_sound(text, sound):
    assert (incoherent(text) == "") is sound


@given(st.text(min_size=1, max_size=60), st.integers(30, 60))
def test_a_loop_is_found_whatever_it_says(piece, times):
    assert incoherent(piece * times) or len(piece * times) < 3 * 16

"""`verify` over real HTTP: verdicts, their order, what is not applicable, a server that is lost."""

import json
from collections.abc import Callable
from dataclasses import asdict, replace
from functools import partial
from typing import Any

import pytest
from cases import cases, holds
from chat_server import STORY, ChatServer, Reply
from fake_programs import Said
from hypothesis import given
from hypothesis import strategies as st
from piped_cluster import PipedCluster
from serve_plans import recipe_of, server_for
from waiting import until

from spark_cluster.config.recipe import Recipe
from spark_cluster.engine import readiness_checks, verify
from spark_cluster.engine.answer_checks import incoherent
from spark_cluster.engine.proxy import DESCRIPTION
from spark_cluster.engine.verify import CheckSelection, RunningServer, Verification
from spark_cluster.errors import Failed, UsageError, VerificationFailed
from spark_cluster.node import replies
from spark_cluster.node.containers import parse_state

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
    assert all(check["seconds"] >= 0 and check["found"] for check in found.to_dict()["checks"])


def without_parser(request: dict[str, Any]) -> tuple[int, str] | None:
    message = '"auto" tool choice requires --enable-auto-tool-choice'
    return (400, message) if request.get("tools") else None


def test_what_the_server_cannot_do_is_not_applicable_unless_the_recipe_promises_it(
    server, verified
):
    server.refuse = without_parser
    found = verified()
    assert (found.failed, found.count("not applicable")) == ((), 8)
    assert "tool choice" in next(v.found for v in found.verdicts if v.status == "not applicable")
    found = verified("answer", "tool_call")
    assert [verdict.id for verdict in found.failed] == ["tool-one", "tool-one-streamed"]
    assert found.count("not applicable") == 6


def test_a_server_that_is_lost_is_not_waited_for_again(server, verified):
    server.close()
    found = verified(skip=("answer",))
    assert [verdict.status for verdict in found.verdicts[:2]] == ["failed", "not run"]
    assert {verdict.status for verdict in found.verdicts[1:]} == {"not run"}
    assert "the server is gone" in found.verdicts[-1].found


def test_a_selection_by_check_and_by_rung(server, verified):
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
RUNNING = cases(__file__, "running.toml")


@pytest.mark.parametrize("case", RUNNING["case"].values(), ids=RUNNING["case"])
def test_which_server_is_asked(piped_cluster, case):
    cluster = piped_cluster("spark1", "spark2")
    for node, program, status, which in case.get("runs", ()):
        labels = RUNNING["labels"][which]
        cluster.nodes[node].run_container(program, labels, COMMAND, status=status)
    if "behind" in case:
        cluster.head.put(DESCRIPTION, json.dumps({**RUNNING["several"], "tls": None}))
    ask = partial(verify.running_server, cluster.play, None, case.get("name"))
    if "said" in case:
        with pytest.raises(UsageError if "usage" in case else Failed, match=case["said"]) as caught:
            ask()
        assert case.get("hint", "") in caught.value.hint
        return
    found = ask()
    assert holds(asdict(found), case["found"]), found
    assert found.flags == {"tool-call-parser": "gemma4", "enforce-eager": ""}


def test_the_memory_that_is_held_meanwhile(verified, piped_cluster, monkeypatch):
    """The largest reading of each node; a reading that fails ends no check."""
    monkeypatch.setattr(verify, "MEMORY_EVERY_S", 0.001)
    cluster = piped_cluster("spark1")
    readings = [Said(f"7, VLLM::Worker, {used}\n") for used in (5, 9, 7)]
    fails = Said(stderr="NVRM: no answer\n", status=9)
    cluster.head.programs["nvidia-smi"] = lambda *_: readings.pop(0) if readings else fails

    def check() -> Verification:
        until(lambda: bool(cluster.notes), what="a reading that fails")
        return verified(only=("answer",))

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


def test_rungs_in_their_order(server, climb):
    assert climb("vision", "answer", "tool_call") == "Paris."
    kinds = [isinstance(request["messages"][0]["content"], list) for request, _ in server.asked]
    assert kinds == [True, True, False, False, False]
    assert ["tools" in request for request, _ in server.asked[-2:]] == [True, True]


def test_a_rung_fails_at_its_first_check(server, climb):
    server.change = lambda _request, _reply: Reply("no")
    with pytest.raises(VerificationFailed, match="the tool was not called"):
        climb("tool_call", "answer")
    assert len(server.asked) == 1


def test_a_rung_that_is_promised_must_hold(server, climb):
    server.refuse = lambda _request: (400, "gemma is not a multimodal model")
    with pytest.raises(VerificationFailed, match="is not a multimodal model"):
        climb("vision")


@given(st.recursive(st.none() | st.integers() | st.text(max_size=5), st.lists, max_leaves=5))
def test_odd_documents_have_a_reading(document):
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

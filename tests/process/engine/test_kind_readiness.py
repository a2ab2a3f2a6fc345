"""Rungs of embedding, reranking and transcription models, over real HTTP, right and wrong."""

import email
import io
import json
import wave
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
from cases import cases
from hostile import odd_json
from hypothesis import given
from hypothesis import strategies as st
from piped_cluster import PipedCluster
from serve_plans import recipe_of, server_for, snapshot_of
from web_server import Answer, Asked, WebServer

from spark_cluster.config.recipe import Recipe
from spark_cluster.engine import deployment, readiness_checks
from spark_cluster.engine.answer_checks import Client
from spark_cluster.engine.deployment import Endpoint
from spark_cluster.errors import VerificationFailed
from spark_cluster.node.containers import KIND
from spark_cluster.runner.session import Session

PROBE = Recipe.model_fields["probe"].default
TEXTS = {
    "sentence": readiness_checks.SENTENCE,
    "related": readiness_checks.RELATED,
    "unrelated": readiness_checks.UNRELATED,
}
VECTORS = {
    TEXTS["sentence"]: [0.6, 0.8, 0.0],
    TEXTS["related"]: [0.8, 0.6, 0.0],
    TEXTS["unrelated"]: [0.0, 0.6, 0.8],
}
NAN = "NaN"
KIND_RUNGS = {
    name: readiness_checks.CHECKS_BY_NAME[name][0].run
    for name in ("embedding", "reranking", "transcription")
}


class Server(WebServer):
    """A server that speaks vLLM's formats; each field is a way to go wrong.

    Args:
        session: of the node from which it is asked.
    """

    def __init__(self, session: Session) -> None:
        self.session = session
        self.vectors: dict[str, Any] = dict(VECTORS)
        self.second: list[Any] | None = None
        """The vector of a request with one text, when it is another than in a batch."""
        self.scores = [0.001, 0.999]
        self.paths = {"/v1/embeddings", "/v1/rerank", "/v1/audio/transcriptions"}
        self.text: Any = ""
        self.raw: tuple[int, str] | None = None
        super().__init__()

    def answer(self, asked: Asked) -> Answer:
        if self.raw is not None:
            return self.raw
        if asked.path not in self.paths:
            return 404, '{"detail":"Not Found"}'
        if asked.path == "/v1/audio/transcriptions":
            return 200, {"text": self.text, "usage": {"type": "duration", "seconds": 1}}
        found = self.ranking(asked.path)
        if asked.path == "/v1/embeddings":
            found = self.embeddings(asked.document)
        return 200, json.dumps(found).replace(f'"{NAN}"', NAN)

    def embeddings(self, asked: dict[str, Any]) -> dict[str, Any]:
        texts = asked["input"]
        rows = [self.vectors.get(text, [1.0, 0.0, 0.0]) for text in texts]
        if len(texts) == 1 and self.second is not None:
            rows = [self.second]
        data = [{"index": at, "object": "embedding", "embedding": row}
                for at, row in enumerate(rows)]  # fmt: skip
        return {"object": "list", "model": "m", "data": data[::-1]}

    def ranking(self, path: str) -> dict[str, Any]:
        key = "score" if path == "/score" else "relevance_score"
        rows = [{"index": at, key: score} for at, score in enumerate(self.scores)]
        rows.sort(key=lambda row: -float(row[key]))
        return {"model": "m", "data" if path == "/score" else "results": rows}

    @property
    def endpoint(self) -> Endpoint:
        return Endpoint("127.0.0.1", self.server_port, "m", "hunter2")

    def climb(self, rung: str, **known: Any) -> str:
        client = Client(self.session, self.endpoint, "spark1", **known)
        return KIND_RUNGS[rung](client)


@pytest.fixture
def server(one_node: PipedCluster) -> Iterator[Server]:
    with Server(one_node.play.session(one_node.play.head)) as made:
        yield made


def test_an_embedding_model_that_works(server):
    assert server.climb("embedding") == "3 numbers; cosine 0.96 related, 0.48 unrelated"
    first, second = (asked.document for asked in server.asked)
    assert (first["encoding_format"], len(first["input"]), len(second["input"])) == ("float", 3, 1)
    assert server.climb("embedding", dimensions=(3, 768))


def test_a_reranker_that_works_at_each_path(server):
    for path in ("/v1/rerank", "/rerank", "/score"):
        server.paths = {path}
        assert server.climb("reranking") == "relevant 0.999, irrelevant 0.001"
        assert server.asked[-1].path == path
    asked = server.asked[0].document
    assert asked["documents"].index("Paris is the capital of France.") == readiness_checks.RELEVANT


def test_transcription_gets_a_whole_wav_file(server):
    assert "whether words are right is not verified" in server.climb("transcription")
    (asked,) = server.asked
    head = f"Content-Type: {asked.headers['Content-Type']}\r\n\r\n"
    parts = email.message_from_bytes(head.encode() + asked.body)
    fields = {part.get_param("name", header="content-disposition"): part.get_payload(decode=True)
              for part in parts.walk() if not part.is_multipart()}  # fmt: skip
    assert fields["model"] == b"m"
    content = fields["file"]
    with wave.open(io.BytesIO(content)) as sound:
        assert (sound.getframerate(), sound.getnchannels(), sound.getnframes()) == (
            16_000, 1, 16_000)  # fmt: skip


WRONG = cases(__file__, "wrong_kinds.json")


@pytest.mark.parametrize(
    ("rung", "title"), [(rung, title) for title, case in WRONG.items() for rung in case["checks"]]
)
def test_what_is_wrong_is_found(server, rung, title):
    fields = dict(WRONG[title]["fields"])
    if "vectors" in fields:
        fields["vectors"] = VECTORS | {TEXTS[name]: row for name, row in fields["vectors"].items()}
    for name, value in fields.items():
        setattr(server, name, value)
    assert WRONG[title].get("hint", "") in failed(server, rung, title).hint


def test_an_unnormalised_model_is_believed_when_the_recipe_says_so(server):
    server.vectors = {text: [3 * n for n in row] for text, row in VECTORS.items()}
    failed(server, "embedding", "a vector has the length 3, expected 1")
    assert server.climb("embedding", normalized=False)
    server.vectors[TEXTS["related"]] = [0.0, 0.0, 0.0]
    failed(server, "embedding", "is nearer to 'The central bank", normalized=False)


def test_a_server_that_is_not_there(server):
    client = Client(server.session, Endpoint("127.0.0.1", 1, "m"), "spark1")
    for rung, climb in KIND_RUNGS.items():
        with pytest.raises(VerificationFailed, match=rf"{rung}: .*status 0\): .*refused"):
            climb(client)


def failed(server: Server, rung: str, text: str, **known: Any) -> VerificationFailed:
    with pytest.raises(VerificationFailed) as caught:
        server.climb(rung, **known)
    assert text in caught.value.message
    assert caught.value.message.startswith(f"{rung}: ")
    assert caught.value.hint
    assert caught.value.where == "spark1"
    return caught.value


def test_the_short_request_of_status(server):
    def probed(kind: Any) -> Any:
        return deployment.probe_once(server.session, server.endpoint, kind, PROBE, timeout=5)

    server.scores = [0.5]
    assert probed("embedding").text == "3 numbers"
    assert probed("reranking").text == "score 0.5"
    assert probed("transcription").text == "a transcript"
    server.raw = (200, "<html>")
    for kind in ("embedding", "reranking", "transcription"):
        found = probed(kind)
        assert (found.status, found.text) == (200, "")
        assert found.why
    server.raw = (503, "loading")
    assert (probed("embedding").status, probed("embedding").why) == (503, "loading")


FILES = cases(__file__, "model_files.json")


@pytest.mark.parametrize(("config", "dense", "sizes"), FILES["dimensions"])
def test_the_size_of_embeddings_comes_from_the_models_files(config, dense, sizes):
    assert readiness_checks.dimensions(config, dense) == tuple(sizes)


@pytest.mark.parametrize(("modules", "folders"), FILES["dense_folders"])
def test_a_projection_is_looked_for_in_its_own_folder_only(modules, folders):
    assert readiness_checks.dense_folders(modules) == folders


@pytest.mark.parametrize(("flags", "normalized"), FILES["normalized"])
def test_a_recipe_may_switch_the_unit_length_off(flags, normalized):
    assert readiness_checks.normalized(flags) is normalized


ODD = odd_json("data", "results", "index", "embedding", "score", "text", "model")


@pytest.fixture(scope="module")
def foreign(one_node: PipedCluster) -> Iterator[Server]:
    """A server that answers each request with the same."""
    with Server(one_node.play.session(one_node.play.head)) as made:
        yield made


@given(ODD, st.sampled_from(sorted(KIND_RUNGS)))
def test_any_reply_gets_a_verdict(foreign, document, rung):
    foreign.raw = (200, json.dumps(document))
    try:
        foreign.climb(rung)
    except VerificationFailed as error:
        assert error.message.startswith(rung)


@pytest.mark.parametrize(("hidden", "verified"), [(3, True), (1024, False)])
def test_up_climbs_with_the_size_that_the_models_files_say(server, piped_cluster, hidden, verified):
    cluster = piped_cluster("spark1")
    plan = replace(server_for(recipe_of("org/embed"), cluster.play.head), endpoint=server.endpoint)
    size = json.dumps({"hidden_size": hidden})
    cluster.head.put(f"{snapshot_of('org/embed')}/config.json", size)
    if verified:
        assert readiness_checks.run_all(cluster.play, plan).startswith("3 numbers; cosine")
        assert plan.labels[KIND] == "embedding"
        return
    with pytest.raises(VerificationFailed, match="3 numbers, expected 1024"):
        readiness_checks.run_all(cluster.play, plan)

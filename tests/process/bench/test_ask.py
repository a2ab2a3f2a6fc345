"""Questions to a server that answers as vLLM does, asked by the program that is sent to a node."""

import contextlib
import json
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import chat_server
import pytest
from bench_runs import suite_of
from cases import each_row
from chat_server import Reply
from factories import make_node, make_recipe
from serve_plans import deployment_for
from web_server import WebServer

from spark_cluster.bench import generators, on_node
from spark_cluster.bench.expansion import At, expand
from spark_cluster.bench.record import CellResult
from spark_cluster.node import completions
from spark_cluster.node.measure import PLAN
from spark_cluster.runner import wire


@pytest.fixture
def server() -> Iterator[WebServer]:
    """A server whose `answer` is the test's: from a request to a status and lines."""
    with WebServer() as served:
        yield served


@pytest.fixture
def url(server: WebServer) -> str:
    return f"{server.url}/v1"


def says(server: WebServer, answer: Callable[[dict[str, Any]], tuple[int, str]]) -> None:
    server.answer = lambda asked: answer(asked.document)  # type: ignore[method-assign]


def reply(content: str, *calls: tuple[str, str], stream: bool = False) -> str:
    """A completion as vLLM writes it, whole or as a stream."""
    made = Reply(content, calls=list(calls))
    return "".join(chat_server.stream(made)) if stream else chat_server.whole(made)


def measured(
    tmp_path: Path, url: str, kind: str, *names: str, runs: int = 1
) -> tuple[CellResult, dict[str, Any], str]:
    """Ask a suite's questions with the real program; returns the result, its file, its output."""
    suite = suite_of(kind=kind, questions=names, runs=runs)
    (cell,) = expand(suite).cells
    nowhere = deployment_for(make_recipe(), make_node("spark1"))
    asks = generators.of(suite)
    how = asks.measurement(At(suite, nowhere, url, str(tmp_path)), cell)
    (tmp_path / "raw").mkdir()
    plan = {"cells": [{"id": cell.id, **asdict(how)}]}
    (tmp_path / PLAN).write_text(json.dumps(plan))
    (tmp_path / on_node.ARCHIVE).write_bytes(wire.archive(on_node.MAIN, on_node.ASK))
    (program,) = how.runs
    done = subprocess.run(
        [sys.executable, *program.argv[1:]], capture_output=True, text=True, timeout=60,
        env={"http_proxy": "http://127.0.0.1:1", "HTTP_PROXY": "http://127.0.0.1:1"}, check=True,
    )  # fmt: skip
    text = (tmp_path / f"raw/{cell.id}.json").read_text()
    (found,) = asks.results(suite, cell, {f"{cell.id}.json": text})
    return found, json.loads(text), done.stdout


def test_pictures(tmp_path, server, url):
    right = {"Which colour is this": "Red.", "How many": "There are 3."}

    def see(body: dict[str, Any]) -> tuple[int, str]:
        picture, text = body["messages"][0]["content"]
        assert picture["image_url"]["url"].startswith("data:image/png;base64,")
        said = next((a for q, a in right.items() if text["text"].startswith(q)), "A triangle")
        return 200, reply(said, stream=True)

    says(server, see)
    found, raw, printed = measured(tmp_path, url, "vision", "colour", "count", "shape", runs=2)
    assert (found.status, found.reason) == ("ok", "")
    assert found.metrics["score"].values == (2 / 3, 2 / 3)
    assert {"answer_ms", "ttft_ms", "output_tps"} <= found.metrics.keys()
    by_name = {one.question: one for one in found.questions}
    assert (by_name["colour"].right, by_name["colour"].asked, by_name["colour"].wrong) == (2, 2, "")
    assert by_name["shape"].wrong == '"A triangle" has no circle'
    assert by_name["shape"].right == 0
    assert 0 < by_name["count"].ttft_ms <= by_name["count"].answer_ms
    assert "triangle" in json.dumps(raw), "what the server said is kept"
    assert "run 2, count:" in printed
    asked = server.asked[0]
    assert (asked.path, asked.document["temperature"]) == ("/v1/chat/completions", 0)
    assert asked.document["model"] == "gemma-4-31b"
    assert "Authorization" not in asked.headers


def test_tools_in_steps(tmp_path, server, url):
    def assistant(body: dict[str, Any]) -> tuple[int, str]:
        results = [one["content"] for one in body["messages"] if one["role"] == "tool"]
        if not results:
            call = ("get_weather", '{"city": "Paris, France"}')
            return 200, reply("", call, stream=body["stream"])
        ids = [call["id"] for call in body["messages"][1]["tool_calls"]]
        assert ids == [body["messages"][2]["tool_call_id"]] == ["c0"]
        return 200, reply(f"It is {results[0]} there", stream=body["stream"])

    says(server, assistant)
    names = ("one", "one-streamed", "steps", "steps-streamed")
    found, raw, _ = measured(tmp_path, url, "tool_call", *names)
    assert found.metrics["score"].mean == 1.0, found.questions
    assert [len(one["rounds"]) for one in raw["answers"]] == [1, 1, 2, 2]
    assert [one.streamed for one in found.questions] == [False, True, False, True]
    assert found.questions[0].ttft_ms is None, "not known of an answer that is not streamed"


@each_row(__file__, "failed_questions.json", "answers")
def test_a_server_without_a_whole_answer(tmp_path, server, url, kind, status, text, why):
    """It cannot do what is asked, breaks off, says too much, or is gone."""
    text = text.replace("ENDLESS", "x" * (completions.BODY_BYTES + 1))
    says(server, lambda _: (status, text))
    found, _, _ = measured(tmp_path, url if status else "http://127.0.0.1:1/v1", kind)
    assert found.status == "failed"
    assert why in found.reason
    assert found.metrics == {}


def test_one_question_that_is_refused_is_a_wrong_answer(tmp_path, server, url):
    def some(body: dict[str, Any]) -> tuple[int, str]:
        if "html" in json.dumps(body).lower():
            return 500, "the parser failed"
        return 200, reply("", ("get_weather", '{"city": "paris"}'), stream=body["stream"])

    says(server, some)
    found, _, _ = measured(tmp_path, url, "tool_call", "one", "markup-streamed")
    assert found.status == "ok"
    assert found.metrics["score"].mean == 0.5
    assert found.attention == ("1 of 2 questions got no answer: HTTP 500: the parser failed",)


def test_an_answer_without_end():
    """Each line comes in time, all of them do not."""

    def drip() -> None:
        connection, _ = listener.accept()
        with connection, contextlib.suppress(OSError):
            connection.sendall(b"HTTP/1.1 200 OK\r\n\r\n")
            while True:
                connection.sendall(b"data: {}\n")
                time.sleep(0.05)

    with socket.create_server(("127.0.0.1", 0)) as listener:
        threading.Thread(target=drip, daemon=True).start()
        url = f"http://127.0.0.1:{listener.getsockname()[1]}/v1"
        work = {"base_url": url, "model": "paris", "answer_s": 0.5}
        question = {"id": "q", "messages": [], "stream": True, "max_tokens": 5}
        (found,) = completions.answer(work, question)
    assert (found["status"], found["error"]) == (0, "the answer took too long")


def test_a_model_that_calls_tools_without_end(server, url):
    call = ("get_weather", '{"city": "Paris"}')
    says(server, lambda _: (200, reply("", call)))
    work = {"base_url": url, "model": "paris", "answer_s": 30}
    question = {"id": "q", "messages": [{"role": "user", "content": "?"}], "stream": False,
                "max_tokens": 5, "results": {"get_weather": "17"}}  # fmt: skip
    assert len(completions.answer(work, question)) == completions.ROUNDS


def test_replies_that_are_too_many_are_not_all_kept(tmp_path, server, url, capsys):
    says(server, lambda _: (200, reply("\u20ac" * 500)))
    question = {"id": "q", "messages": [], "stream": False, "max_tokens": 5}
    work = {"base_url": url, "model": "paris", "answer_s": 30, "runs": 3, "questions": [question],
            "largest_bytes": 16_000}  # fmt: skip
    (tmp_path / "raw").mkdir()
    plan = {"cells": [{"id": "a", "questions": work}]}
    (tmp_path / PLAN).write_text(json.dumps(plan))
    completions.ask_all(tmp_path, "a")
    text = (tmp_path / "raw/a.json").read_text()
    assert len(text.encode()) <= 16_000, "as much as is copied, and not as many characters"
    found = json.loads(text)["answers"]
    assert [bool(one["rounds"][0]["body"]) for one in found] == [True, False, False]
    assert found[2]["rounds"][0]["message"]["content"] == "\u20ac" * 500
    assert "run 3, q:" in capsys.readouterr().out


@each_row(__file__, "failed_questions.json", "files")
def test_a_file_that_is_none(data, why):
    suite = suite_of(kind="vision", questions=["colour"])
    (cell,) = expand(suite).cells
    found = generators.judged(replace(cell, runs=1), generators.of_suite(suite), data)
    assert found.status == "failed"
    assert why in found.reason

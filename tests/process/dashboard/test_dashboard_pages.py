"""The pages of `dashboard`: who gets them, what is in them, and how they end."""

from __future__ import annotations

import asyncio
import re
import socket
import sys
from datetime import UTC, datetime, timedelta
from pathlib import Path

import ifaddr
import pytest
from factories import put
from starlette.testclient import TestClient

from spark_cluster.bench.record import ProcessMemory
from spark_cluster.bench.sampling import Lost
from spark_cluster.bench.telemetry import TelemetryRow
from spark_cluster.config.ports import LOOPBACK
from spark_cluster.dashboard import server
from spark_cluster.dashboard.server import (
    PUBLIC,
    QUESTIONS,
    BenchRuns,
    CommandQuestions,
    Feed,
    listen,
    make_site,
)
from spark_cluster.errors import Unreachable

HOST = "127.0.0.1:8800"
TOKEN = "the-secret-token"
BEGAN = datetime(2026, 11, 1, tzinfo=UTC)


def row(number: int = 0, node: str = "spark1") -> TelemetryRow:
    return TelemetryRow(
        BEGAN + timedelta(seconds=number), node, mem_total_mib=124_000, mem_available_mib=60_000,
        processes=(ProcessMemory(pid=7, name="VLLM::EngineCore", used_mib=50_000),),
    )  # fmt: skip


def questions(said: str, limit_s: float = 30.0) -> CommandQuestions:
    """Commands that are a program which prints its words, after this code."""
    code = f"import sys, json, time; words = sys.argv[1:]; {said}"
    return CommandQuestions(("-i", "lab"), (sys.executable, "-I", "-S", "-c", code), limit_s)


@pytest.fixture
def runs(tmp_path: Path) -> Path:
    folder = tmp_path / "bench-results"
    (folder / "one" / "report").mkdir(parents=True)
    (folder / "one" / "run.json").write_text("{}")
    (folder / "one" / "report" / "report.html").write_text("<script>alert(1)</script>")
    (tmp_path / "secret.html").write_text("secret")
    return folder


@pytest.fixture
def feed() -> Feed:
    return Feed(["spark1", "spark2"], 1.0)


@pytest.fixture
def client(feed: Feed, runs: Path) -> TestClient:
    asked = questions("print(json.dumps({'words': words}))")
    site = make_site(feed, asked, BenchRuns(runs), TOKEN, frozenset({HOST}))
    return TestClient(site, base_url=f"http://{HOST}", follow_redirects=False)


@pytest.fixture
def user(client: TestClient) -> TestClient:
    """A page that has the token."""
    client.headers["Authorization"] = f"Bearer {TOKEN}"
    return client


PATHS = ["/runs", "/ask/status", "/reports/one", "/samples/0"]


@pytest.mark.parametrize("path", PATHS)
def test_without_the_token_there_is_nothing(client: TestClient, path: str) -> None:
    for query in ("", f"?token={TOKEN}", f"?key={TOKEN}", "?key=é"):
        for headers in ({}, {"Authorization": "Bearer é"}, {"Authorization": TOKEN},
                        {"Cookie": f"token={TOKEN}"}):  # fmt: skip
            refused = client.get(path + query, headers=_latin(headers))
            assert refused.status_code == 403
            assert "token" in refused.text


def _latin(headers: dict[str, str]) -> dict[str, bytes]:
    return {name: value.encode("latin-1") for name, value in headers.items()}


def test_the_page_itself_says_nothing_and_no_answer_sets_a_cookie(client: TestClient) -> None:
    """Browsers send the cookies of this address to every port of it."""
    for path in PUBLIC:
        page = client.get(path)
        assert page.status_code == 200
        assert "set-cookie" not in page.headers
        assert page.headers["cache-control"] == "no-store"
        assert TOKEN not in page.text
        assert "spark1" not in page.text
    client.headers["Authorization"] = f"Bearer {TOKEN}"
    for path in PATHS[:3]:
        answer = client.get(path)
        assert (answer.status_code, "set-cookie" in answer.headers) == (200, False)


def test_the_address_of_a_report_opens_nothing_else(user: TestClient, runs: Path) -> None:
    """It is opened as a page, which cannot have a header; and its scripts can read its address."""
    (runs / "two" / "report").mkdir(parents=True)
    (runs / "two" / "report" / "report.html").write_text("two")
    (run,) = user.get("/runs").json()
    del user.headers["Authorization"]
    path, _, query = run["report"].partition("?")
    assert user.get(f"{path}?{query}").text == "<script>alert(1)</script>"
    assert TOKEN not in query
    for other in ("/reports/two", "/runs", "/ask/status", "/samples/0"):
        assert user.get(f"{other}?{query}").status_code == 403


def test_other_addresses_of_this_machine_are_not_listened_on() -> None:
    listener = listen(0)
    port = listener.getsockname()[1]
    with listener, socket.create_connection((LOOPBACK, port), 10):
        networks = (network for adapter in ifaddr.get_adapters() for network in adapter.ips)
        own = [str(one.ip) for one in networks if one.is_IPv4 and one.ip != LOOPBACK]
        for other in ("127.0.0.2", *own):
            with pytest.raises(OSError, match=r"refused|reach|assign"):
                socket.create_connection((other, port), 10).close()


def test_a_name_that_somebody_else_made_mean_this_machine_is_refused(user: TestClient) -> None:
    assert user.get("/", headers={"Host": "evil.example:8800"}).status_code == 421
    assert user.get("/", headers={"Host": "127.0.0.1:9999"}).status_code == 421


def test_nothing_can_be_changed(user: TestClient) -> None:
    for method in ("POST", "PUT", "DELETE", "OPTIONS"):
        assert user.request(method, "/ask/status").status_code == 405


def test_pages_may_load_from_here_only(user: TestClient) -> None:
    page = user.get("/")
    policy = page.headers["content-security-policy"]
    assert "default-src 'none'" in policy
    assert "unsafe" not in policy
    assert not re.search(r"<script>|<style>|style=|onclick=|https?://", page.text)
    for path in (path for path in PUBLIC if path.endswith(".js")):
        script = user.get(path)
        assert "javascript" in script.headers["content-type"], "no browser guesses: nosniff"
        assert "innerHTML" not in script.text
        assert "eval(" not in script.text


def test_a_command_is_asked_as_a_user_asks_it(user: TestClient) -> None:
    found = user.get("/ask/doctor").json()
    assert found["command"] == "spark-cluster -i lab doctor"
    assert found["document"] == {"words": ["-i", "lab", "--json", "doctor"]}
    assert {*QUESTIONS} == {"status", "vram", "doctor", "history", "logs"}, "that only read"
    refused = user.get("/ask/down")
    assert refused.status_code == 404
    assert "there are status" in refused.text


def test_a_command_that_fails_or_hangs_says_so() -> None:
    failed = asyncio.run(questions("sys.exit('error: spark1: no answer')").ask("status"))
    assert (failed.document, failed.error) == (None, "error: spark1: no answer")
    hanging = asyncio.run(questions("time.sleep(600)", limit_s=0.3).ask("status"))
    assert hanging.error == "no answer within 0.3 s"


def test_no_code_of_the_working_folder_is_run(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    put(tmp_path / "click.py", f"open({str(tmp_path / 'ran')!r}, 'w')\n")
    answer = asyncio.run(CommandQuestions(()).ask("history"))
    assert not (tmp_path / "ran").exists()
    assert answer.document["error"]["message"] == "no such inventory"


def test_a_command_that_runs_is_not_begun_again(tmp_path: Path) -> None:
    asked = questions(
        f"open({str(tmp_path / 'calls')!r}, 'a').write('x'); time.sleep(0.2); print(1)"
    )

    async def twice() -> list[object]:
        found = await asyncio.gather(asked.ask("status"), asked.ask("status"))
        return [one.document for one in found]

    assert asyncio.run(twice()) == [1, 1]
    assert (tmp_path / "calls").read_text() == "x"


def test_a_run_and_its_report(user: TestClient) -> None:
    (run,) = user.get("/runs").json()
    assert run["name"] == "one"
    assert run["error"]
    report = user.get(run["report"])
    assert report.status_code == 200
    policy = report.headers["content-security-policy"]
    assert policy.startswith("sandbox allow-scripts; default-src 'none'")
    assert "same-origin" not in policy


def test_no_other_file_is_served_nor_a_link_followed(user: TestClient, runs: Path) -> None:
    page = runs / "one" / "report" / "report.html"
    page.unlink()
    page.symlink_to(runs.parent / "secret.html")
    out = ("%2e%2e", "..%2f..%2fsecret.html", "one%2f..%2f..", "none", ".one", "one%00", "one")
    for name in out:
        assert user.get(f"/reports/{name}").status_code == 404, name


def test_a_page_gets_what_was_and_what_comes(feed: Feed, user: TestClient) -> None:
    feed.take(row(0))
    first = user.get("/samples/0").json()
    assert [len(first["rows"][name]) for name in first["nodes"]] == [1, 0]
    assert first["options"] == "-i lab", "tells this cluster's page from another's"
    assert user.get(f"/samples/{first['last']}").json()["rows"] == {"spark1": [], "spark2": []}
    feed.take(row(1))
    feed.take(Lost("spark2", Unreachable("no route to host", where="spark2")))
    second = user.get(f"/samples/{first['last']}").json()
    assert [one["time"][-11:] for one in second["rows"]["spark1"]] == [":00:01.000Z"]
    assert second["troubles"]["spark2"] == "no route to host; connecting again"


def test_half_an_hour_is_kept_and_no_more(feed: Feed) -> None:
    for number in range(server.KEPT_S + 10):
        feed.take(row(number))
    assert len(feed.since(0)["rows"]["spark1"]) == server.KEPT_S


def test_a_fault_of_the_samples_is_told_to_the_pages(feed: Feed, user: TestClient) -> None:
    class Source:
        def next(self, _timeout: float) -> None:
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        feed.run(Source())
    reply = user.get("/samples/0")
    assert reply.status_code == 503
    assert "no samples come any more" in reply.text

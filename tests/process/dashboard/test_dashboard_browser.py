"""The dashboard in a real browser: what it draws, on a screen and on a phone, and its end."""

from __future__ import annotations

import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import factories
import pytest
import replayed
import waiting
from browser import Browser, browser, installed

from spark_cluster.cli.top import leading_to
from spark_cluster.config.ports import LOOPBACK

PROGRAM = installed()
pytestmark = pytest.mark.skipif(PROGRAM is None, reason="no Chromium on this machine")

REPORT = "<!doctype html><body><script>document.body.innerText = origin</script>"


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[subprocess.Popen[str]]:
    runs = tmp_path_factory.mktemp("runs")
    factories.put(runs / "one/run.json", "{}")
    factories.put(runs / "one/report/report.html", REPORT)
    argv = [sys.executable, replayed.__file__, str(runs)]
    with subprocess.Popen(argv, stdout=subprocess.PIPE, text=True) as process:
        yield process
        process.kill()


@pytest.fixture(scope="module")
def address(server: subprocess.Popen[str]) -> str:
    assert server.stdout is not None
    return server.stdout.readline().strip()


@pytest.fixture(scope="module")
def page(address: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    assert PROGRAM is not None
    with browser(PROGRAM, tmp_path_factory.mktemp("profile")) as opened:
        opened.open(address, width=1280)
        waiting.until(lambda: "no route" in opened.evaluate("document.body.innerText"))
        yield opened


def shows(page: Browser, text: str) -> bool:
    """Whether the page, which may be being loaded, has this text."""
    return text in page.evaluate("document.body?.innerText ?? ''")


def test_nodes_engine_and_memory_are_drawn(page: Browser) -> None:
    shown = page.evaluate("document.body.innerText")
    for text in ("spark1", "spark2", "VLLM::Worker_TP 56.6 GiB", "throttled: sw_thermal_slowdown",
                 "tokens/s", "live", "all else"):  # fmt: skip
        assert text in shown, shown
    assert page.evaluate("document.querySelectorAll('article .memory path').length") >= 4
    drawn = page.evaluate("document.querySelector('#tokens path').getAttribute('d').length")
    assert drawn > 500
    assert "token" not in page.evaluate("location.href")


def test_what_nodes_say_is_text_and_never_markup(page: Browser) -> None:
    assert page.evaluate("document.querySelectorAll('main b, main i:not([class])').length") == 0
    assert "no route to <i>host</i>; connecting again" in page.evaluate("document.body.innerText")


def test_a_question_shows_its_command(page: Browser) -> None:
    page.evaluate(
        "[...document.querySelectorAll('button')].find((b) => b.textContent === 'doctor').click()"
    )
    waiting.until(lambda: "0 checks are ok" in page.evaluate("document.body.innerText"))
    assert "spark-cluster -i lab doctor took" in page.evaluate("document.body.innerText")


@pytest.fixture
def elsewhere() -> Iterator[tuple[str, list[str]]]:
    """The address of a server on another port, as of a tunnel's end, and what it was sent."""
    sent: list[str] = []

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            sent.append(f"{self.path} {self.headers}")
            self.send_response(200)
            self.end_headers()

        def log_message(self, *_: object) -> None:
            pass

    with ThreadingHTTPServer((LOOPBACK, 0), Handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://{LOOPBACK}:{server.server_port}/", sent
        server.shutdown()


def test_another_port_of_this_machine_is_not_sent_the_token(
    page: Browser, address: str, elsewhere: tuple[str, list[str]]
) -> None:
    where, sent = elsewhere
    page.open(where, width=1280)
    assert sent
    assert address.partition("token=")[2] not in "".join(sent)
    assert "cookie" not in "".join(sent).lower()
    assert page.evaluate("sessionStorage.length") == 0
    page.open(address.partition("#")[0], width=1280)
    waiting.until(lambda: shows(page, "all else"))


def test_a_tab_without_the_token_says_so_until_it_gets_it(page: Browser, address: str) -> None:
    page.evaluate("sessionStorage.clear()")
    page.open(address.partition("#")[0], width=1280)
    waiting.until(lambda: shows(page, "it ends with a token"))
    page.call("Page.navigate", url=address)  # the same page, for the browser
    waiting.until(lambda: shows(page, "all else"))
    assert "token" not in page.evaluate("location.href")
    page.complaints.clear()  # of what was refused


def test_a_report_is_opened_without_the_rights_of_the_page(page: Browser, address: str) -> None:
    link = waiting.until(lambda: page.evaluate("document.querySelector('#runs a')?.href"))
    page.open(link, width=1280)
    assert page.evaluate("document.body.innerText") == "null"  # the report's script ran: its origin
    page.open(address.partition("#")[0], width=1280)
    waiting.until(lambda: shows(page, "all else"))


def test_a_file_leads_to_it(page: Browser, address: str, tmp_path, monkeypatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    page.evaluate("sessionStorage.clear()")
    page.open("about:blank", width=1280)
    with leading_to(address) as file:
        page.call("Page.navigate", url=file.as_uri())
        waiting.until(lambda: shows(page, "all else"))
        assert page.evaluate("location.href") == address.partition("#")[0]


@pytest.mark.parametrize(("width", "dark"), [(390, False), (1280, True)])
def test_it_fits_its_screen(page: Browser, address: str, width: int, dark: bool, tmp_path) -> None:
    page.open(f"{address.partition('#')[0]}", width=width, dark=dark)
    waiting.until(lambda: "all else" in page.evaluate("document.body.innerText"))
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    assert len(page.screenshot(tmp_path / "page.png")) > 10_000
    assert page.complaints == []


def test_ctrl_c_ends_it_while_a_page_is_open(page: Browser, server) -> None:
    assert page.evaluate("document.querySelector('#state').textContent") == "live"
    began = time.monotonic()
    server.send_signal(signal.SIGINT)
    assert server.wait(60) == 130
    assert time.monotonic() - began < 30  # it waits for no page
    waiting.until(lambda: "has `spark-cluster dashboard` ended" in page.evaluate(
        "document.body.innerText"))  # fmt: skip

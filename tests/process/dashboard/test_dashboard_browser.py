"""The dashboard in a real browser: what it draws, on a screen and on a phone, and its end."""

import json
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from typing import Any

import factories
import pytest
import replayed
import waiting
from browser import Browser, browser, installed
from cases import each_case
from json_schema import document
from web_server import WebServer

from spark_cluster.cli.top import leading_to
from spark_cluster.dashboard.server import QUESTIONS

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
    return server.stdout.readline().strip()


@pytest.fixture(scope="module")
def page(address: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    assert PROGRAM is not None
    with browser(PROGRAM, tmp_path_factory.mktemp("profile")) as opened:
        opened.open(address, width=1280)
        waiting.until(lambda: "no route" in opened.evaluate("document.body.innerText"))
        yield opened


def begin(page: Browser, address: str, text: str = "all else", **how: Any) -> None:
    """Open the page without its token, and wait for a text of it."""
    page.open(address.partition("#")[0], **{"width": 1280, **how})
    waiting.until(lambda: shows(page, text))


def shows(page: Browser, text: str) -> bool:
    """Whether the page, which may be being loaded, has this text."""
    return text in page.evaluate("document.body?.innerText ?? ''")


@pytest.mark.parametrize(("command", "answer"), replayed.answers().items())
def test_what_is_drawn_is_what_a_command_prints(command, answer):
    document(command, json.dumps(answer))


def test_nodes_engine_and_memory_are_drawn(page):
    shown = page.evaluate("document.body.innerText")
    for text in ("spark1", "spark2", "VLLM::Worker_TP 56.6 GiB", "throttled: sw_thermal_slowdown",
                 "tokens/s", "live", "all else"):  # fmt: skip
        assert text in shown, shown
    assert page.evaluate("document.documentElement.scrollWidth") <= 1280
    assert page.evaluate("document.querySelectorAll('article .memory path').length") >= 4
    drawn = page.evaluate("document.querySelector('#tokens path').getAttribute('d').length")
    assert drawn > 500
    assert "token" not in page.evaluate("location.href")
    assert (
        page.evaluate(
            "[...document.querySelectorAll('.power .axis')].map(e => e.children[1].textContent)"
        )
        == ["0 to 100 %"] * 2
    ), "a fixed scale, although there are 90 % at most"


def test_what_nodes_say_is_text_and_never_markup(page):
    assert page.evaluate("document.querySelectorAll('main b, main i:not([class])').length") == 0
    assert "no route to <i>host</i>; connecting again" in page.evaluate("document.body.innerText")
    assert page.evaluate("document.title") == "spark1, spark2 (-i lab) · spark-cluster"


def test_the_first_card_says_what_serves_and_when_that_was_read(page):
    waiting.until(lambda: shows(page, "gemma4-31b-fp8"))
    card = page.evaluate("document.querySelector('main > :first-child').innerText")
    for text in (
        "degraded", "gemma-4-31b", "TP=2", "http://192.168.1.11:8000/v1", "with an API key",
        "since", "2026", "spark-cluster -i lab status took", "no route to <i>host</i>",
    ):  # fmt: skip
        assert text in card, card
    for line in (card, page.evaluate("document.querySelector('#sampled').innerText")):
        assert re.search(r"(Read at|last sample) \d\d:\d\d:\d\d", line)


def ask(page: Browser, name: str) -> str:
    """Press the button of a command, and return what the page shows of its answer."""
    page.evaluate("document.querySelector('#asked').textContent = ''")
    page.evaluate(
        f"[...document.querySelectorAll('button')].find(b => b.textContent === '{name}').click()"
    )
    took = f"spark-cluster -i lab {' '.join(QUESTIONS[name])} took"
    asked = "document.querySelector('#asked').textContent"
    waiting.until(lambda: page.evaluate(asked).startswith(took))
    return page.evaluate("document.querySelector('#answer').innerText")


def test_each_command_has_a_view_of_its_own(page):
    buttons = "[...document.querySelectorAll('#questions button')].map(b => b.textContent)"
    assert page.evaluate(buttons) == list(QUESTIONS)
    said = {name: ask(page, name) for name in QUESTIONS}
    assert not [text for text in said.values() if '{"' in text or '": ' in text], "no JSON"
    for name, texts in {
        "status": ("spark-vllm", "spark-ray", "running", "Ray: 2 nodes, 2 GPUs"),
        "vram": ("VLLM::Worker_TP", "58,000", "48,200", "124,500"),
        "doctor": ("1 of 3 checks are ok", "docker.runtime", "memory.swap"),
        "history": ("20261101-120230-77aa", "up --tp 2", "spark1: 3"),
        "logs": ("line 199 of the <u>log</u>",),
    }.items():
        assert not [text for text in texts if text not in said[name]], said[name]
    assert "\x1b" not in said["logs"]
    end = page.evaluate("(e => e.scrollHeight - e.clientHeight - e.scrollTop)"
                        "(document.querySelector('#answer pre'))")  # fmt: skip
    assert end < 2, "the newest line is seen"


@each_case(__file__, "states.json")
def test_each_state_of_serving_can_be_shown(page, case):
    text = json.dumps(case["document"])
    document("status", text)
    words = f"""import("/answers.js").then(({{ shown }}) => shown("status",
        {text}).map((part) => {{
          document.querySelector("#answer").append(part); return part.innerText;
        }}).join(" ").replace(/\\s+/g, " "))"""
    page.evaluate("document.querySelector('#answer').replaceChildren()")
    answer = page.call("Runtime.evaluate", expression=words, awaitPromise=True, returnByValue=True)
    shown = answer["result"]["value"]
    assert '"state"' not in shown, "JSON, which stands for what cannot be shown"
    assert all(word in shown for word in case["words"].split()), shown


def test_a_finding_is_readable_on_a_phone(page, address):
    begin(page, address, width=390)
    ask(page, "doctor")
    widths = "[...document.querySelectorAll('#answer td')].map(e => e.clientWidth)"
    assert min(page.evaluate(widths)) > 250
    code = "[...document.querySelectorAll('#answer code')].map(e => e.textContent)"
    commands = ["docker info", "spark-cluster provision --tags memory --limit spark1"]
    assert page.evaluate(code) == commands
    words = (
        "[...document.querySelectorAll('#answer code span')].map(e => e.getClientRects().length)"
    )
    assert set(page.evaluate(words)) == {1}, "no word of a command is broken"
    assert page.evaluate("document.documentElement.scrollWidth") == 390
    runs = "document.querySelector('#runs .scroll')"
    assert page.evaluate(f"getComputedStyle({runs}).overflowX") == "auto"
    assert page.evaluate(f"{runs}.tabIndex") == 0, "it can be scrolled by keys"
    titles = "[...document.querySelectorAll('th')].map(e => e.textContent)"
    assert "" not in page.evaluate(titles)
    begin(page, address)


def test_another_port_of_this_machine_is_not_sent_the_token(page, address):
    """As that of a tunnel's end."""
    with WebServer(lambda _asked: (200, "")) as elsewhere:
        page.open(f"{elsewhere.url}/", width=1280)
        sent = [f"{asked.path} {asked.headers}" for asked in elsewhere.asked]
    assert sent
    assert address.partition("token=")[2] not in "".join(sent)
    assert "cookie" not in "".join(sent).lower()
    assert page.evaluate("sessionStorage.length") == 0
    begin(page, address)


def test_a_tab_without_the_token_says_so_until_it_gets_it(page, address):
    page.evaluate("sessionStorage.clear()")
    begin(page, address, "it ends with a token")
    page.call("Page.navigate", url=address)  # the same page, for the browser
    waiting.until(lambda: shows(page, "all else"))
    assert "token" not in page.evaluate("location.href")
    page.complaints.clear()  # of what was refused


def test_a_report_is_opened_without_the_rights_of_the_page(page, address):
    link = waiting.until(lambda: page.evaluate("document.querySelector('#runs a')?.href"))
    page.open(link, width=1280)
    assert page.evaluate("document.body.innerText") == "null"  # the report's script ran: its origin
    begin(page, address)


def test_a_file_leads_to_it(page, address, tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    page.evaluate("sessionStorage.clear()")
    page.open("about:blank", width=1280)
    with leading_to(address) as file:
        page.call("Page.navigate", url=file.as_uri())
        waiting.until(lambda: shows(page, "all else"))
        assert page.evaluate("location.href") == address.partition("#")[0]


def test_ctrl_c_ends_it_while_a_page_is_open_of_which_nothing_complained(page, server):
    assert page.complaints == []
    assert page.evaluate("document.querySelector('#state').textContent") == "live"
    began = time.monotonic()
    server.send_signal(signal.SIGINT)
    assert server.wait(60) == 130
    assert time.monotonic() - began < 30  # it waits for no page
    waiting.until(lambda: "has `spark-cluster dashboard` ended" in page.evaluate(
        "document.body.innerText"))  # fmt: skip

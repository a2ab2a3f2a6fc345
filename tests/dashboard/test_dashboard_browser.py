"""The dashboard in a real browser: what it draws, on a screen and on a phone, and its end."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from collections.abc import Iterator

import pytest
import replayed
import waiting
from browser import Browser, browser, installed

PROGRAM = installed()
pytestmark = pytest.mark.skipif(PROGRAM is None, reason="no Chromium on this machine")


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[subprocess.Popen[str]]:
    argv = [sys.executable, replayed.__file__, str(tmp_path_factory.mktemp("runs"))]
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


@pytest.mark.parametrize(("width", "dark"), [(390, False), (1280, True)])
def test_it_fits_its_screen(page: Browser, address: str, width: int, dark: bool, tmp_path) -> None:
    page.open(f"{address.partition('?')[0]}", width=width, dark=dark)
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

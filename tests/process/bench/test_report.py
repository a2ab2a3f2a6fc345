"""The report of a run: what it says, its files, and that foreign text stays text."""

import csv
import json
import os
import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from html.parser import HTMLParser
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from xml.etree import ElementTree

import numpy as np
import pytest
from bench_records import dual_record, sweep_record, write_run
from bench_runs import answered, record, served
from browser import browser, installed
from cases import cases, each_row
from click.testing import CliRunner
from made_once import made_once
from ruamel.yaml import YAML
from waiting import until

from spark_cluster import Cluster
from spark_cluster.bench.record import (
    CellKey,
    CellResult,
    Metric,
    Record,
    RecordedCheck,
    Tool,
    load_record,
)
from spark_cluster.bench.report import COLUMNS, build, engine_command, sections, write_report
from spark_cluster.bench.report.plots import NodeTelemetry, line_of, measured_plots, telemetry_plots
from spark_cluster.bench.report.rendering import Table, escape, fenced, style
from spark_cluster.bench.report.results import Results, answers, headline, verdict
from spark_cluster.bench.report.tables import DECLARED, ROWS, SEVERAL, tables_of
from spark_cluster.cli.app import App
from spark_cluster.cli.bench_results import report as command
from spark_cluster.cli.options import take_globals
from spark_cluster.errors import InvalidFile, UsageError
from spark_cluster.importers import templated

EVIL = (
    "<script>alert(1)</script>\"'><img src=x onerror=alert(2)>{{7*7}}$\\frac{]]>--><!--\x07\u202e|`"
)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The report of a run on one and on two Sparks, made by the command."""

    def make(folder: Path) -> None:
        run = write_run(folder / "run", dual_record())
        take_globals(command)
        result = CliRunner().invoke(command, [str(run), "--json"], obj=App(Cluster()))
        assert result.exit_code == 0, result.output
        document = json.loads(result.stdout)
        assert document["verdict"] == "bad"
        assert all((run / "report" / name).is_file() for name in document["files"])

    return made_once(tmp_path_factory, "bench-report", make) / "run" / "report"


class Page(HTMLParser):
    """Tags, attributes and texts of a page."""

    def __init__(self, text: str) -> None:
        super().__init__(convert_charrefs=True)
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.text = ""
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))

    def handle_data(self, data: str) -> None:
        self.text += data


def table_of(results: Results, name: str) -> Table:
    (table,) = tables_of(results, name)
    return table


# -- what it says ----------------------------------------------------------------------------------


def test_the_headline_names_both_and_the_speed_up():
    results = Results(dual_record())
    assert re.fullmatch(
        r"1\d\.\d+ tok/s for one user on two Sparks \(TP=2\), 1\.7\d× the 6\.\d+ of one Spark\.",
        headline(results),
    )
    said = verdict(results)
    assert said.mark == "bad"
    assert said.title == "gemma-4-31B-it on 2 × DGX Spark"
    assert said.text == "43 of 44 cells measured, 1 failed, 1 to be read with care."


def test_each_purpose_is_answered():
    single, first, many = answers(Results(dual_record()))
    assert single.winner == first.winner == "TP=2"
    assert "as fast as TP=1 (6." in single.text
    assert "d32768" in first.text
    assert "At depth 0" in first.text
    assert "2 × TP=1" in f"{many.winner} {many.text}"


def test_a_sweep_shows_its_speeds_and_acceptance_and_what_was_not_measured():
    results = Results(sweep_record())
    single, _, many = answers(results)
    assert single.winner == single.title == "TP=1 num_speculative_tokens=4"
    assert (many.winner, many.title) == ("", "Not measured")
    assert "two replicas" in many.text
    table = table_of(results, "acceptance")
    assert [row[0].rpartition("=")[2] for row in table.rows] == list("23456")
    assert all(re.fullmatch(r"[678]\d\.\d\d ± \d\.\d\d", row[2]) for row in table.rows)
    assert all(row[3].endswith("%") for row in table.rows)
    with no_png():
        files = build(results, [])
    assert str(files["plots/variants.svg"]).count("<text") > 10


def test_setups_that_would_be_called_alike_are_told_apart():
    record = dual_record(depths=(0,), loads=(1,))
    twins = tuple(record.setups[0].model_copy(update={"id": id}) for id in "ab")
    labels = Results(record.model_copy(update={"setups": twins})).labels
    assert labels == {"a": "TP=1 · a", "b": "TP=1 · b"}


def test_abbreviations_that_occur_are_explained_once(folder):
    parts = sections(Results(dual_record()), [])
    (found,) = [part for part in parts if part.name == "terms"]
    terms = " ".join(row[0] for row in found.tables[0].rows)
    for term in ("TP=N", "ppN", "tgN", "@ dN", "c=N", "ttfr", "est_ppt", "e2e_ttft"):
        assert term in terms
    assert "ITL" not in terms, "of another load generator"
    assert (folder / "report.html").read_text().count("to the first chunk of the answer") == 1


def test_a_band_is_named_only_where_it_is_drawn():
    record = dual_record(depths=(0,))
    flat = [
        cell.model_copy(update={"metrics": {
            **cell.metrics, "ttfr_ms": Metric(mean=9, percentiles={"p50": 9, "p95": 9}),
        }})
        for cell in record.cells
    ]  # fmt: skip
    for cells, said in ((record.cells, "Line: p50, band: up to p95."), (flat, "Line: p50.")):
        with no_png(), style():
            plots = list(measured_plots(Results(record.model_copy(update={"cells": tuple(cells)}))))
        (note,) = [plot.note for plot in plots if plot.name == "ttfr-concurrency"]
        assert said in note


def test_every_declared_column_stands_in_some_table():
    """An expression that speaks of what is not there gives an empty column, which is left out."""
    failed = answered(kind="vision", status="failed", metrics={}, questions=(), reason="HTTP 400")
    checks = (
        RecordedCheck(id="a", title="A", streamed=True, status="ok", found="x", seconds=1.0),
        RecordedCheck(id="b", title="B", streamed=False, status="not run", found="", seconds=0.0),
    )
    whole = {"checks": checks, "image_repo_digest": "x"}
    setups = [one.model_copy(update=whole) for one in dual_record().setups]
    of_nodes = [one.model_copy(update={"bios": "1.0"}) for one in dual_record().nodes]
    first = dual_record().model_copy(update={"setups": tuple(setups), "nodes": tuple(of_nodes)})
    times = {"tpot_ms": Metric(mean=1), "e2el_ms": Metric(mean=2)}
    requests = served(metrics={**served().metrics, **times})
    runs = [Results(one) for one in (first, sweep_record(), record(requests, answered(), failed))]
    single = Results(dual_record(loads=(1,)))  # its columns have other names
    found: dict[str, set[str]] = {}
    for name in (*ROWS, *SEVERAL):
        for results in (*runs, single):
            for table in tables_of(results, name):
                fields = {row[0] for row in table.rows}
                found.setdefault(name, set()).update(table.columns, fields)
    found["throughput"] = found["comparison"]
    for name in DECLARED.keys() & found.keys():
        columns = DECLARED[name].get("columns", DECLARED[name])
        assert set(columns) <= found[name], name
    listed = [name for part in DECLARED["section"] for name in part.get("tables", ())]
    assert sorted(listed) == sorted((*ROWS, *SEVERAL)), "each table stands in one section"


# -- telemetry -------------------------------------------------------------------------------------


def test_a_plot_of_long_telemetry_keeps_extremes_and_gaps():
    record = dual_record(depths=(0,), loads=(1,))
    seconds = np.arange(20_000.0)
    seconds[10_000:] += 600
    values = np.random.default_rng(1).normal(50.0, 1.0, len(seconds))
    values[123], values[15_001] = 90, 10
    values[5] = np.nan
    node = NodeTelemetry("n", seconds, {"power_w": values})
    assert np.flatnonzero(np.isnan(line_of(node, "power_w")[0])).tolist() == [9_999]
    for count in (0, 1, 2, 7):
        few = NodeTelemetry("n", np.arange(float(count)), {"power_w": np.ones(count)})
        assert len(line_of(few, "power_w")[0]) == count
    with no_png(), style():
        (plot,) = telemetry_plots(Results(record), [node])
    (drawn,) = re.findall(
        r'<path d="([^"]*)" clip-path="[^"]*" style="fill: none; stroke: #1f6', plot.svg
    )
    assert drawn.count("M") == 2, "the line is interrupted once"
    heights = [float(y) for _, y in re.findall(r"[ML] (\S+) (\S+)", drawn)]
    assert len(heights) < 2000
    middle = sum(heights) / len(heights)
    assert middle - min(heights) == pytest.approx(max(heights) - middle, rel=0.1), "90 and 10"
    assert max(heights) - min(heights) > 40


# -- files -----------------------------------------------------------------------------------------


def test_the_post_has_the_tables(folder):
    post = (folder / "report.md").read_text()
    assert "| speed-up |" in post
    assert re.search(r"^\| google/gemma-4-31B-it \| +tg128 @ d4096 \(c2\)", post, re.MULTILINE)
    assert "spark-cluster bench repeat 2026-06-20-dual-7f3a" in post
    assert "out of memory" in post
    assert "VLLM\\_HOST" not in post, "underscores stay readable"


def test_each_plot_is_a_picture_of_both_kinds(folder):
    pictures = sorted(path.stem for path in (folder / "plots").glob("*.png"))
    assert {"decode-depth", "prefill-depth", "per-user-aggregate", "ttfr-concurrency", "predicted",
            "vram", "clocks", "power", "memory", "link"} <= set(pictures)  # fmt: skip
    for name in pictures:
        text = (folder / "plots" / f"{name}.svg").read_text()
        assert ElementTree.fromstring(text).tag.endswith("svg")
        assert "<text" in text, "text is text"


def test_a_submission_is_as_llama_benchy_and_spark_arena_have_it(folder):
    with (folder / "arena" / "tp2" / "benchmark.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert tuple(rows[0]) == COLUMNS
    assert len(COLUMNS) == 16
    first, second = rows[:2]
    assert first["test_name"] == "pp2048 (c1)"
    assert first["ttfr_mean"]
    assert not first["peak_ts_mean"]
    assert second["test_name"] == "tg128 (c1)"
    assert float(second["t_s_mean"]) > 10
    recipe = YAML(typ="safe").load(folder / "arena" / "tp2" / "recipe.yaml")
    assert templated.is_sparkrun(recipe)
    assert recipe["runtime"] == "vllm-ray"
    assert recipe["model"] == "google/gemma-4-31B-it"
    assert "--tensor-parallel-size 2" in recipe["command"]
    assert "VLLM_HOST_IP" not in recipe["env"], "of one node only"
    metadata = json.loads((folder / "arena" / "tp2" / "metadata.json").read_text())
    assert metadata["cluster"] == {"node_count": 2, "tensor_parallel": 2, "replicas": 1}


@pytest.mark.parametrize(
    ("engine", "flags"),
    [
        ("vllm", ("--dtype", "bfloat16")),
        ("vllm", ("vllm", "serve", "/srv/models/x", "--dtype", "bfloat16")),
        ("vllm", ("/opt/venv/bin/vllm", "serve", "/srv/models/x", "--dtype", "bfloat16")),
        ("sglang", ("python3", "-m", "sglang.launch_server", "--model-path", "/x", "--dtype", "b")),
    ],
)
def test_a_command_to_repeat_names_the_program_once_and_the_model_by_its_name(engine, flags):
    setup = dual_record().setups[0].model_copy(update={"engine": engine, "flags": flags})
    first, second = engine_command(setup).split(" \\\n  ")
    assert first.endswith((f"vllm serve {setup.model}", f"--model-path {setup.model}"))
    assert second.startswith("--dtype b")


def test_markdown_cannot_be_left():
    table = Table("t", ("a", "b"), (("x|y", "<b>\n[l](u)"),))
    assert table.markdown().splitlines()[2] == r"| x\|y | &lt;b&gt; \[l\](u) |"
    assert escape("![](x)") == r"!\[\](x)"
    assert fenced("a\n```\nb").startswith("````sh\n")


# -- foreign input ---------------------------------------------------------------------------------


def poisoned(value: object, key: str = "") -> object:
    """A record with the evil text in every place that takes any text."""
    keep = {"format", "status", "kind", "phase", "metric", "started", "finished", "id", "setup"}
    if isinstance(value, dict):
        return {k: poisoned(v, k) for k, v in value.items()}
    if isinstance(value, list):
        return [poisoned(item, key) for item in value]
    return EVIL + value if isinstance(value, str) and key not in keep else value


@contextmanager
def no_png() -> Iterator[None]:
    """Leave the PNG of each plot out, which takes half of the time that it takes to draw it; those
    of `folder` are looked at."""
    from matplotlib.figure import Figure

    savefig = Figure.savefig

    def svg_only(figure: Figure, out: Any, *, format: str, **options: Any) -> None:
        if format == "svg":
            savefig(figure, out, format=format, **options)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Figure, "savefig", svg_only)
        yield


@pytest.fixture(scope="module")
def evil(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str | bytes]:
    record = dual_record(depths=(0, 4096), loads=(1, 2))
    data = poisoned(record.model_dump(mode="json"))
    for index, setup in enumerate(data["setups"]):
        old, setup["id"] = setup["id"], f"../../{EVIL}{index}"
        setup["model"] = data["setups"][0]["model"]
        for cell in data["cells"]:
            cell["setup"] = setup["id"] if cell["setup"] == old else cell["setup"]

    folder = tmp_path_factory.mktemp("evil")
    (folder / "run.json").write_text(json.dumps(data))
    with no_png():
        return build(Results(load_record(folder)), [])


def test_foreign_text_is_no_markup(evil):
    page = Page(str(evil["report.html"]))
    assert [tag for tag, _ in page.tags].count("script") == 1
    assert "img" not in {tag for tag, _ in page.tags}
    assert not [name for _, attrs in page.tags for name in attrs if name.startswith("on")]
    assert "<script>alert(1)</script>" in page.text, "it is shown as it is"
    assert "{{7*7}}" in page.text
    assert "\x07" not in page.text
    assert "\u202e" not in page.text


def test_foreign_text_is_no_markup_in_pictures_and_posts(evil):
    for name, content in evil.items():
        if name.endswith(".svg"):
            tree = ElementTree.fromstring(content)
            tags = {element.tag.rpartition("}")[2] for element in tree.iter()}
            assert not tags & {"script", "img", "foreignObject"}
        assert ".." not in Path(name).parts
    outside = re.sub(r"(?ms)^(`{3,})\w*\n.*?^\1$", "", str(evil["report.md"]))
    assert "<script" not in outside
    assert "<img" not in outside


def test_the_page_loads_nothing(folder, evil):
    for text in ((folder / "report.html").read_text(), str(evil["report.html"])):
        page = Page(text)
        for tag, attrs in page.tags:
            for name in ("src", "href", "xlink:href", "action", "data"):
                assert (attrs.get(name) or "#").startswith(("#", "data:,")), (tag, attrs)
        assert "@import" not in text
        assert "default-src 'none'" in text
        assert all("tabindex" in attrs for tag, attrs in page.tags if tag == "pre"), "it scrolls"
        assert "></th>" not in text
        ids = [attrs["id"] for _, attrs in page.tags if "id" in attrs]
        assert len(ids) == len(set(ids))


@each_row(__file__, "broken_records.json", "records")
def test_a_broken_record_is_said(tmp_path, content, said):
    (tmp_path / "run.json").write_bytes(content.replace("DEEP", "[" * 100_000).encode("latin-1"))
    with pytest.raises(InvalidFile, match=said):
        write_report(tmp_path, tmp_path / "report")


def test_broken_telemetry_is_said(tmp_path):
    (tmp_path / "run.json").write_text(dual_record().model_dump_json())
    (tmp_path / "telemetry.parquet").write_bytes(b"PAR1 no")
    with pytest.raises(InvalidFile, match="not telemetry in Parquet"):
        write_report(tmp_path, tmp_path / "report")


def test_without_matplotlib_its_extra_is_named(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    run = write_run(tmp_path / "run", dual_record(depths=(0,), loads=(1,)), seconds=2)
    with pytest.raises(UsageError, match="plots need matplotlib") as caught:
        write_report(run, tmp_path / "report")
    assert "bench" in caught.value.hint
    assert not (tmp_path / "report").exists()


def test_a_pipe_in_the_place_of_a_record_is_not_waited_for(tmp_path):
    """An archive of somebody else's run can have one, and `dashboard` looks at every run."""
    os.mkfifo(tmp_path / "run.json")
    with pytest.raises(InvalidFile, match="this is a named pipe"):
        load_record(tmp_path)


def test_a_folder_without_a_record_is_said(tmp_path):
    with pytest.raises(UsageError, match=r"run\.json: No such file") as caught:
        write_report(tmp_path, tmp_path / "report")
    assert "bench fetch" in caught.value.hint


def sparse_records() -> Iterator[Record]:
    """Runs with little in them."""
    record = dual_record(depths=(0,), loads=(1,))
    yield record.model_copy(update={"cells": (), "setups": (), "nodes": ()})
    yield record.model_copy(update={"cells": (), "status": "failed", "finished": None})
    lost = tuple(c.model_copy(update={"setup": "gone", "metrics": {}}) for c in record.cells)
    yield record.model_copy(update={"cells": lost})
    zero = {"tg_tps": Metric(mean=0), "ttfr_ms": Metric(mean=0), "pp_tps": Metric(mean=-1)}
    yield record.model_copy(
        update={"cells": tuple(c.model_copy(update={"metrics": zero}) for c in record.cells)}
    )
    rate = CellKey(prompt=1, output=1, concurrency=0, request_rate=2.5)
    times = {"ttft_ms": Metric(mean=5, percentiles={"p50": 4, "p99": 9}), "goodput": Metric(mean=2)}
    yield record.model_copy(update={"cells": (
        CellResult(id="o", setup="tp1", key=rate, runs=1, status="ok", metrics=times),
        CellResult(id="v", setup="tp1", key=CellKey(prompt=1, output=1, kind="vision"), runs=1,
                   status="failed", reason="it saw a cat", finished=record.started,
                   started=record.started.replace(tzinfo=None) - timedelta(1)),
    )})  # fmt: skip


@pytest.mark.parametrize("record", list(sparse_records()), ids=range(5))
def test_a_run_with_little_in_it_has_a_page(record, tmp_path):
    with no_png():
        files = build(Results(record), [])
    assert "Telemetry was not recorded" in str(files["report.html"])


# -- in a browser ----------------------------------------------------------------------------------

PHONE = 390
ASKED = SimpleNamespace(**cases(__file__, "report_page.toml"))


@pytest.mark.skipif(installed() is None, reason="no Chromium on this machine")
def test_no_label_of_a_plot_is_cut(tmp_path):
    """Those of a small model: prefill of five digits, and little memory."""
    data = dual_record().model_dump()
    for cell in data["cells"]:
        if speed := cell["metrics"].get("pp_tps"):
            speed.update(mean=14 * speed["mean"], std=9.0, values=())
    for reading in (one for setup in data["setups"] for one in setup["vram"]):
        for process in reading["processes"]:
            process["used_mib"] = 612
    with no_png():
        files = build(Results(Record.model_validate(data)), [])
    (tmp_path / "page.html").write_text(str(files["report.html"]))
    with browser(str(installed()), tmp_path / "profile") as shown:
        for width in (PHONE, 1280):
            shown.open(tmp_path / "page.html", width=width)
            shown.evaluate(ASKED.open_all)
            assert shown.evaluate(ASKED.clipped) == []
    assert ">25,000</text>" in str(files["plots/prefill-depth.svg"])
    assert ">0.6</text>" in str(files["plots/vram.svg"])


@pytest.mark.skipif(installed() is None, reason="no Chromium on this machine")
def test_the_page_in_a_browser(folder, tmp_path):
    page = folder / "report.html"
    with browser(str(installed()), tmp_path / "profile") as shown:
        for width, dark in ((PHONE, False), (PHONE, True), (1280, False)):
            shown.open(page, width=width, dark=dark)
            folded = shown.evaluate(ASKED.folded)
            assert (folded == 5) if width == PHONE else (folded == 0)
            short = shown.evaluate("document.documentElement.scrollHeight")
            shown.evaluate(ASKED.open_all)
            if width == PHONE:
                whole = shown.evaluate("document.documentElement.scrollHeight")
                assert short < 7000 < 0.55 * whole, "what is folded is most of the page"
            assert shown.evaluate("document.documentElement.scrollWidth") == width
            assert shown.evaluate(ASKED.wide) == []
            assert shown.evaluate(ASKED.smallest) > 7.5, "readable"
            bright = shown.evaluate(ASKED.brightness)
            assert (bright["page"] < bright["text"]) is dark
            name = f"{width}-{'dark' if dark else 'light'}.png"
            assert shown.screenshot(tmp_path / name).startswith(b"\x89PNG")
        assert shown.evaluate("document.querySelectorAll('button[hidden]').length") == 0, (
            "the page's own script ran"
        )
        shown.open(page, width=PHONE)
        shown.evaluate("document.querySelector('nav a[href$=memory]').click()")
        opened = "document.querySelector('#memory').open"
        until(lambda: shown.evaluate(opened), what="the part that a link leads to")
        assert not shown.evaluate("document.querySelector('#markdown').closest('details').open")
        shown.evaluate("document.querySelector('[data-copy=markdown]').click()")
        assert "tg128" in shown.evaluate("getSelection().toString()")
        pdf = shown.call("Page.printToPDF", preferCSSPageSize=True)["data"]
        assert len(pdf) > 10_000
        assert shown.complaints == []


def test_requests_and_answers_have_tables(tmp_path):
    cells = (served(), served(None), answered(), answered(kind="vision", status="failed",
             metrics={}, questions=(), reason="HTTP 400: no pictures"))  # fmt: skip
    slo = Tool(name="vllm-bench", version="0.32.0", settings={"slo": {"ttft_ms": 500.0}})
    made = record(*cells, tool=slo)
    results = Results(made)
    table = table_of(results, "requests")
    assert [row[1:5] for row in table.rows] == [
        ("pp2048 tg128 d=0 2 req/s", "1.90", "1.25", "240.0"),
        ("pp2048 tg128 d=0 c=4", "1.90", "1.25", "240.0"),
    ]
    assert table.rows[0][5] == "41.00 / 77.00 / 98.00"
    assert table.note.startswith("Goodput: requests within ttft 500 ms.")
    rows = table_of(results, "answers").rows
    assert [row[2:5] for row in rows] == [
        ("one", "no", "2 of 2"), ("two-at-once", "yes", "1 of 2"), ("", "", "failed"),
    ]  # fmt: skip
    assert headline(results) == "3 of 4 answers are right."
    assert headline(Results(record(served()))).startswith("1.90 requests/s served, 1.25 of them")
    files = build(results, [])
    assert not [name for name in files if name.startswith("arena/")], "they are llama-benchy's"
    for name in ("report.html", "report.md"):
        assert "HTTP 400: no pictures" in str(files[name])
    assert "[sun](x)" not in str(files["report.md"])

"""Comparing runs: what is matched, what is not and why, and published figures."""

import json

import pytest
from bench_runs import SLOWER, STEADY, TOOL, cell, key, record, setup
from cases import each_case

from spark_cluster.bench.compare import compare, part_of
from spark_cluster.bench.record import NodeRecord
from spark_cluster.bench.references import DATA, against_published, published
from spark_cluster.config.schema import as_json
from spark_cluster.errors import UsageError

PLAIN = record(cell(tg_tps=STEADY))


def reasons(a, b) -> list[str]:
    found = compare(a, b)
    assert found.rows == ()
    assert found.summary == "nothing could be compared"
    return [one.reason for one in found.not_comparable]


def test_a_slower_run_is_worse():
    found = compare(PLAIN, record(cell(tg_tps=SLOWER), id="b"))
    (row,) = found.rows
    assert row.difference.verdict == "worse"
    assert row.difference.ratio == pytest.approx(0.8)
    assert found.regressed
    assert found.summary == "1 worse (figures of 1 cell)"


@pytest.mark.parametrize(
    ("load", "metric", "verdict"),
    [(key(), "ttfr_ms", "better"), (key(concurrency=4), "tg_tps", "same")],
    ids=["of times less is better", "several requests have a wider floor"],
)
def test_what_less_means(load, metric, verdict):
    a, b = (record(cell(load=load, **{metric: values})) for values in (STEADY, SLOWER))
    assert compare(a, b).rows[0].difference.verdict == verdict


@each_case(__file__, "other_tools.json")
def test_another_tool_is_not_compared(case):
    other = record(cell(tg_tps=STEADY), tool=TOOL.model_copy(update=case["changed"]))
    assert reasons(PLAIN, other) == [case["reason"], case["reason"]]


@each_case(__file__, "other_servers.json")
def test_another_server_is_not_compared(case):
    found = reasons(PLAIN, record(cell(tg_tps=STEADY), setups=[setup(**case["changed"])]))
    assert len(found) == 2
    assert all(text.startswith(case["reason"]) for text in found)


def test_another_load_or_a_failed_cell_is_not_compared():
    other = record(cell(load=key(depth=4096), tg_tps=STEADY))
    assert reasons(PLAIN, other) == [
        "B has no cell pp2048-tg128-d0-c1 on such a server",
        "A has no cell pp2048-tg128-d4096-c1 on such a server",
    ]
    failed = record(cell(status="failed", tg_tps=STEADY))
    assert reasons(PLAIN, failed) == ["failed in B: 2 of 5 requests failed: HTTP 500"]
    assert reasons(PLAIN, record()) == ["B has no cells"]


def test_variants_are_matched_by_name_and_a_single_one_with_the_recipe():
    pair = [setup("a1"), setup("a2", variant="enforce-eager=true")]
    cells = [cell("a1", tg_tps=STEADY), cell("a2", tg_tps=SLOWER)]
    both = record(*cells, setups=pair)
    assert [row.difference.ratio for row in compare(both, both).rows] == [1.0, 1.0]
    sides = [part_of(both, name) for name in ("a1", "a2")]
    (row,) = compare(*sides).rows
    assert row.variants == ("", "enforce-eager=true")
    assert row.difference.verdict == "worse"
    three = [*pair, setup("a3", variant="max-num-seqs=2")]
    many = record(*cells, cell("a3", tg_tps=STEADY), setups=three)
    (left,) = (one for one in compare(many, both).not_comparable)
    assert left.reason == "B has several servers of this kind, none of them with max-num-seqs=2"
    with pytest.raises(UsageError, match="has no setup 'a9'"):
        part_of(both, "a9")


def test_turns_of_a_pair_are_put_together():
    first, second = cell(tg_tps=STEADY[:3]), cell(tg_tps=STEADY[3:])
    turned = record(first, second.model_copy(update={"id": "other"}))
    (row,) = compare(turned, PLAIN).rows
    assert row.difference.n == (5, 5)


def test_figures_that_say_the_same_are_compared_once():
    values = {"tg_tps": STEADY, "tg_tps_request": STEADY, "ttfr_ms": STEADY, "e2e_ttft_ms": STEADY}
    alone = record(cell(**values, est_ppt_ms=STEADY))
    assert [row.metric for row in compare(alone, alone).rows] == ["tg_tps", "ttfr_ms"]


def test_what_else_differs_is_said():
    other = record(
        cell(tg_tps=STEADY),
        setups=[setup(versions={"vllm": "0.23.0", "nccl": "2.28"}, flags=("--x",) * 40)],
        nodes=(NodeRecord(name="spark1", driver="590.1", mtu=9000),),
    )
    assert compare(PLAIN, other).changed == (
        "flags",
        "driver: 580.95.05 in A, 590.1 in B",
        "mtu: not known in A, 9000 in B",
        "nccl: not known in A, 2.28 in B",
        "vllm: 0.22.1 in A, 0.23.0 in B",
    )
    assert compare(PLAIN, PLAIN).changed == ()


def test_one_node_has_no_executor():
    joined = record(cell(tg_tps=STEADY), setups=[setup(nodes=("a", "b"), executor="ray")])
    assert compare(PLAIN, joined).changed == ("executor: none in A, ray in B",)


# -- published figures -----------------------------------------------------------------------------


def test_no_figure_is_lost():
    found = against_published(PLAIN)
    ids = {row.figure.id for row in found.rows} | {one.figure.id for one in found.others}
    assert len(ids) == len(published().figures) == 316
    document = as_json(found)
    listed = {row["figure"] for row in document["rows"]} | {o["id"] for o in document["others"]}
    assert listed == ids
    assert all(one.reason for one in found.others)


def test_every_figure_has_a_value_and_a_source_and_no_sentence_of_an_article_is_kept():
    known = published()
    configs = {config.id for config in known.configs}
    assert all(figure.line > 0 and figure.shown for figure in known.figures)
    assert {figure.config for figure in known.figures} <= {None, *configs}
    for figure in json.loads(DATA.read_text())["figures"]:
        row = figure.get("row", "||")
        assert (row[0], row[-1], "quote" in figure) == ("|", "|", False)
        assert ". " not in row


def test_deviations_from_a_published_table():
    run = record(
        cell(tg_tps=STEADY, pp_tps=[1600.0] * 5),
        cell(load=key(concurrency=4), tg_tps=[20.0] * 5, tg_tps_request=[6.0] * 5),
    )
    found = against_published(run)
    rows = {(row.figure.id, row.metric): row for row in found.rows}
    table = rows["forum-gemma4-31b-fp8.c1.tg128.pp2048.tg128.tg_tps", "tg_tps"]
    assert table.value == 6.79
    assert table.share == pytest.approx(6.91 / 6.79 - 1)
    assert table.caveats == ("llama-benchy 0.3.5, not llama-benchy 0.4.0",)
    depth = rows["forum-gemma4-31b-fp8.tp1.pp2048.d0", "pp_tps"]
    assert depth.caveats[1] == "latency mode generation, not api"
    assert {row.metric for row in found.rows if row.cell.key.concurrency == 4} == {
        "tg_tps",
        "tg_tps_request",
    }
    eager = record(cell(pp_tps=[1400.0] * 5), setups=[setup(flags=("--enforce-eager",))])
    assert [row.figure.id for row in against_published(eager).rows] == [
        "forum-gemma4-31b-fp8.eager.pp2048_prefill_t_s"
    ]


def test_another_model_or_size_is_said():
    other = record(cell(tg_tps=STEADY), setups=[setup(tp=2)])
    why = {one.figure.id: one.reason for one in against_published(other).others}
    table = why["forum-gemma4-31b-fp8.c1.tg128.pp2048.tg128.tg_tps"]
    assert table == "the run has no google/gemma-4-31B-it fp8-online at TP=1"
    assert "does not say the load" in why["merritt-gemma4-mtp.sweep.N4.tps"]

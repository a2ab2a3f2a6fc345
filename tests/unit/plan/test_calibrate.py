"""Constants from the user's own runs: found again when planted, left alone when not identified."""

from __future__ import annotations

import csv
import io
import json
import random
from dataclasses import replace

import pytest
from cases import cases, each_row
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from speed_samples import GEMMA_26B, GEMMA_31B

from spark_cluster.errors import Failed, InvalidFile, SparkClusterError, UsageError
from spark_cluster.plan.calibrate import Point, System, calibrate, mean_error
from spark_cluster.plan.estimate import Constants
from spark_cluster.plan.runs import MeasuredLink, fitted, read_runs
from spark_cluster.plan.serving import ServingSetup

DENSE = ServingSetup(GEMMA_31B, "fp8", "auto")
MOE = ServingSetup(GEMMA_26B, "fp8", "auto")


def measured(serving, constants, context=0.0, *, prompt=0, concurrency=1, noise=1.0) -> Point:
    """A point as a Spark with these constants would give it."""
    metric = "ttfr_ms" if prompt else "decode_tok_s"
    blank = Point(serving, metric, 1.0, context, prompt, concurrency, "planted")
    seconds = blank.predicted(constants) * noise
    return replace(blank, value=seconds * 1e3 if prompt else 1 / seconds)


def runs(serving, constants, **more):
    contexts = (100, 2000, 8000, 32_000, 100_000)
    return [measured(serving, constants, context, **more) for context in contexts]


def squares(points, constants) -> float:
    return sum((p.predicted(constants) / p.seconds - 1) ** 2 for p in points)


def test_planted_constants_are_found_again():
    own = replace(Constants(), eta_dense=0.75, eta_moe=0.62, eta_kv=0.5, step_ms=5.0)
    own = replace(own, allreduce_us=60)
    every = [replace(s, tp=tp) for s in (DENSE, MOE) for tp in (1, 2)]
    every += [replace(s, quantization="bf16") for s in (DENSE, MOE)]
    every += [replace(MOE, quantization="awq-int4"), replace(MOE, quantization="awq-int4", tp=2)]
    points = [point for serving in every for point in runs(serving, own)]
    found = calibrate(points)
    assert set(found.fitted) == {"eta_dense", "eta_moe", "eta_kv", "step_ms", "allreduce_us"}
    for name in found.fitted:
        assert getattr(found.constants, name) == pytest.approx(getattr(own, name), rel=1e-3)
    assert found.after < 1e-6 < 0.1 < found.before
    assert found.left_out < 1e-4


def test_prefill_constants_are_found_again():
    own = replace(Constants(), prefill_tflops=80.0, attention_tflops=20.0)
    points = [measured(DENSE, own, prompt=n) for n in (2000, 8000, 20_000, 60_000)]
    found = calibrate(points)
    assert set(found.fitted) == {"prefill_tflops", "attention_tflops"}
    assert found.constants.prefill_tflops == pytest.approx(80, rel=1e-3)
    assert found.constants.attention_tflops == pytest.approx(20, rel=1e-3)
    assert found.constants.eta_dense == Constants().eta_dense


def test_one_model_at_one_size_does_not_tell_steps_from_weights():
    own = replace(Constants(), eta_dense=0.7)
    found = calibrate([measured(DENSE, own, n) for n in (100, 150, 200, 250)])
    assert found.fitted == ("eta_dense",)
    assert found.constants.eta_dense == pytest.approx(0.7, rel=1e-3)
    assert found.kept.keys() == {"eta_kv", "step_ms"}
    assert found.constants.step_ms == Constants().step_ms


def test_an_outlier_decides_little():
    own = replace(Constants(), eta_dense=0.78)
    points = [measured(DENSE, own, n) for n in range(100, 1000, 100)]
    points[4] = replace(points[4], value=points[4].value * 0.6)
    found = calibrate(points)
    assert found.constants.eta_dense == pytest.approx(0.78, rel=0.01)


def test_what_the_fit_does_not_describe_is_reported():
    good = runs(DENSE, Constants())
    slow = replace(good[0], value=good[0].value / 2, label="own.json: benchmark 7")
    found = calibrate([*good, slow])
    (said,) = found.far_off
    assert said.startswith("own.json: benchmark 7: ")
    assert "tok/s expected with this fit" in said
    assert found.to_dict()["far_off"] == [said]
    assert calibrate(good).far_off == ()


@settings(max_examples=60, derandomize=True)  # it is about chance: the same dice each time
@given(st.floats(0.4, 0.9), st.floats(0.3, 0.85), st.floats(0.0, 0.03), st.integers(0, 2**32))
def test_noise_does_not_lead_astray(eta, eta_kv, noise, seed):
    own, dice = replace(Constants(), eta_dense=eta, eta_kv=eta_kv), random.Random(seed)
    points = [
        measured(DENSE, own, n, noise=1 + dice.uniform(-noise, noise))
        for n in (100, 5000, 20_000, 60_000, 100_000, 100, 5000, 20_000)
    ]
    found = calibrate(points)
    # Squares are what is made small, so the mean of plain errors may grow by a hair.
    assert squares(points, found.constants) <= squares(points, Constants()) + 1e-9
    if "eta_kv" in found.fitted:  # else the noise was larger than what the cache costs
        assert found.after <= 1.5 * noise + 1e-6
    assert found.before == mean_error(points, Constants())
    assert found.points == len(points)


def test_a_fit_of_nothing_and_of_no_more_points_than_constants():
    assert System([[1.0]], [0.5]).fit([], [0.25]) == [0.25]
    assert System([[1.0]], [0.0]).left_out_error([0], [1.0]) is None


def test_too_few():
    own = Constants()
    with pytest.raises(UsageError, match="found 0 usable points"):
        calibrate([])
    with pytest.raises(UsageError, match="found 1 usable points"):
        calibrate([measured(DENSE, own, 100)])
    two = calibrate([measured(DENSE, own, 100), measured(DENSE, own, 100_000)])
    assert len(two.fitted) == 1, "as many constants as points fit anything"
    assert "too few points" in " ".join(two.kept.values())
    assert two.left_out is not None


@pytest.mark.parametrize("factor", [10, 0.1])
def test_runs_of_another_machine_or_model_are_refused(factor):
    points = [replace(p, value=p.value * factor) for p in runs(DENSE, Constants())]
    with pytest.raises(UsageError, match=r"times as (fast|slow)") as caught:
        calibrate(points)
    assert "--tp" in caught.value.hint


def test_more_than_the_bandwidth_is_refused():
    points = [replace(p, value=p.value * 1.5) for p in runs(DENSE, Constants())[:2]]
    with pytest.raises(Failed, match="no sensible constants"):
        calibrate(points)


def test_a_time_below_none_is_none():
    own = replace(Constants(), allreduce_us=-40)
    found = calibrate([*runs(DENSE, own), *runs(replace(DENSE, tp=2), own)])
    assert "allreduce_us" in found.fitted
    assert found.constants.allreduce_us == 0
    assert found.after < found.before


def test_a_cache_faster_than_can_be_stays_as_it_was():
    own = replace(Constants(), eta_kv=3.0)
    found = calibrate(runs(DENSE, own))
    assert "cannot be" in found.kept["eta_kv"]
    assert found.constants.eta_kv == Constants().eta_kv
    assert found.fitted == ("eta_dense",)


@pytest.mark.parametrize("value", [0.0, -1.0, float("nan"), float("inf")])
def test_no_measurement(value):
    points = [replace(p, value=value) for p in runs(DENSE, Constants())]
    with pytest.raises(UsageError, match="above 0"):
        calibrate(points)


# Files


def benchmark(**changed):
    figure = {"mean": 7.0, "std": 0.1, "values": [6.9, 7.0, 7.1]}
    return {
        "concurrency": 1,
        "context_size": 4096,
        "prompt_size": 2048,
        "response_size": 128,
        "is_context_prefill_phase": False,
        "tg_throughput": figure,
        "tg_req_throughput": figure,
        "ttfr": {"mean": 4000.0, "std": 1.0, "values": [3900.0, 4000.0, 4700.0]},
        **changed,
    }


@pytest.fixture
def read(tmp_path):
    def reading(content, name="runs.json", ask=lambda _: DENSE, **options):
        path = tmp_path / name
        if isinstance(content, bytes):
            path.write_bytes(content)
        else:
            path.write_text(content if isinstance(content, str) else json.dumps(content))
        return read_runs(path, ask, **options)

    return reading


def benchy(*benchmarks, **more):
    return {"version": "0.4.0", "prefix_caching_enabled": False, "benchmarks": benchmarks, **more}


def test_llama_benchy(read):
    found = read(benchy(benchmark(), benchmark(concurrency=4)))
    assert [(p.metric, p.value, p.context, p.prompt, p.concurrency) for p in found.points] == [
        ("decode_tok_s", 7.0, 6208.0, 0, 1),
        ("ttfr_ms", 4000.0, 0, 6144, 1),
        ("decode_tok_s", 7.0, 6208.0, 0, 4),
    ]
    assert found.left_out == []


def test_llama_benchy_with_prefix_caching(read):
    fill = benchmark(is_context_prefill_phase=True)
    found = read(benchy(fill, benchmark(), prefix_caching_enabled=True))
    assert [(p.context, p.prompt) for p in found.points if p.metric == "ttfr_ms"] == [(4096, 2048)]
    assert "fills the cache" in found.left_out[0]


NOTHING = ["tg_throughput", "tg_req_throughput", "ttfr"]


@pytest.mark.parametrize(
    ("changed", "reason"),
    [
        (dict.fromkeys(NOTHING), "its requests failed"),
        ({key: {"mean": None, "values": []} for key in NOTHING}, "its requests failed"),
        ({key: {"mean": 0, "values": []} for key in NOTHING}, "its requests failed"),
        ({"response_size": 0}, "no tokens"),
        ({"prompt_size": 0}, "no tokens"),
    ],
)
def test_llama_benchy_that_measured_nothing(read, changed, reason):
    """It ends with status 0 where its requests have failed, too."""
    found = read(benchy(benchmark(**changed)))
    assert found.points == []
    assert reason in found.left_out[0]


def test_decoding_with_a_drafter_is_left_out(read):
    found = read(benchy(benchmark()), decoding=False)
    assert [p.metric for p in found.points] == ["ttfr_ms"]
    assert "acceptance" in found.left_out[0]


def test_points_in_a_csv(read):
    asked = []
    found = read(
        "metric,value,prompt,context,concurrency,tp,model\n"
        "decode_tok_s,36.9,,500,,2,google/gemma-4-26B-A4B-it\n"
        "decode_tok_s,30,400,,2,,\n"
        "ttfr_ms,812.5,2048,,,,\n"
        "ttfr_ms,812.5,2048,,4,,\n",
        "runs.csv",
        lambda said: asked.append(dict(said)) or MOE,
    )
    assert [(p.metric, p.value, p.context, p.prompt, p.concurrency) for p in found.points] == [
        ("decode_tok_s", 36.9, 500, 0, 1),
        ("decode_tok_s", 30.0, 400, 400, 2),
        ("ttfr_ms", 812.5, 0, 2048, 1),
    ]
    assert asked[:2] == [{"tp": "2", "model": "google/gemma-4-26B-A4B-it"}, {}]
    assert "share a prefill" in found.left_out[0]


def test_points_in_json(read):
    found = read({"points": [{"metric": "decode_tok_s", "value": 7, "context": 300}]})
    assert [(p.value, p.context) for p in found.points] == [(7.0, 300.0)]


UNUSABLE = [
    *((one["content"], one["name"], said)
      for said, one in cases(__file__, "unusable_runs.json").items()),
    (b"\x7fELF\x00\xff\xfe", "runs.json", "binary"),
    ("[" * 100_000, "runs.json", "nested|not JSON"),
]  # fmt: skip


@pytest.mark.parametrize(("content", "name", "message"), UNUSABLE, ids=[row[2] for row in UNUSABLE])
def test_files_that_are_none(read, content, name, message):
    with pytest.raises(InvalidFile, match=message) as caught:
        read(content, name)
    assert name in caught.value.where
    assert caught.value.hint


def test_no_file(tmp_path):
    with pytest.raises(InvalidFile, match="No such file"):
        read_runs(tmp_path / "none.json", lambda _: DENSE)


junk = st.recursive(
    st.none() | st.booleans() | st.integers(-5, 5000) | st.floats() | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(
                ["mean", "values", "concurrency", "prompt_size", "response_size", "ttfr"]
            ),
            inner,
            max_size=4,
        )
    ),
    max_leaves=8,
)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.sampled_from(sorted(benchmark())), junk)
def test_whatever_stands_in_a_result_is_read_or_refused(read, key, value):
    try:
        found = read(benchy(benchmark(**{key: value})))
    except InvalidFile as error:
        assert error.where
    else:
        assert all(point.value > 0 and point.context >= 0 for point in found.points)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(st.lists(st.text(max_size=8), max_size=5), max_size=4))
def test_whatever_stands_in_a_csv_is_read_or_refused(read, rows):
    text = io.StringIO()
    csv.writer(text).writerows([["metric", "value", "prompt", "context"], *rows])
    try:
        found = read(text.getvalue(), "runs.csv")
    except SparkClusterError as error:
        assert error.where
    else:
        assert all(point.value > 0 for point in found.points)


# --- the link's constants as `bench fabric` measured them, alone and with runs -------------------


LINK = MeasuredLink(latency_us=40, low_us=38, high_us=50, bytes_s=2e10)


def runs_on(constants: Constants, tp: int) -> list[Point]:
    """Runs of a Spark with these constants."""
    serving = ServingSetup(GEMMA_31B, "fp8", "auto", tp=tp)
    blank = [Point(serving, "decode_tok_s", 1.0, n, label="planted") for n in (100, 2000, 8000)]
    return [replace(point, value=1 / point.predicted(constants)) for point in blank]


def test_the_link_alone():
    found = fitted([], LINK)
    assert (found.points, found.fitted, found.left_out) == (0, (), None)
    assert found.constants.allreduce_us == 40
    assert found.constants.link == 2e10
    assert found.constants.eta_dense == Constants().eta_dense


def test_runs_over_two_nodes_have_the_last_word():
    """The time that an engine adds to an all-reduce is in the runs only."""
    found = fitted(runs_on(replace(Constants(), allreduce_us=80.0), tp=2), LINK)
    assert found.constants.allreduce_us == pytest.approx(80, rel=0.05)
    assert found.measured == ("link",)


def test_runs_on_one_node_leave_the_link_as_it_was_measured():
    found = fitted(runs_on(replace(Constants(), eta_dense=0.7), tp=1), LINK)
    assert found.constants.eta_dense == pytest.approx(0.7, rel=0.01)
    assert found.constants.allreduce_us == 40
    assert "allreduce_us" in found.measured


@each_row(__file__, "calibrate.toml", "a_link_that_cannot_be")
def test_a_link_that_cannot_be(change, said):
    with pytest.raises(UsageError, match=said):
        fitted([], replace(LINK, **change))

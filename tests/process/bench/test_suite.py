"""Suites: what is valid, what they become, and how long they take."""

from pathlib import Path

import pytest
from cases import each_case

from spark_cluster.bench.expansion import (
    CELL_S,
    STARTUP_S,
    STOP_S,
    Duration,
    Expansion,
    ServerSpeed,
    estimate,
    expand,
    varied,
)
from spark_cluster.bench.suite import MOST_CELLS, MeasurementSettings, Variant, load_suite
from spark_cluster.config.project import Project
from spark_cluster.config.recipes import load_recipe
from spark_cluster.errors import InvalidFile, Refused, UsageError

CHECKOUT = Path(__file__).parents[3]
SHIPPED = Project(CHECKOUT, CHECKOUT)
SUITES = sorted(SHIPPED.list("suites"))
SETTINGS = MeasurementSettings()


def expanded(name: str, *recipes: str) -> Expansion:
    """A shipped suite with its recipes, or with others."""
    suite = load_suite(name, SHIPPED)
    names = recipes or tuple(suite.recipes) or ("gemma4-31b-fp8",)
    return expand(suite, {one: load_recipe(one, SHIPPED) for one in names}, names)


def written(tmp_path: Path, text: str) -> Expansion:
    """A suite of the user's own, with the recipes that are shipped."""
    suite = load_suite(str(put(tmp_path, text)), Project(tmp_path))
    return expand(suite, {one: load_recipe(one, SHIPPED) for one in suite.recipes})


def put(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "suites" / "own.yaml"
    path.parent.mkdir(exist_ok=True)
    path.write_text("name: own\n" + text)
    return path


@pytest.mark.parametrize("name", SUITES)
def test_ids_are_unique_stable_and_names_of_files(name):
    first, again = expanded(name), expanded(name)
    ids = [cell.id for cell in first.cells]
    assert len(set(ids)) == len(ids) > 0
    assert ids == [cell.id for cell in again.cells]
    assert all(len(id) < 150 and "/" not in id and " " not in id for id in ids)
    assert all(cell.setup == step.setup.id for step in first.steps for cell in step.cells)
    assert not [setup.skip for setup in first.setups if setup.skip]


def test_dual_is_one_node_then_two_then_two_replicas():
    found = expanded("dual")
    assert [(s.setup.tp, s.setup.replicas) for s in found.steps] == [(1, 1), (2, 1), (1, 2)]
    assert found.nodes == 2
    depths = [cell.key.depth for cell in found.steps[0].cells if cell.key.concurrency == 1]
    assert depths == [0, 4096, 8192, 16384]
    assert {cell.key.concurrency for cell in found.steps[2].cells} == {2, 4, 8}


def test_a_server_goes_on_between_stages():
    (step,) = expanded("five-by-800").steps
    assert [(cell.key.output, cell.runs) for cell in step.cells] == [(800, 5), (1633, 1)]


def test_sides_of_a_pair_take_turns():
    found = expanded("compile-vs-eager")
    eager = "enforce-eager=true"
    turns = [("", 1), (eager, 1), (eager, 2), ("", 2)]
    assert [(s.setup.variant_label, s.turn) for s in found.steps] == turns
    assert {cell.runs for cell in found.cells} == {3}
    assert found.steps[1].setup.served.engine_args["enforce-eager"] is True


def test_a_sweep_over_drafted_tokens():
    found = expanded("mtp-sweep")
    served = [setup.served for setup in found.setups]
    assert [s.drafter and s.drafter.tokens for s in served if s] == [None, 2, 3, 4, 5, 6]
    assert "speculative-config" not in served[0].flags(1)
    assert served[3].flags(1)["speculative-config"]["num_speculative_tokens"] == 4


def test_a_sweep_over_flags(tmp_path):
    found = written(
        tmp_path,
        "recipes: [gemma4-31b-fp8]\nprompt: [64]\n"
        "sweep: {engine_args: {max-num-seqs: [2, false], max-num-batched-tokens: [2048, 8192]}}\n",
    )
    assert [setup.variant_label for setup in found.setups] == [
        "max-num-batched-tokens=2048 max-num-seqs=2",
        "max-num-batched-tokens=8192 max-num-seqs=2",
        "max-num-batched-tokens=2048 max-num-seqs=false",
        "max-num-batched-tokens=8192 max-num-seqs=false",
    ]
    assert "max-num-seqs" not in found.setups[-1].served.engine_args


def test_more_in_a_suite_keeps_the_ids(tmp_path):
    text = "recipes: [lab-paris]\nprompt: [64]\noutput: [16]\n"
    few = {cell.id for cell in written(tmp_path, text).cells}
    more = written(tmp_path, text.replace("[64]", "[32, 64]") + "concurrency: [2, 1]\n")
    assert few < {cell.id for cell in more.cells}


def test_values_that_look_alike_have_ids_of_their_own(tmp_path):
    found = written(
        tmp_path,
        "recipes: [lab-paris]\nsweep: {engine_args: {x: [a b, a-b, 'a_b', A B, {k: 1}, {k: 2}]}}\n",
    )
    assert len({setup.id for setup in found.setups}) == 6


def test_what_a_recipe_cannot_do_is_kept_with_the_reason():
    arena = expanded("spark-arena-v2")
    skipped = [cell for cell in arena.cells if cell.skip]
    assert {cell.key.depth for cell in skipped} == {65535, 100000}
    assert "102,176 tokens of context, the server has 65,536" in skipped[-1].skip
    single = expanded("depth", "gemma4-26b-a4b-fp8-mtp")
    assert "runs with tensor-parallel size 1, not 2" in single.setups[1].skip
    assert all(cell.skip for cell in single.steps[1].cells)
    with pytest.raises(Refused, match="has no drafter"):
        varied(load_recipe("lab-paris", SHIPPED), Variant(num_speculative_tokens=2))


def test_a_suite_without_recipes_needs_one():
    with pytest.raises(UsageError, match="names no recipe"):
        expand(load_suite("single-user", SHIPPED))


@each_case(__file__, "suite_mistakes.json")
def test_mistakes(tmp_path, case):
    path = put(tmp_path, case["text"] + "\n")
    with pytest.raises(InvalidFile, match=case["message"]) as raised:
        load_suite(str(path), Project(tmp_path))
    assert str(raised.value.where).endswith(f"own.yaml:{case['line']}")
    assert "hunter2" not in str(raised.value)


def test_values_have_a_limit_before_they_are_compared(tmp_path):
    path = put(tmp_path, f"depth: {list(range(90_000))}\n")
    with pytest.raises(InvalidFile, match=f"found 90000 values, expected at most {MOST_CELLS}"):
        load_suite(str(path), Project(tmp_path))


def test_cells_have_a_limit(tmp_path):
    many = list(range(1, 101))
    path = put(tmp_path, f"prompt: {many}\noutput: {many}\n")
    with pytest.raises(InvalidFile, match=str(MOST_CELLS)):
        load_suite(str(path), Project(tmp_path))


def test_the_name_is_the_files(tmp_path):
    path = put(tmp_path, "")
    path.write_text("name: other\n")
    with pytest.raises(InvalidFile, match="expected 'own', the name of the file"):
        load_suite(str(path), Project(tmp_path))


# -- duration --------------------------------------------------------------------------------------


def duration(tmp_path: Path, text: str, speed: tuple[float, float] = (500, 10)) -> Duration:
    found = written(tmp_path, f"recipes: [lab-paris]\n{text}")
    return estimate(found, lambda *_: ServerSpeed(*speed), SETTINGS)


def test_the_duration_of_a_cell(tmp_path):
    told = duration(tmp_path, "prompt: [1000]\noutput: [100]\nruns: 4\n")
    assert told.seconds == pytest.approx(STARTUP_S + STOP_S + CELL_S + 5 * (2 + 10))
    assert told.steps == (told.seconds,)
    assert not told.unknown


def test_replicas_share_the_requests(tmp_path):
    one, two = (duration(tmp_path, f"concurrency: [4]\nreplicas: {n}\n") for n in (1, 2))
    assert two.seconds < one.seconds


def test_an_open_loop_takes_as_long_as_requests_come(tmp_path):
    text = "tool: vllm-bench\nrequest_rate: [0.5]\nrequests: 50\nruns: 1\n"
    told = duration(tmp_path, text, (1e9, 1e9))
    assert told.seconds == pytest.approx(STARTUP_S + STOP_S + CELL_S + 100, abs=0.1)


def test_what_is_skipped_takes_no_time_and_what_is_unknown_is_said():
    arena = expanded("spark-arena-v2", "lab-paris")
    short = sum(not cell.skip for cell in arena.cells)
    assert 0 < short < len(arena.cells)
    told = estimate(arena, lambda setup, context: ServerSpeed(500, 10), SETTINGS)
    assert told.seconds < short * 200 + STARTUP_S + STOP_S
    nothing = estimate(arena, lambda *_: None, SETTINGS)
    assert nothing.unknown == ("lab-paris-tp1",)
    assert nothing.seconds == 0

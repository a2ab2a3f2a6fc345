"""`bench repeat`: what is shown of a record before anything runs, and what is refused."""

import hashlib
import json

import pytest
from bench_runs import STEADY, cell, record, setup, suite_of
from factories import make_inventory, make_recipe, put
from program import invoke

from spark_cluster.bench import generators
from spark_cluster.bench.describe import text_of
from spark_cluster.bench.record import Tool
from spark_cluster.bench.repeat import Original, expansion_of
from spark_cluster.bench.steps import BenchRun
from spark_cluster.bench.suite import canonical
from spark_cluster.cli import bench
from spark_cluster.errors import InvalidFile, Refused, Unreachable, UsageError

NAME = "gemma4-31b-fp8"
INVENTORY = "nodes:\n  a: {address: 192.0.2.1, roles: [head]}\n"


@pytest.fixture
def theirs(tmp_path):
    """Write a run of somebody else; return its folder."""

    def write(**changed) -> str:
        recipe = make_recipe(NAME).model_copy(update=changed)
        suite = suite_of(name="mine", recipes=[NAME], prompt=[512], output=[64], tp=[1, 2])
        made = setup(f"{NAME}-tp1", recipe=NAME, recipe_text=text_of(recipe))
        run = record(cell(made.id, tg_tps=STEADY), setups=[made], suite_text=canonical(suite),
                     recipes=(NAME,), id="theirs-1", suite="mine")  # fmt: skip
        put(tmp_path / "theirs/run.json", run.model_dump_json())
        return str(tmp_path / "theirs")

    make_inventory(tmp_path, INVENTORY)
    return write


@pytest.fixture
def went_on(monkeypatch):
    """The runs that would have been started."""
    found = []
    monkeypatch.setattr(bench, "go_on", lambda _app, made, *_a, **_o: found.append(made))
    return found


def bench_as(tmp_path, *words: str):
    """Run a command of `bench`, which raises what it raises."""
    return invoke("bench", *words, project=tmp_path, columns="80", catch_exceptions=False,
                  standalone_mode=False)  # fmt: skip


def ask(tmp_path, *words: str):
    return bench_as(tmp_path, "repeat", *words)


def written(tmp_path, source: dict, repeated: str = "", **changed) -> str:
    """Write a run with other fields, which may be a repetition; return its folder."""
    if repeated:
        put(tmp_path / "new/repeated.json", repeated)
        digest = hashlib.sha256(repeated.encode()).hexdigest()
        changed |= {"cells": [], "repeats": {"id": "theirs-1", "sha256": digest}}
    put(tmp_path / "new/run.json", json.dumps({**source, **changed}))
    return str(tmp_path / "new")


def test_a_recipe_that_one_has_oneself(theirs, went_on, tmp_path):
    said = ask(tmp_path, theirs()).stdout
    assert said.startswith("repeats theirs-1 of suite mine")
    assert f"{NAME}-tp1: 1 cell, tp 1, model google/gemma-4-31B-it" in said
    assert "left out: the record has no recipe of this server" in said
    assert '"name": "gemma4-31b-fp8"' not in said, "one's own need not be read"
    (made,) = went_on
    assert made.record.repeats.id == "theirs-1"
    assert made.record.id != "theirs-1"
    assert (made.record.cells, made.record.setups, made.record.status) == ((), (), "running")
    assert made.record.client == "a"


def test_a_record_in_place_of_a_suite_is_repeated(theirs, went_on, tmp_path):
    path = f"{theirs(ready_timeout_s=77.0)}/run.json"

    def run(*words: str):
        return bench_as(tmp_path, "run", path, *words)

    assert run("--trust-recipes").stdout == ask(tmp_path, path, "--trust-recipes").stdout
    first, second = (made.record for made in went_on)
    assert first.repeats == second.repeats
    assert first.command == second.command == ("spark-cluster", "bench", "repeat", path)
    with pytest.raises(Refused, match="not yours"):
        run()
    with pytest.raises(UsageError, match="recipes of its own"):
        run("--recipe", NAME)


def test_a_recipe_of_somebody_else_is_shown_and_refused(theirs, went_on, tmp_path):
    folder = theirs(ready_timeout_s=77.0)
    result = invoke("bench", "repeat", folder, project=tmp_path, columns="80")
    assert isinstance(result.exception, Refused)
    assert "--trust-recipes" in result.exception.hint
    assert '"ready_timeout_s": 77.0' in result.stdout
    assert went_on == []
    ask(tmp_path, folder, "--check")
    ask(tmp_path, folder, "--trust-recipes")
    assert len(went_on) == 2


def test_markup_and_control_sequences_in_a_record_are_shown_and_not_obeyed(
    theirs, went_on, tmp_path
):
    said = ask(tmp_path, theirs(description="[red]x[/] \x1b[31m"), "--trust-recipes").stdout
    assert "[red]x[/]" in said
    assert "\x1b[31m" not in said
    assert went_on


def test_other_refusals(theirs, went_on, tmp_path):
    folder = theirs()
    put(tmp_path / "out/run.json", "{}")
    with pytest.raises(UsageError, match="holds a run already"):
        ask(tmp_path, folder, "--out", str(tmp_path / "out"))
    put(tmp_path / "broken/run.json", "{}")
    with pytest.raises(InvalidFile):
        ask(tmp_path, str(tmp_path / "broken"))
    assert went_on == []


def test_the_status_without_the_nodes(theirs, tmp_path, closed_port):
    """The results on the laptop are shown first; where all are there, no node is asked."""
    text = INVENTORY.replace("192.0.2.1", f"127.0.0.1, port: {closed_port}")
    folder = theirs()
    make_inventory(tmp_path, text)
    asked = invoke("bench", "status", folder, project=tmp_path)
    assert isinstance(asked.exception, Unreachable)
    assert asked.stdout.startswith("theirs-1: 0 of 2 cells have a result on this laptop\n")
    data = json.loads((tmp_path / "theirs/run.json").read_text())
    ids = [f"{NAME}-tp{tp}.pp512-tg64-d0-c1" for tp in (1, 2)]
    data["cells"] = [{**data["cells"][0], "id": id} for id in ids]
    put(tmp_path / "theirs/run.json", json.dumps(data))
    asked = invoke("bench", "status", folder, project=tmp_path, catch_exceptions=False)
    assert asked.stdout == "theirs-1: 2 of 2 cells have a result on this laptop\n"
    found = json.loads(invoke("--json", "bench", "status", folder, project=tmp_path).stdout)
    assert (found["done"], found["measuring"]) == (2, "")


def test_attach_does_not_run_recipes_of_somebody_else_either(theirs, went_on, tmp_path):
    """A folder with a repeated run may be somebody else's as well: that its user has trusted the
    recipes says nothing here."""
    source = (tmp_path / theirs(ready_timeout_s=77.0) / "run.json").read_text()
    folder = written(tmp_path, json.loads(source), source)
    with pytest.raises(Refused, match="not yours") as caught:
        bench_as(tmp_path, "attach", folder)
    assert "--trust-recipes" in caught.value.hint
    assert "repeated.json --check" in caught.value.hint
    assert went_on == []
    bench_as(tmp_path, "attach", folder, "--check")
    bench_as(tmp_path, "attach", folder, "--trust-recipes")
    assert len(went_on) == 2


@pytest.mark.parametrize("changed", [{"recipes": [NAME]}, {"suite": "other"}])
def test_attach_asks_before_a_folder_of_somebody_else_says_what_runs(
    theirs, went_on, tmp_path, monkeypatch, changed
):
    """It may name its own recipe by a path, and vary what it likes of one that the user has."""
    suite = suite_of(name="mine", recipes=[NAME], prompt=[512], output=[64])
    put(tmp_path / "suites/mine.yaml", canonical(suite))
    data = json.loads((tmp_path / theirs() / "run.json").read_text())
    own = {**data, "suite_text": canonical(suite), "cells": [], "setups": []}
    bench_as(tmp_path, "attach", written(tmp_path, own))
    assert len(went_on) == 1
    if "suite" in changed:
        other = suite.model_copy(update={"prompt": [4]})
        own |= {"suite_text": canonical(other)}
    else:
        path = put(tmp_path / f"theirs/{NAME}.yaml", text_of(make_recipe(NAME)))
        own |= {"recipes": [str(path)]}
    folder = written(tmp_path, own)
    with pytest.raises(Refused, match="not yours") as caught:
        bench_as(tmp_path, "attach", folder)
    assert "--trust-recipes" in caught.value.hint
    assert len(went_on) == 1
    bench_as(tmp_path, "attach", folder, "--check")
    bench_as(tmp_path, "attach", folder, "--trust-recipes")
    monkeypatch.chdir(tmp_path)
    (tmp_path / "new").rename(put(tmp_path / "bench-results/x", "").parent / "new")
    bench_as(tmp_path, "attach", "bench-results/new")
    assert len(went_on) == 4


@pytest.mark.parametrize("text", ["", "{", "name: [dual\n", '{"name": "mine", "prompt": "many"}'])
@pytest.mark.parametrize("command", ["status", "attach", "stop", "fetch"])
def test_a_record_whose_suite_cannot_be_read(theirs, tmp_path, command, text):
    data = json.loads((tmp_path / theirs() / "run.json").read_text())
    folder = written(tmp_path, data, suite_text=text)
    with pytest.raises(InvalidFile, match="suite_text") as raised:
        bench_as(tmp_path, command, folder)
    assert raised.value.where == f"{folder}/run.json"


@pytest.mark.parametrize(("tool", "there"), [("vllm-bench", "0.11.0"), ("llama-benchy", "0.0.1")])
def test_the_load_generator_that_is_compared_is_the_one_that_measures(
    piped_cluster, tmp_path, tool, there
):
    suite = suite_of(recipes=[NAME], prompt=[8], output=[8], tool=tool)
    theirs = Tool(name=tool, version=there)
    run = record(setups=[], suite_text=canonical(suite), suite="mine", tool=theirs)
    cluster = piped_cluster("a")
    theirs_again = Original(run, b"", suite, {})
    ours = run.model_copy(update={"tool": generators.of(suite).tool(suite)})
    made = BenchRun(ours, suite, expansion_of(theirs_again, 1), tmp_path)
    bench._compare(cluster.play, made, theirs_again)
    told = [note for note in cluster.notes if tool in note]
    assert len(told) == (tool == "llama-benchy"), "which vLLM will measure is not known yet"


@pytest.mark.parametrize(
    ("changed", "error", "said"),
    [
        ({"setups": [{"servers": [{"nodes": []}]}]}, InvalidFile, r"servers\.0\.nodes"),
        ({"repeats": {"id": "theirs-1", "sha256": "0" * 64}}, UsageError, r"repeated\.json"),
    ],
    ids=["a replica without a node", "the repeated record is gone, and the project is no other"],
)
def test_a_record_that_says_too_little_is_refused(theirs, tmp_path, changed, error, said):
    data = json.loads((tmp_path / theirs() / "run.json").read_text())
    if "setups" in changed:
        changed = {"setups": [{**data["setups"][0], **changed["setups"][0]}]}
    with pytest.raises(error, match=said):
        bench_as(tmp_path, "status", written(tmp_path, data, **changed))


def test_limit_leaves_no_cells_out_of_a_run_that_goes_on(theirs, went_on, tmp_path):
    """They would have a result for good: left out."""
    make_inventory(tmp_path, f"{INVENTORY}  b: {{address: 192.0.2.2}}\n")
    data = json.loads((tmp_path / theirs() / "run.json").read_text())
    setup_of_two = {**data["setups"][0], "id": f"{NAME}-tp2", "tp": 2}
    text = json.dumps({**data, "setups": [*data["setups"], setup_of_two]})
    bench_as(tmp_path, "attach", written(tmp_path, data, text), "--limit", "a")
    (made,) = went_on
    assert {step.setup.tp for step in made.pending} == {1, 2}
    assert [cell.skip for cell in made.expansion.cells] == ["", ""]

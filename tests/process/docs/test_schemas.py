"""The JSON Schemas say what the code does: compared with it, shipped files and real output."""

import functools
import json
import shlex
from dataclasses import asdict, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import click
import pytest
from bench_runs import STEADY, cell, record
from cases import cases, each_case, each_row
from jsonschema import Draft202012Validator
from jsonschema.exceptions import SchemaError, ValidationError
from program import Program
from ruamel.yaml import YAML

from docs.generate import schemas
from docs.generate.code import OUTPUTS, commands, event_classes
from spark_cluster.cli import api
from spark_cluster.cli.results import Recap, RunSummary
from spark_cluster.engine.link_check import Bandwidth, Hop
from spark_cluster.engine.provisioning import Provisioned
from spark_cluster.errors import Unreachable
from spark_cluster.runner.events import Result, RunStarted
from spark_cluster_lab import Lab, breakage
from spark_cluster_lab.gpu import GpuLab
from spark_cluster_lab.gpu.layout import STATE_VARIABLE
from spark_cluster_lab.layout import Layout

CHECKOUT = Path(__file__).parents[3]
FILES = {"inventory": "inventories", "recipe": "recipes", "suite": "suites"}
SHIPPED = [
    pytest.param(kind, path, id=path.name)
    for kind, folder in FILES.items()
    for path in sorted((CHECKOUT / folder).glob("*.yaml"))
]
ONE_NODE = "nodes: {spark1: {address: 192.0.2.1, roles: [head]}}\n"


CHECKED_IN = (*FILES, "registries", "bench-run")
NAMES = (*CHECKED_IN, "event", "error", *(f"output-{name}" for name in OUTPUTS))


@functools.cache
def made() -> dict[str, dict[str, Any]]:
    """Every schema by its name."""
    return {**schemas.of_files(), **schemas.of_outputs()}


@pytest.fixture
def program(tmp_path: Path, monkeypatch) -> Program:
    return Program(tmp_path, monkeypatch)


def yaml(text: str | Path) -> Any:
    return YAML(typ="safe", pure=True).load(text)


def check(schema: dict[str, Any], document: Any) -> None:
    """Raise jsonschema's ValidationError unless the document fits."""
    Draft202012Validator(schema).validate(document)


@pytest.mark.parametrize("name", CHECKED_IN)
def test_what_is_checked_in_is_what_the_code_says(name):
    written = (schemas.FOLDER / f"{name}.json").read_text()
    assert written == schemas.text(made()[name]), "run `python -m docs.generate`"


def test_every_schema_has_a_name_here():
    assert made().keys() == set(NAMES)
    assert schemas.of_files().keys() == set(CHECKED_IN)


def test_each_is_a_schema():
    for name in NAMES:
        try:
            Draft202012Validator.check_schema(made()[name])
        except SchemaError as error:
            pytest.fail(f"{name}: {error.message}")


@pytest.mark.parametrize(("kind", "path"), SHIPPED)
def test_shipped_files_fit(kind, path):
    check(made()[kind], yaml(path))


@each_case(__file__, "mistakes.json")
def test_mistakes_are_seen(case):
    with pytest.raises(ValidationError):
        check(made()[case["kind"]], yaml(case["text"]))


@each_row(__file__, "schemas.toml", "short_forms_are_allowed")
def test_short_forms_are_allowed(given):
    check(made()["inventory"], {**yaml(ONE_NODE), **yaml(given)})


RECIPES = sorted((CHECKOUT / "recipes").glob("*.yaml"))
PRINTED = [
    *cases(__file__, "schemas.toml")["printed"],
    *(["output-recipes-show", f"recipes show {path.stem}"] for path in RECIPES),
]


@pytest.mark.parametrize(("name", "words"), PRINTED)
def test_what_commands_print_fits(program, name, words):
    line = words.replace("CHECKOUT", str(CHECKOUT))
    printed = json.loads(program("--json", *shlex.split(line)).stdout)
    check(made()[name], printed)


def test_every_command_has_a_schema():
    """All but the groups, and `lab ssh`, which connects a terminal."""
    names = [name for name, command in commands() if not isinstance(command, click.Group)]
    listed = [f"{command} " for command, _ in OUTPUTS.values()]
    assert [n for n in names if not any(c.startswith(f"{n} ") for c in listed)] == ["lab ssh"]


@pytest.fixture
def lab(tmp_path, monkeypatch) -> Lab:
    """A lab that is down, in a scratch folder, of which only the folders are touched."""
    lab = Lab(Layout(tmp_path / "lab"))
    made = SimpleNamespace(image_tar=tmp_path / "image.tar", all=[])
    monkeypatch.setattr(Lab, "default", lambda: lab)
    monkeypatch.setattr(Lab, "state", lambda _: "down")
    for name, result in {"up": True, "down": True, "prepared": made, "prepare": made}.items():
        monkeypatch.setattr(Lab, name, lambda *_, result=result, **_options: result)
    monkeypatch.setattr(breakage, "repair", lambda *_: ["mtu on spark1"])
    monkeypatch.setattr(breakage, "break_", lambda *_: SimpleNamespace(name="spark1"))
    monkeypatch.setattr(Lab, "node", lambda *_: SimpleNamespace(reset=lambda **_options: None))
    monkeypatch.setenv(STATE_VARIABLE, str(tmp_path / "lab-gpus"))
    monkeypatch.setattr(GpuLab, "up", lambda *_, **_options: True)
    return lab


@pytest.mark.parametrize(
    "words",
    ["up", "up --gpus", "down", "status", "prepare", "reset spark1", "break mtu", "break --list",
     "repair"],
)  # fmt: skip
def test_what_the_lab_prints_fits(program, lab, words):
    name = words.replace("--", "").removesuffix(" spark1").removesuffix(" mtu").replace(" ", "-")
    printed = json.loads(program("--json", "lab", *words.split()).stdout)
    check(made()[f"output-lab-{name}"], printed)


def test_a_node_of_the_lab_fits(lab, monkeypatch):
    node = SimpleNamespace(name="spark1", address="10.89.0.11", state="running")
    monkeypatch.setattr(Lab, "nodes", [node])
    check(made()["output-lab-status"], asdict(lab.status()))


def test_what_provision_prints_fits():
    """Return a result with a node that is ready, one that was lost, and a measured link."""
    recap = Recap()
    recap.take(RunStarted("20261120-1", "provision", ("spark1", "spark2")))
    nodes = [SimpleNamespace(name=name) for name in ("spark1", "spark2")]
    link = SimpleNamespace(interface="cx7", address=SimpleNamespace(ip="192.0.2.1"))
    done = Provisioned(
        notes={"spark1": ["rebooted"]},
        firmware={"spark1": {"UEFI": "1.0"}},
        bandwidth=[Bandwidth(Hop(*nodes, link, link), 98.5)],
    )
    summary = RunSummary("20261120-1", ok=False, changed=0, seconds={"total": 1.0})
    run: Any = SimpleNamespace(recap=recap, summary=lambda ok: replace(summary, ok=ok))
    found = api._provisioned(run, done, {"spark2": Unreachable("no answer", hint="wait")})
    assert not found.run.ok
    check(made()["output-provision"], json.loads(json.dumps(found.to_dict())))


def test_the_record_of_a_run_fits():
    schema = schemas.of_files()["bench-run"]
    document = json.loads(record(cell(tg_tps=STEADY)).model_dump_json())
    check(schema, document)
    with pytest.raises(ValidationError):
        check(schema, {**document, "format": "spark-cluster.bench.v0"})


@pytest.mark.parametrize("name", ["ping", "exec"])
def test_what_commands_print_of_a_node_that_is_not_there_fits(program, name):
    program.put("inventory.yaml", "nodes: {spark1: {address: 127.0.0.1, port: 9, roles: [head]}}\n")
    printed = json.loads(program("--json", name, *(["true"] if name == "exec" else [])).stdout)
    check(made()[f"output-{name}"], printed)


def test_events_fit():
    schema = made()["event"]
    for event in (
        RunStarted("20261120-1", "up --tp 2", ("spark1", "spark2")),
        Result("spark1", "power", "File:/x", "change", changes={"mode": ("0600", "0644")}),
    ):
        check(schema, json.loads(json.dumps(event.to_dict())))
    with pytest.raises(ValidationError):
        check(schema, {"event": "RunStarted", "at": 1.0})


def test_every_event_is_in_the_schema():
    kinds = made()["event"]["oneOf"]
    names = [kind["properties"]["event"]["const"] for kind in kinds]
    assert names == [kind.__name__ for kind in event_classes()]

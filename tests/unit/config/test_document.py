"""The document of a result, and its schema: what a field's type says of its key."""

from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Annotated, Any

import pytest
from jsonschema import Draft202012Validator, ValidationError
from pydantic import BaseModel
from typing_extensions import TypedDict

from docs.generate.schemas import schema_of
from spark_cluster.config.schema import (
    Document,
    ErrorDocument,
    Flat,
    Hidden,
    PrintedAs,
    Rounded,
    WhenSet,
    as_json,
    derived,
    printed,
)
from spark_cluster.errors import Failed


@dataclass(frozen=True)
class Plain:
    size: Annotated[float, Rounded(1)]
    whole: Annotated[float | None, Rounded()] = None


@dataclass(frozen=True)
class Run(Document):
    id: Hidden[str]
    ok: bool


@dataclass(frozen=True)
class Wrong(Document):
    error: ErrorDocument


class Pair(TypedDict):
    low: Plain
    high: Plain


def _names(nodes: list[Any]) -> list[str]:
    return [node.name for node in nodes]


@dataclass(frozen=True)
class Outer(Document):
    run: Flat[Run]
    more: Flat[Plain | None]
    nodes: Annotated[list[Any], PrintedAs(_names)]
    rows: dict[str, Plain] = field(default_factory=dict)
    note: WhenSet[str] = ""
    count = derived(int, lambda outer: len(outer.rows))
    first = derived(str, "run.id", key="id")

    @printed
    def empty(self) -> bool:
        """True if there is no row."""
        return not self.rows


@dataclass(frozen=True)
class Later(Outer):
    second: int = 2


@dataclass(frozen=True)
class Between(Document):
    low: float

    def printed_as(self) -> Pair:
        return {"low": Plain(self.low), "high": Plain(2 * self.low)}


@dataclass(frozen=True)
class Chosen(Document):
    node: Hidden[str]
    name = derived(str, "node", when_set=True)


RUN = Run("r1", ok=True)
NODES = [SimpleNamespace(name="spark1")]


@pytest.mark.parametrize(
    ("result", "document"),
    [
        (RUN, {"ok": True}),
        (Plain(1.26, 2.7), {"size": 1.3, "whole": 3}),
        (Plain(1.26), {"size": 1.3, "whole": None}),
        (
            Outer(RUN, Plain(2), NODES, {"a": Plain(3)}, "x"),
            {
                "ok": True, "size": 2, "whole": None, "nodes": ["spark1"],
                "rows": {"a": {"size": 3, "whole": None}}, "note": "x", "count": 1, "id": "r1",
                "empty": False,
            },
        ),
        (
            Later(RUN, None, []),
            {
                "ok": True, "nodes": [], "rows": {}, "count": 0, "id": "r1", "empty": True,
                "second": 2,
            },
        ),
        (Between(1), {"low": {"size": 1, "whole": None}, "high": {"size": 2, "whole": None}}),
        (Wrong(Failed("no", hint="do")), {"error": {"message": "no", "where": "", "hint": "do"}}),
    ],
)  # fmt: skip
def test_a_result_is_written_as_its_schema_says(result, document):
    assert as_json(result) == document
    schema = schema_of(type(result))
    Draft202012Validator(schema).validate(document)
    for key in document:
        if key != "note" and not (type(result) in (Outer, Later) and key in ("size", "whole")):
            less = {name: value for name, value in document.items() if name != key}
            with pytest.raises(ValidationError):
                Draft202012Validator(schema).validate(less)
    with pytest.raises(ValidationError):
        Draft202012Validator(schema).validate({**document, "another": 1})


def test_mappings_and_sequences_of_results_are_written():
    class Model(BaseModel):
        x: int = 1

    found = {1: [RUN], "m": Model(), "t": (Plain(1.0),), "n": None}
    assert as_json(found) == {
        "1": [{"ok": True}], "m": {"x": 1}, "t": [{"size": 1.0, "whole": None}], "n": None,
    }  # fmt: skip


def test_what_a_node_told_in_another_type_is_written_all_the_same(recwarn):
    assert as_json(Run("r", ok="yes")) == {"ok": "yes"}  # type: ignore[arg-type]
    assert not recwarn.list


def test_a_derived_key_is_described_by_nothing_but_its_name():
    properties = schema_of(Outer)["properties"]
    assert "description" not in properties["id"]


def test_a_derived_key_that_is_left_out_while_empty_is_not_required():
    assert Chosen("").to_dict() == {}
    assert Chosen("spark1").to_dict() == {"name": "spark1"}
    assert schema_of(Chosen).get("required", []) == []

"""What roles yield: each case of cases/ROLE.json is a node, settings, and resources of it.

Keys of a case:
    facts: what is true of each node, next to what is true of a healthy one; `user` is its user.
    others: what is true of the nodes behind the first one besides.
    nodes, at, linked: how many nodes there are, which one is asked, and whether a cable joins them.
    addresses: of the nodes, where they are other than usual.
    settings: of the role; `server` are fields of a server over `tp` nodes, `endpoint` are fields of
        one behind the proxy.
    ids: of all resources, in their order.
    some: fields of resources, by the beginning of their ids, as the agent is sent them.
    none: beginnings of ids that no resource has.
    refused: words of the error.

`common` is what all cases of a file have. In a field, `{"has": ...}` stands for a text with this
one in it, a list with these items or a mapping with these; `{"lacks": [...]}` for one without them;
`{"ends": [...]}` for a list that ends so; `{"lines": ...}` for a text's lines, without comments.
"""

from dataclasses import replace
from pathlib import Path

import pytest
from cases import cases
from role_samples import a_spark, an_endpoint, together
from serve_plans import bare_server

from spark_cluster.config.recipe_schema import Ray
from spark_cluster.errors import SparkClusterError
from spark_cluster.node.values import Secret
from spark_cluster.resources.base import to_wire
from spark_cluster.runner.delivery import check

KEYS = {
    "facts", "others", "nodes", "addresses", "at", "linked", "settings", "ids", "some", "none",
    "refused",
}  # fmt: skip


def all_cases():
    for path in sorted(Path(__file__).with_name("cases").glob("*.json")):
        found = cases(__file__, f"cases/{path.stem}.json")
        common = found.pop("common", {})
        for name, case in found.items():
            assert case.keys() <= KEYS, f"{path.stem}: {name}: {case.keys() - KEYS} are not known"
            settings = {**common.get("settings", {}), **case.get("settings", {})}
            server = {**common.get("server", {}), **settings.pop("server", {})}
            settings |= {"server": server_of(**server)} if server else {}
            if path.stem == "endpoint" and settings:
                settings["endpoint"] = an_endpoint(**settings["endpoint"])
            whole = {**common, **case, "settings": settings}
            yield pytest.param(path.stem, whole, id=f"{path.stem}: {name}")


def server_of(tp, **fields):
    if "ray" in fields:
        fields["ray"] = Ray(**fields["ray"])
    return bare_server(*(f"spark{number}" for number in range(1, tp + 1)), **fields)


def node_of(case):
    usual = case.get("facts", {})
    told = [usual, *[{**usual, **case.get("others", {})}] * (case.get("nodes", 1) - 1)]
    nodes = [
        spark(index, linked=case.get("linked", True), **facts) for index, facts in enumerate(told)
    ]
    addresses = case.get("addresses", [node.address for node in nodes])
    nodes = [replace(node, address=address) for node, address in zip(nodes, addresses, strict=True)]
    return together(*nodes)[case.get("at", 0)]


def spark(index, *, linked, user="nvidia", **facts):
    known = {name: tuple(fact) if isinstance(fact, list) else fact for name, fact in facts.items()}
    return replace(a_spark(index, linked=linked, **known), user=user)


def plain(value):
    """Return a value of the wire as JSON has it."""
    if isinstance(value, dict) and value.keys() == {"$map"}:
        return {name: plain(inner) for name, inner in value["$map"]}
    return [plain(inner) for inner in value] if isinstance(value, list | tuple) else value


def is_as(found, expected):
    if isinstance(expected, Secret):
        return found == {"$secret": str(expected)}
    if not isinstance(expected, dict) or not expected.keys() <= {"has", "lacks", "lines", "ends"}:
        return found == expected
    if "ends" in expected:
        return found[-len(expected["ends"]) :] == expected["ends"]
    if "lines" in expected:
        lines = [line.strip() for line in found.splitlines()]
        return [line for line in lines if line and line[0] != "#"] == expected["lines"]
    has, lacks = expected.get("has", []), expected.get("lacks", [])
    if isinstance(has, dict):
        return has.items() <= found.items()
    has = [has] if isinstance(has, str) else has
    return all(part in found for part in has) and not any(part in found for part in lacks)


@pytest.mark.parametrize(("name", "case"), list(all_cases()))
def test_what_a_role_yields(role, name, case, monkeypatch):
    monkeypatch.delenv("HF_TOKEN", raising=False)
    node = node_of(case)
    if "refused" in case:
        with pytest.raises((ValueError, SparkClusterError), match=case["refused"]):
            role(name, node, **case["settings"])
        return
    yielded = role(name, node, **case["settings"])
    check(yielded, node.name)
    found = {resource.id: resource for resource in yielded}
    assert list(found) == case.get("ids", list(found))
    assert not [one for one in found for begin in case.get("none", []) if one.startswith(begin)]
    for begin, fields in case.get("some", {}).items():
        (resource,) = [one for name, one in found.items() if name.startswith(begin)]
        sent = to_wire(resource)
        for field, expected in fields.items():
            value = plain(sent.get(field, getattr(resource, field)))
            assert is_as(value, expected), (field, value)

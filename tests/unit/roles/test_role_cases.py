"""What roles yield: each case of cases/ROLE.json is a node, settings, and resources of it.

Keys of a case:
    facts: what is true of the node, next to what is true of a healthy one; `user` is its user.
    settings: of the role.
    ids: of all resources, in their order.
    some: fields of resources, by the beginning of their ids, as the agent is sent them.
    none: beginnings of ids that no resource has.
    refused: words of the error.

In a field, `{"has": ...}` stands for a text with this one in it, or a list with these items.
"""

from dataclasses import replace
from pathlib import Path

import pytest
from cases import cases
from role_samples import a_spark

from spark_cluster.resources.base import to_wire

KEYS = {"facts", "settings", "ids", "some", "none", "refused"}


def all_cases():
    for path in sorted(Path(__file__).with_name("cases").glob("*.json")):
        for name, case in cases(__file__, f"cases/{path.stem}.json").items():
            assert case.keys() <= KEYS, f"{path.stem}: {name}: {case.keys() - KEYS} are not known"
            yield pytest.param(path.stem, case, id=f"{path.stem}: {name}")


def plain(value):
    """Return a value of the wire as JSON has it."""
    if isinstance(value, dict) and value.keys() == {"$map"}:
        return {name: plain(inner) for name, inner in value["$map"]}
    return [plain(inner) for inner in value] if isinstance(value, list | tuple) else value


def is_as(found, expected):
    if isinstance(expected, dict) and expected.keys() == {"has"}:
        parts = expected["has"]
        return all(part in found for part in ([parts] if isinstance(parts, str) else parts))
    return found == expected


@pytest.mark.parametrize(("name", "case"), list(all_cases()))
def test_what_a_role_yields(role, name, case):
    facts = dict(case.get("facts", {}))
    node = replace(a_spark(), user=facts.pop("user", "nvidia"))
    node = replace(node, facts=replace(node.facts, **facts))
    if "refused" in case:
        with pytest.raises(ValueError, match=case["refused"]):
            role(name, node, **case["settings"])
        return
    yielded = role(name, node, **case.get("settings", {}))
    found = {resource.id: resource for resource in yielded}
    assert list(found) == case.get("ids", list(found))
    assert not [one for one in found for begin in case.get("none", []) if one.startswith(begin)]
    for begin, fields in case.get("some", {}).items():
        (resource,) = [one for name, one in found.items() if name.startswith(begin)]
        sent = to_wire(resource)
        for field, expected in fields.items():
            value = plain(sent.get(field, getattr(resource, field)))
            assert is_as(value, expected), (field, value)

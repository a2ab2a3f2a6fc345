"""Kinds of resources that start processes: cases of `kinds`, as tests/kind_cases.py reads them."""

import pytest
from kind_cases import become, kind_cases
from waiting import HANG_S

from spark_cluster.resources import Command, Service, service


@pytest.mark.parametrize("case", kind_cases(__file__))
def test_what_becomes_of_it(case, at_once, request):
    become(request.getfixturevalue("accounts" if case.get("accounts") else "node"), case)


def test_creates_that_does_not_appear(node):
    result = node.apply(Command("make it", ("true",), creates="/made"))
    assert "did not converge" in result.error


def test_simple_service_that_dies_at_once(node, monkeypatch):
    monkeypatch.setattr(service, "_STAYS_S", HANG_S)  # it is seen at the second look
    node.install("systemd")
    with node.state("systemd") as state:
        state["units"] = {"docker.service": {"type": "simple", "dies": True, "log": "no model\n"}}
    result = node.apply(Service("docker"))
    assert "activating (auto-restart)" in result.error
    assert "no model" in result.error

"""Kinds of resources on a scratch node, whose cases stand in `kinds`: see tests/kind_cases.py."""

import pytest
from kind_cases import become, kind_cases


@pytest.mark.parametrize("case", kind_cases(__file__))
def test_what_becomes_of_it(case, at_once, request):
    become(request.getfixturevalue("accounts" if case.get("accounts") else "node"), case)

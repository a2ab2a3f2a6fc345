"""What can never work is refused where it is declared; each case stands in refused.json."""

import re

import pytest
from cases import cases

from spark_cluster.resources import InvalidResource
from spark_cluster.resources.base import resource_class

CASES = [(kind, case) for kind, found in cases(__file__, "refused.json").items() for case in found]


@pytest.mark.parametrize(
    ("kind", "case"), CASES, ids=[f"{kind}-{case['says']}" for kind, case in CASES]
)
def test_it_is_refused_with_the_reason(kind, case):
    declared = {name: value for name, value in case.items() if name != "says"}
    with pytest.raises(InvalidResource, match=re.escape(case["says"])):
        resource_class(kind)(**declared)

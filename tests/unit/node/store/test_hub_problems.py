"""What a refusal of the hub means, by its status and headers."""

from cases import each_case

from spark_cluster.node.store.hub_problems import of_answer


@each_case(__file__, "hub_refusals.json")
def test_a_refusal_by_its_status_and_headers(case):
    found = of_answer(case["status"], case["headers"], "org/m", "v9")
    assert found.kind == case["kind"]
    assert case["words"] in found.message


def test_a_wait_that_cannot_be_believed_is_not_shown():
    assert "wait 7 s" in of_answer(429, {"Retry-After": "7"}, "org/m", "").hint
    assert "wait some minutes" in of_answer(429, {"Retry-After": "1e9"}, "org/m", "").hint

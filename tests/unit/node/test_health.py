"""The one judgement whether an engine's server lives, as a truth table."""

from dataclasses import replace

import pytest
from cases import cases

from spark_cluster.engine.engine import engine
from spark_cluster.node.containers import ContainerState
from spark_cluster.node.health import MANY_RESTARTS, Completion, Life, judge

DIED = engine("vllm").died
RUNS = ContainerState()
EXITED = ContainerState("exited", exit_code=1)
OFTEN = ContainerState(restarts=MANY_RESTARTS)
CAME = Completion(200, "Paris")
LOADS = "takes no requests yet: it is loading"


TABLE = cases(__file__, "health.json")


def seen(kind, values):
    return None if values is None else kind(**values)


@pytest.mark.parametrize(
    "row", TABLE, ids=[f"{n}-{row['life']}-{row['reason']}" for n, row in enumerate(TABLE)]
)
def test_what_was_seen_and_what_it_means(row):
    """The container decides first; then /health, where vLLM listens when it has loaded and outlives
    its engine by up to 40 s; then a completion, which may have no words."""
    life = Life[row["life"]]
    container, completion = (
        seen(ContainerState, row["container"]),
        seen(Completion, row["completion"]),
    )
    found = judge(container, row["health"], completion, died=DIED)
    assert (found.life, found.reason) == (life, row["reason"])
    assert found.serves == (life is Life.SERVING)
    assert found.gone == (life in (Life.ABSENT, Life.ENDED, Life.DEAD))


def test_an_engine_that_answers_503_while_it_loads_is_not_dead():
    sglang = engine("sglang")
    assert judge(RUNS, 503, died=sglang.died, loading=sglang.loading).life is Life.LOADING
    assert judge(OFTEN, 503, died=sglang.died, loading=sglang.loading).life is Life.ENDED
    assert judge(RUNS, 500, died=sglang.died, loading=sglang.loading).life is Life.FAILING


def test_a_restart_since_the_first_look_ends_what_was_watched():
    assert judge(OFTEN.watched(OFTEN), 200).serves
    again = replace(OFTEN, restarts=OFTEN.restarts + 1)
    assert judge(again.watched(OFTEN), 200, CAME).life is Life.ENDED


def test_the_reason_in_a_sentence():
    """A predicate follows the server; what it answered stands alone."""
    assert judge(EXITED).of("the server", "it: ") == "the server is exited"
    assert judge(RUNS, 0).of("the server", "it: ") == f"the server {LOADS}"
    assert judge(RUNS, 500).of("the server", "it: ") == "it: /health does not return 200 (500)"

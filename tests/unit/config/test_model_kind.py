"""The kind of a model: what flags, architectures and names show, and what a recipe makes of it."""

from functools import partial

import pytest
from cases import cases
from serve_plans import recipe_of

from spark_cluster.config import recipe_schema
from spark_cluster.config.recipe import recipe_problems
from spark_cluster.errors import Refused

CASES = cases(__file__, "model_kind.toml")


recipe = partial(recipe_of, "o/m")

KIND_OF = {
    "flags": recipe_schema.kind_of_flags,
    "architectures": lambda one: recipe_schema.kind_of_architectures([one]),
    "names": recipe_schema.kind_of_name,
}


@pytest.mark.parametrize(
    ("of", "shown", "kind"), [(of, *case) for of in KIND_OF for case in CASES[of]]
)
def test_flags_architectures_and_names_show_the_kind(of, shown, kind):
    assert KIND_OF[of](shown) == (kind or None)


def test_pooling_alone_does_not_contradict_a_reranker():
    assert (
        recipe_schema.inferred_kind({"runner": "pooling"}, "Qwen/Qwen3-Reranker-4B") == "reranking"
    )
    flags = {"runner": "pooling", "convert": "embed"}
    assert recipe_schema.inferred_kind(flags, "Qwen/Qwen3-Reranker-4B") == "embedding"


def test_a_recipe_takes_the_kind_that_it_shows_and_that_kinds_rung():
    found = recipe(model={"name": "Qwen/Qwen3-Embedding-8B", "served_name": "m"})
    assert (found.kind, found.readiness.rungs) == ("embedding", ["embedding"])
    assert recipe(engine_args={"task": "score"}).readiness.rungs == ["reranking"]
    assert (recipe().kind, recipe().readiness.rungs) == ("chat", ["answer"])


def test_a_recipe_that_names_its_kind_is_believed():
    model = {"name": "Qwen/Qwen3-Embedding-8B", "served_name": "m"}
    found = recipe(kind="chat", model=model)
    assert (found.kind, found.readiness.rungs) == ("chat", ["answer"])
    found = recipe(kind="transcription", readiness={"log_expect": ["x"]})
    assert (found.readiness.rungs, found.readiness.log_expect) == (["transcription"], ["x"])


def test_every_kind_is_served_or_says_what_to_use():
    for kind in recipe_schema.MODEL_KINDS:
        served = kind in recipe_schema.CHECKS_OF_KIND
        assert served == (kind not in recipe_schema.NOT_SERVED)
        if served:
            recipe_schema.must_be_served(kind, "recipe r")
            continue
        with pytest.raises(Refused, match=f"recipe r is of kind {kind}, which is not") as caught:
            recipe_schema.must_be_served(kind, "recipe r")
        assert recipe_schema.NOT_SERVED[kind] in caught.value.hint


def test_rungs_of_another_kind_are_refused():
    found = recipe(kind="embedding", readiness={"rungs": ["embedding", "coherence"]})
    assert [str(problem.message) for problem in recipe_problems(found)] == [
        "found coherence, expected embedding: the kind is embedding"
    ]
    found = recipe(kind="reranking", probe={"question": "q", "expect": "a"})
    assert [str(problem.key[0]) for problem in recipe_problems(found)] == ["probe"]
    assert not recipe_problems(recipe(kind="image"))

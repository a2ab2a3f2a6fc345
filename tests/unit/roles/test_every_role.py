"""Rules for every role: documented settings with defaults, and documents that are whole."""

import pytest
from role_samples import a_spark, together

from spark_cluster.config.project import Project
from spark_cluster.config.schema import meanings
from spark_cluster.runner.delivery import check, document

PROVISION = (
    "bootstrap", "drivers", "network", "ssh_mesh", "memory", "power", "containers", "caches",
)  # fmt: skip


@pytest.mark.parametrize("name", sorted(Project().list("roles")))
def test_every_setting_says_what_it_is(name):
    project = Project()
    loaded = project.load_role(name)
    assert loaded.function.__doc__
    assert meanings(loaded.settings_model).keys() == loaded.settings_model.model_fields.keys()


def test_all_together_are_one_document(role):
    for node in together(a_spark(), a_spark(1)):
        resources = [r for name in PROVISION for r in role(name, node)]
        check(resources, node.name)
        assert len(document(resources).resources) == len(resources)


def test_the_same_facts_give_the_same_resources(role):
    node = together(a_spark(), a_spark(1))[1]
    for name in PROVISION:
        assert role(name, node) == role(name, node)

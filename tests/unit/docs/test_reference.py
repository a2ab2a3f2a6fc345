"""The generated reference is complete: nothing that users can write or read lacks its meaning."""

import inspect
import re
from pathlib import Path

import click
import pytest

from docs.generate import commands, constants, docstring, exit_status, python_api, resources
from docs.generate.code import (
    API_RESULTS,
    INVENTORY,
    RECIPE,
    REGISTRIES,
    SPEED,
    SUITE,
    event_classes,
    known_issues,
    resource_classes,
    roles,
)
from docs.generate.code import commands as every_command
from docs.generate.known_issues import TOPICS
from docs.generate.markdown import cell, code, plain, table
from docs.generate.site import PAGES

CHECKOUT = Path(__file__).parents[3]
FILES = (INVENTORY, RECIPE, REGISTRIES, SUITE)
AT_A_GLANCE = (CHECKOUT / "docs/commands.md").read_text()


@pytest.mark.parametrize("kind", resource_classes(), ids=lambda kind: kind.__name__)
def test_every_argument_of_a_resource_is_described(kind):
    told = docstring.parse(kind)
    assert set(told.arguments) == {field.name for field in resources.arguments(kind)}
    assert told.summary
    assert told.example
    compile(told.example, kind.__name__, "exec")


def test_every_resource_is_on_its_page():
    page = resources.render()
    shown = re.findall(r"^## (\w+)$", page, re.M)
    assert shown == [kind.__name__ for kind in resource_classes()]
    service = page.partition("## Service")[2].partition("\n## ")[0]
    assert "| `timeout_s` | `float` | `180.0` | seconds for a start, stop or restart. |" in service
    assert "| `unit` | `str` | required |" in service


@pytest.mark.parametrize("kind", event_classes(), ids=lambda kind: kind.__name__)
def test_every_event_is_described(kind):
    assert docstring.parse(kind).summary


def described(schema: dict[str, object]) -> list[str]:
    """Fields without a description."""
    return [
        name for name, field in schema.get("properties", {}).items() if "description" not in field
    ]


@pytest.mark.parametrize("model", FILES, ids=["inventory", "recipe", "registries", "suite"])
def test_every_field_of_a_file_is_described(model):
    whole = model.model_json_schema()
    for name, schema in {"": whole, **whole["$defs"]}.items():
        assert described(schema) == [], name


def test_every_setting_of_a_role_is_described():
    for name, role in roles().items():
        assert described(role.settings_model.model_json_schema()) == [], name


def test_every_command_and_option_is_described():
    page = commands.render()
    for name, command in every_command():
        assert re.search(rf"^##+ {name}$", page, re.M), name
        assert command.help, name
        options = [param for param in command.params if isinstance(param, click.Option)]
        assert [option.opts for option in options if not option.help] == [], name


def test_exit_statuses_are_those_of_the_commands_at_a_glance():
    told = AT_A_GLANCE.partition("Exit status: ")[2].partition(". ")[0] + "10"
    numbers = {int(number) for number in re.findall(r"\b(\d+)\b", told)}
    assert set(exit_status.statuses()) == numbers | {141}
    assert all(exit_status.statuses().values())


def test_every_known_issue_is_on_the_page_of_its_topic():
    catalogue = known_issues()
    assert sorted(file for topic in TOPICS.values() for file in topic.files) == sorted(catalogue)
    index = PAGES["reference/known-issues.md"]()
    for name, topic in TOPICS.items():
        page = PAGES[f"reference/known-issues/{name}.md"]()
        ids = [issue.id for file in topic.files for issue in catalogue[file]]
        assert re.findall(r"^## .+ \{#(\S+)\}$", page, re.M) == ids
        assert re.findall(rf"\(known-issues/{name}\.md#(\S+)\)", index) == ids
    assert "](../../sources.md#vllm-38855)" in PAGES["reference/known-issues/gemma4.md"]()


def test_a_symptom_is_what_a_person_sees():
    """A phrase, or a message between backticks; what nobody sees says so."""
    for issues in known_issues().values():
        for issue in issues:
            assert issue.symptom.count("`") % 2 == 0, issue.id
            assert not re.match(r"(nothing|none)($|[;,:])", issue.symptom), issue.id
            assert len(issue.symptom) > 15, issue.id


def test_every_speed_constant_is_on_its_page():
    page = constants.render()
    for name in SPEED().figures():
        assert f"| `{name}` |" in page
    assert "| `HIGHEST` | `0.8` |" in page


# -- the parts -------------------------------------------------------------------------------------


def test_text_of_the_code_is_literal():
    assert plain("a*b*c <d> [e](f) `g*h` no_t") == r"a\*b\*c \<d> \[e\](f) `g*h` no\_t"
    assert cell("a | b\n  c") == r"a \| b c"
    assert code("it`s") == "``it`s``"
    assert code("`x`") == "`` `x` ``"
    assert table(("a",), []) == ""


def test_the_python_api_has_a_text_for_all():
    """Each method of `Cluster`, each of its arguments, and what is returned."""
    for name, function in python_api.methods():
        told = docstring.parse(function)
        assert told.summary, name
        assert set(inspect.signature(function).parameters) - {"self"} <= set(told.arguments), name
    page = python_api.render()
    for kind in API_RESULTS:
        assert f"### {kind.__name__}\n" in page
    assert "    replicas: int = 1,\n" in page
    assert "| `raise_for_errors()` |" in page
    assert "    *args: P.args,\n    **given: P.kwargs,\n) -> EventStream[T]" in page

"""The table of vLLM's flags against the parser of the vLLM that the lab serves with."""

import json
import subprocess
from functools import cache
from typing import Any

import pytest
from packaging.version import Version

from spark_cluster.importers.vllm_flags import kinds
from spark_cluster.models.naming import table
from spark_cluster_lab.layout import Layout

pytestmark = pytest.mark.lab

ASK = """
import json
from vllm.entrypoints.launchers.cli_args import make_arg_parser
from vllm.utils.argparse_utils import FlexibleArgumentParser
actions = make_arg_parser(FlexibleArgumentParser())._actions
told = {word: [type(a).__name__, a.nargs, a.dest] for a in actions for word in a.option_strings}
print("TOLD" + json.dumps(told))
"""
ASK_VALUES = """
import json
import vllm
from vllm.entrypoints.launchers.cli_args import make_arg_parser
from vllm.reasoning import ReasoningParserManager
from vllm.tool_parsers import ToolParserManager
from vllm.utils.argparse_utils import FlexibleArgumentParser
limited = [a for a in make_arg_parser(FlexibleArgumentParser())._actions if a.choices]
values = {a.option_strings[-1].lstrip("-"): list(map(str, a.choices)) for a in limited}
values["tool-call-parser"] = ToolParserManager.list_registered()
values["reasoning-parser"] = ReasoningParserManager.list_registered()
print("TOLD" + json.dumps([vllm.__version__, values, list(vllm.envs.environment_variables)]))
"""
BARE = ("BooleanOptionalAction", "_StoreTrueAction", "_StoreFalseAction")
BY_NARGS = {"+": "several", "?": "optional"}


@cache
def options() -> dict[str, tuple[str, str | None, str]]:
    """Each option of vLLM's parser: the class of its action, its nargs, where the value goes."""
    return {word: tuple(told) for word, told in asked(ASK).items()}


def asked(program: str) -> Any:
    """Run a program in the environment of the lab's vLLM, and read what it tells."""
    python = Layout.default().prepared / "vllm" / "bin" / "python"
    command = [python, "-c", program]
    done = subprocess.run(command, capture_output=True, text=True, timeout=600, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    line = next(line for line in done.stdout.splitlines() if line.startswith("TOLD"))
    return json.loads(line[4:])


def shape(action: str, nargs: str | None) -> str:
    if action in BARE:
        return "bare"
    return "append" if action == "_AppendAction" else BY_NARGS.get(nargs or "", "one word")


def test_every_flag_takes_what_the_table_says(lab):
    ours = kinds()
    aliases = table("vllm_flags", "importers")["aliases"]
    one_word = {"number", "size", "text", "json"}
    wrong = {}
    for word, (action, nargs, dest) in options().items():
        name = word.lstrip("-")
        if dest == "help" or name.startswith("no-"):
            continue
        if not word.startswith("--"):
            assert table("vllm_flags", "importers")["short"][word] == dest.replace("_", "-")
            continue
        kind = ours.get(aliases.get(name, name))
        if ("one word" if kind in one_word else kind) != shape(action, nargs):
            wrong[name] = (kind, shape(action, nargs))
    assert wrong == {}


def test_the_table_has_no_flag_that_vllm_lacks(lab):
    now = {name for names in table("vllm_flags", "importers")["flags"].values() for name in names}
    assert now <= {word.lstrip("-") for word in options()}


def test_lint_refuses_no_value_and_no_variable_that_vllm_takes(lab):
    version, values, variables = asked(ASK_VALUES)
    release = Version(Version(version).base_version)
    known = table("vllm_options", "issues")

    def of_release(spans: dict[str, list[str | None]]) -> set[str]:
        return {
            name
            for name, (since, until) in spans.items()
            if (since is None or release >= Version(since))
            and (until is None or release < Version(until))
        }

    compared = {name: set(taken) - {"None"} for name, taken in values.items()}
    compared = {name: taken for name, taken in compared.items() if name in known["values"]}
    assert len(compared) > 20
    lacking = {name: taken - of_release(known["values"][name]) for name, taken in compared.items()}
    assert not {name: gone for name, gone in lacking.items() if gone}
    ours = {name for name in variables if name.startswith("VLLM_")}
    assert of_release(known["variables"]) == ours

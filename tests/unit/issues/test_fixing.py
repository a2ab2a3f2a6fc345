"""Edits in recipes and command lines: what is edited changes, everything else stays as it is."""

from __future__ import annotations

import difflib
from pathlib import Path

import pytest
from cases import cases
from hypothesis import given, settings
from hypothesis import strategies as st

from spark_cluster.config.project import Project
from spark_cluster.errors import InvalidFile
from spark_cluster.importers import commandline
from spark_cluster.issues import lint_target
from spark_cluster.issues.entries import Edit
from spark_cluster.models.naming import table

RECIPE, COMMAND = cases(__file__, "fixing.toml").values()


def changed(before: str, after: str) -> list[str]:
    lines = difflib.ndiff(before.splitlines(), after.splitlines())
    return [line for line in lines if line.startswith(("+ ", "- "))]


def in_recipe(*edits: Edit) -> list[str]:
    return changed(RECIPE, lint_target.fixed_recipe(RECIPE, edits, "mine"))


SHIPPED = sorted((Path(__file__).parents[3] / "recipes").glob("*.yaml"))


@pytest.mark.parametrize("path", SHIPPED, ids=lambda path: path.stem)
def test_our_recipes_come_through_unchanged(path):
    text = path.read_text()
    assert lint_target.fixed_recipe(text, [], path.stem) == text
    edits = [Edit("flag", "max-model-len", 4321), Edit("env", "NEW", "1")]
    lines = changed(text, lint_target.fixed_recipe(text, edits, path.stem))
    assert len(lines) <= 4
    assert any("max-model-len: 4321" in line for line in lines)


def test_a_flag():
    edit = Edit("flag", "tool-call-parser", "gemma4")
    minus, plus = in_recipe(edit)
    assert minus.startswith("-   tool-call-parser: pythonic ")
    assert plus.startswith("+   tool-call-parser: gemma4 ")
    assert plus.endswith("# why")
    (plus,) = in_recipe(Edit("flag", "moe-backend", "marlin"))[:1]
    assert plus == "+   moe-backend: marlin"
    (minus,) = in_recipe(Edit("flag", "max-model-len", None))
    assert minus == "-   max-model-len: 32768"


def test_what_is_not_among_the_flags():
    assert "+ gpu_memory_utilization: auto" in in_recipe(
        Edit("flag", "gpu-memory-utilization", 0.8)
    )
    lines = in_recipe(Edit("image", "", "vllm/vllm-openai:gemma4-cu130"))
    assert any("digest" in line and line.startswith("- ") for line in lines)
    assert any(line.startswith("+   ref: vllm/vllm-openai:gemma4-cu130") for line in lines)
    assert "+ ready_timeout_s: 1800" in in_recipe(Edit("recipe", "ready_timeout_s", 1800))
    assert not any(
        line.startswith("+ env") for line in in_recipe(Edit("env", "NCCL_TIMEOUT", None))
    )


def test_what_a_recipe_does_not_hold():
    assert not lint_target.can_fix_recipe(Edit("docker", "ipc", "host"))
    assert not lint_target.can_fix_recipe(Edit("flag", "host", "127.0.0.1"))
    assert lint_target.can_fix_recipe(Edit("flag", "tool-call-parser", "gemma4"))


def test_a_recipe_is_repaired_and_read_again(tmp_path):
    path = tmp_path / "mine.yaml"
    path.write_text(RECIPE)
    project = Project(tmp_path)
    done = lint_target.fix(lint_target.of_target(str(path), project, None), project)
    assert {f.id for f in done.fixed} == {
        *("gemma4-pythonic-parser", "gemma4-plain-image-tag", "share-too-high")
    }
    assert not [f for f in done.remaining if f.severity == "error"]
    path.write_text(done.text)
    again = lint_target.fix(lint_target.of_target(str(path), project, None), project)
    assert (again.text, again.fixed) == (done.text, [])
    assert "# What it is." in done.text
    assert "# why" in done.text


def in_command(*edits: Edit, text: str = COMMAND) -> str:
    fixed = lint_target.fixed_command(text, edits, commandline.parse(text))
    commandline.parse(fixed)
    return fixed


def test_flags_of_a_command():
    assert in_command() == COMMAND
    assert "--tool-call-parser gemma4" in in_command(Edit("flag", "tool-call-parser", "gemma4"))
    assert "--max-model-len 2048 \\\n" in in_command(Edit("flag", "max-model-len", 2048))
    assert "max_model_len" not in in_command(Edit("flag", "max-model-len", None))
    gone = in_command(Edit("flag", "enforce-eager", None))
    assert gone == COMMAND.replace("  --enforce-eager \\\n", "")
    added = in_command(Edit("flag", "moe-backend", "marlin"), Edit("flag", "enforce-eager", True))
    assert "repo/image:1 \\\n  --moe-backend marlin --model google" in added
    first = in_command(Edit("flag", "max-num-seqs", 4), text="vllm serve org/m")
    assert first == "vllm serve org/m --max-num-seqs 4"
    config = {"method": "mtp", "num_speculative_tokens": 2}
    launch = commandline.parse(in_command(Edit("flag", "speculative-config", config)))
    assert launch.args["speculative-config"] == config


def test_the_container_of_a_command():
    opened = Edit("docker", "publish", "127.0.0.1:8000:8000", replaces="8000:8000")
    assert in_command(opened) == COMMAND.replace("-p 8000", "-p 127.0.0.1:8000")
    for written in ("-p8000:8000", "--publish=8000:8000", "--publish 8000:8000"):
        text = COMMAND.replace("-p 8000:8000", written)
        launch = commandline.parse(in_command(opened, text=text))
        assert launch.docker["publish"] == "127.0.0.1:8000:8000"
    limit = Edit("docker", "ulimit", "memlock=-1", replaces="memlock=1")
    assert commandline.parse(in_command(limit)).docker["ulimit"] == "memlock=-1"
    launch = commandline.parse(in_command(Edit("docker", "network", "host")))
    assert launch.docker["network"] == "host"
    text = COMMAND.replace("-d", "--net bridge")
    assert "--network host" in in_command(Edit("docker", "network", "host"), text=text)
    image = commandline.parse(in_command(Edit("image", "", "other/image:2"))).image
    assert image == "other/image:2"


def test_the_environment_of_a_command():
    assert "NCCL" not in in_command(Edit("env", "NCCL_TIMEOUT", None))
    assert commandline.parse(in_command(Edit("env", "NCCL_TIMEOUT", None))).env == {"A": "1"}
    assert commandline.parse(in_command(Edit("env", "A", "2"))).env["A"] == "2"
    assert commandline.parse(in_command(Edit("env", "B", "3"))).env["B"] == "3"
    assert in_command(Edit("env", "NOT_THERE", None)) == COMMAND
    bare = "A=1 vllm serve org/m --port 1"
    assert in_command(Edit("env", "A", None), text=bare).strip() == "vllm serve org/m --port 1"
    assert in_command(Edit("env", "A", "2"), text=bare) == "A=2 vllm serve org/m --port 1"
    assert in_command(Edit("env", "B", "2"), text=bare) == "B=2 A=1 vllm serve org/m --port 1"


FLAGS = st.sampled_from(
    ["tool-call-parser", "max-model-len", "enforce-eager", "host", "moe-backend", "port"]
)
VALUES = {"max-model-len": 4096, "port": 8000, "enforce-eager": True}


@given(st.lists(st.tuples(FLAGS, st.booleans()), max_size=6))
@settings(deadline=None)
def test_any_row_of_edits_leaves_a_launch(rows):
    edits = [Edit("flag", name, VALUES.get(name, "x") if put else None) for name, put in rows]
    before, text = commandline.parse(COMMAND), COMMAND
    for edit in edits:
        text = lint_target.fixed_command(text, [edit], commandline.parse(text))
    after = commandline.parse(text)
    last = {edit.name: edit.value for edit in edits}
    wanted = {**before.args, **{n: v for n, v in last.items() if v is not None}}
    for name, value in last.items():
        if value is None:
            wanted.pop(name, None)
    assert dict(after.args) == wanted
    assert (after.image, after.env, after.docker) == (before.image, before.env, before.docker)


def test_a_file_is_written_whole_or_not_at_all(tmp_path):
    path = tmp_path / "a.yaml"
    lint_target.write(path, "x")
    assert path.read_text() == "x"
    with pytest.raises(InvalidFile, match="cannot be written"):
        lint_target.write(tmp_path / "none" / "a.yaml", "x")
    assert [p.name for p in tmp_path.iterdir()] == ["a.yaml"]


GONE = (
    "docker run vllm/vllm-openai:v0.18.0 m --swap-space 8 --num-scheduler-steps=8 "
    "--cuda-graph-sizes 1 2 --disable-mm-preprocessor-cache --enable-reasoning --tp 1"
)


def test_flags_that_went_are_left_out_or_have_the_name_that_the_release_knows(tmp_path):
    project = Project(tmp_path)
    done = lint_target.fix(lint_target.of_command(GONE, None), project)
    after = "0.8 --cudagraph-capture-sizes 1 2 --mm-processor-cache-gb 0 --tp 1"
    assert done.text.endswith(f"--gpu-memory-utilization {after}")
    assert "unknown-flag" in {finding.id for finding in done.fixed}


def test_a_flag_that_went_is_left_out_where_its_new_name_is_given_too(tmp_path):
    text = (
        "docker run lmsysorg/sglang:v0.5.20 sglang serve --model-path m --cuda-graph-max-bs 8 "
        "--cuda-graph-max-bs-decode 16 --enable-deepep-moe --no-stream-output"
    )
    project = Project(tmp_path)
    done = lint_target.fix(lint_target.of_command(text, None), project)
    after = "--cuda-graph-max-bs-decode 16 --moe-a2a-backend deepep --no-stream-output"
    assert done.text.endswith(f"--model-path m {after}")


def test_a_flag_takes_the_place_of_another_one():
    edit = Edit("flag", "gpu-memory-limit", 4, replaces="max-model-len")
    minus, plus = in_recipe(edit)
    assert (minus, plus) == ("-   max-model-len: 32768", "+   gpu-memory-limit: 4")


KEPT = """\
name: mine
model: {name: org/m, served_name: m}
image: {ref: "vllm/vllm-openai:v0.26.0"}
tensor_parallel: {min: 1, max: 1}
engine_args:
  # first
  cuda-graph-sizes: [1, 2, 4]  # small ones
  swap-space: 4                # none
  # about requests
  max-num-seqs: 8
  device: cuda

  # about length
  max-model-len: 4096
  rope-theta: 1
  use-v2-block-manager: true

gpu_memory_utilization: auto
vllm: {version: "0.26.0", supported: ">=0.20"}
"""


def test_comments_stay_where_flags_of_a_recipe_are_renamed_or_left_out(tmp_path):
    path = tmp_path / "recipes/mine.yaml"
    path.parent.mkdir()
    path.write_text(KEPT)
    project = Project(tmp_path)
    done = lint_target.fix(lint_target.of_target(str(path), project, None), project)
    assert changed(KEPT, done.text) == [
        "-   cuda-graph-sizes: [1, 2, 4]  # small ones",
        "+   cudagraph-capture-sizes: [1, 2, 4] # small ones",
        "-   swap-space: 4                # none",
        "-   device: cuda",
        "-   use-v2-block-manager: true",
    ]
    assert [finding.id for finding in done.fixed] == ["unknown-flag"], "some of them were"
    assert "unknown-flag" in {finding.id for finding in done.remaining}, "--rope-theta is left"


def test_many_flags_that_went_are_fixed_in_one_run(tmp_path):
    gone = [
        f"--{flag}=1"
        for flag, way in table("vllm_options", "issues")["instead"].items()
        if way.get("drop")
    ]
    served = "docker run --gpus all vllm/vllm-openai:v0.26.0 m --gpu-memory-utilization 0.8"
    text = f"{served} {' '.join(gone)}"
    done = lint_target.fix(lint_target.of_command(text, None), Project(tmp_path))
    assert len(gone) > 9
    assert done.text == served

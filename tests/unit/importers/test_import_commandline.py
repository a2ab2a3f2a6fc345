"""Command lines that start vLLM."""

import json
import shlex
from pathlib import Path
from typing import Any

import pytest
from article_commands import BENCHY, RUN_RECIPE
from cases import cases
from factories import put
from hypothesis import given
from hypothesis import strategies as st

from spark_cluster.errors import InvalidFile, UsageError
from spark_cluster.importers.commandline import parse, read
from spark_cluster.importers.files import read_file
from spark_cluster.importers.vllm_flags import kinds

CASES = cases(__file__, "import_commandline.toml")


@pytest.mark.parametrize(
    ("text", "found", "hint"),
    [
        (RUN_RECIPE, "./run-recipe.sh gemma-4-31b-fp8", "recipes import FILE"),
        (BENCHY, "uvx llama-benchy", "measures a server that runs already"),
    ],
)
def test_others_are_no_launch(text, found, hint):
    with pytest.raises(UsageError) as caught:
        parse(text)
    assert found in caught.value.message
    assert hint in caught.value.hint
    assert caught.value.where == "line 1"


@pytest.mark.parametrize("text", CASES["same"])
def test_all_the_ways_to_start_it(text):
    launch = parse(text)
    assert (launch.model, launch.tp) == ("org/model", 2)
    assert launch.args["tensor-parallel-size"] == 2
    assert "model" not in launch.args


@pytest.mark.parametrize(("flags", "expected"), CASES["flags"])
def test_values(flags, expected):
    assert parse(f"vllm serve org/model {flags}").args == expected


def test_a_unit_of_systemd_starts_what_execstart_says(tmp_path: Path) -> None:
    unit = tmp_path / "vllm.service"
    start = "ExecStart=/usr/bin/docker run --rm img \\\n  vllm serve org/model -tp 2"
    rest = "ExecStop=/usr/bin/docker stop m\n[Install]\nWantedBy=default.target\n"
    put(unit, f"[Unit]\nDescription=a server\n[Service]\nType=simple\n{start}\n{rest}")
    found = read_file(unit).launch
    assert (found.model, found.tp) == ("org/model", 2)
    variables = 'Environment=VLLM_A=1\nEnvironment="VLLM_B=x y" VLLM_C=3\nExecStart=\n'
    put(tmp_path / "venv.service", f"[Service]\n{variables}ExecStart=-/venv/bin/vllm serve org/m\n")
    given = read_file(tmp_path / "venv.service").launch.env
    assert given == {"VLLM_A": "1", "VLLM_B": "x y", "VLLM_C": "3"}
    put(unit, unit.read_text().replace("-tp 2", "'"))
    with pytest.raises(InvalidFile) as caught:
        read_file(unit)
    assert caught.value.where.endswith("vllm.service:6"), "the line of the unit"


def test_a_script_that_writes_a_unit_starts_what_it_starts_itself(tmp_path: Path) -> None:
    written = "cat > x.service <<EOF\n[Service]\nExecStart=/usr/bin/watchdog\nEOF\n"
    put(tmp_path / "start.sh", f"#!/bin/bash\n{written}docker run img vllm serve org/model\n")
    assert read_file(tmp_path / "start.sh").launch.model == "org/model"


@pytest.mark.parametrize(("image", "version"), CASES["images"])
def test_version_of_an_image(image, version):
    assert parse(f"docker run {image} --model m").vllm == (version or None)


@pytest.mark.parametrize(("words", "base", "quantization"), CASES["names"])
def test_what_names_tell(words, base, quantization):
    launch = parse(f"vllm serve {words}")
    assert (launch.base or "", launch.quantization or "") == (base, quantization)


@pytest.mark.parametrize(
    ("text", "where", "message", "hint"),
    [
        *CASES["errors"],
        ("vllm serve m " + "x" * 100_000, "", "a command line of 100,013 characters", ""),
    ],
)
def test_errors_say_what_and_where(text, where, message, hint):
    with pytest.raises(UsageError) as caught:
        parse(text)
    assert caught.value.where == where
    assert message in caught.value.message
    assert hint in caught.value.hint


@pytest.mark.parametrize("text", CASES["secret"])
def test_a_secret_is_in_no_message(text):
    with pytest.raises(UsageError) as caught:
        parse(text)
    assert "sEcReT" not in str(caught.value)


def test_a_secret_is_in_nothing_that_is_reported():
    reading = read(
        "HF_TOKEN=sEcReT hf login --token sEcReT; docker exec -e T=sEcReT c "
        "vllm serve m --new-token sEcReT"
    )
    left = [one.what for one in reading.left_out]
    assert "sEcReT" not in " ".join([*left, *reading.notes])


NAMES = {
    kind: sorted(name for name, its in kinds().items() if its == kind and name != "model")
    for kind in set(kinds().values())
}
WORD = st.from_regex(r"[A-Za-z_/][A-Za-z0-9_/. ='\"$#-]{0,12}", fullmatch=True)
JSON = st.dictionaries(WORD, st.one_of(st.integers(0, 99), WORD, st.booleans()), max_size=3)


@st.composite
def flags(draw: st.DrawFn) -> dict[str, Any]:
    values = {
        "bare": st.just(True),
        "number": st.integers(1, 10**6),
        "size": st.integers(1, 10**9),
        "text": WORD,
        "json": JSON,
        "several": st.lists(WORD, min_size=2, max_size=3),
    }
    chosen: dict[str, Any] = {}
    for kind, value in values.items():
        for name in draw(st.lists(st.sampled_from(NAMES[kind]), max_size=3, unique=True)):
            # A word such as '1' would come back as a number, and sizes count the machines.
            if not name.endswith("size"):
                chosen[name] = draw(value)
    return chosen


def words_of(args: dict[str, Any], draw_equals: bool) -> list[str]:
    words: list[str] = []
    for flag, value in args.items():
        if value is True:
            words.append(f"--{flag}")
        elif isinstance(value, list):
            words += [f"--{flag}", *value]
        else:
            text = json.dumps(value) if isinstance(value, dict) else str(value)
            words += [f"--{flag}={text}"] if draw_equals else [f"--{flag}", text]
    return words


@given(flags(), st.booleans(), st.booleans())
def test_words_of_a_launch_are_read_back(args, equals, underscores):
    words = words_of(args, equals)
    if underscores:
        words = [
            w.partition("=")[0].replace("-", "_").replace("__", "--", 1)
            + "".join(w.partition("=")[1:])
            if w.startswith("--")
            else w
            for w in words
        ]
    launch = parse(shlex.join(["vllm", "serve", "org/model", *words]))
    assert launch.args == args
    assert parse(shlex.join(["docker", "run", "img", "vllm", "serve", "m", *words])).args == args


@given(st.text(alphabet="vlm serve--tpdockrun$'\"{}=,:\\\n01.", max_size=60))
def test_anything_else_is_refused_in_words(text):
    try:
        parse(f"vllm serve m {text}")
    except UsageError as error:
        assert error.message

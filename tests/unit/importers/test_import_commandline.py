"""Command lines that start vLLM."""

from __future__ import annotations

import json
import shlex
from typing import Any

import pytest
from article_commands import BENCHY, LAUNCHES, MTP, PART_7, PART_9, RUN_RECIPE, SINGLE_SPARK
from cases import cases
from hypothesis import given
from hypothesis import strategies as st

from spark_cluster.config.launch import Volume
from spark_cluster.errors import UsageError
from spark_cluster.importers.commandline import parse, read
from spark_cluster.importers.importer import Source
from spark_cluster.importers.vllm_flags import kinds

CASES = cases(__file__, "import_commandline.toml")


def what(source: Source) -> list[str]:
    return [left.what for left in source.left_out]


def args_of(flags: str) -> dict[str, Any]:
    return dict(parse(f"vllm serve org/model {flags}").args)


class TestArticles:
    def test_part_9(self) -> None:
        launch = parse(PART_9)
        assert launch.model == "/models/gemma4-31b"
        assert launch.base == "google/gemma-4-31B-it"
        assert launch.quantization == "nvfp4"
        assert (launch.image, launch.vllm) == ("vllm/vllm-openai:gemma4-cu130", "0.19.0")
        assert launch.volumes == (Volume("~/models/gemma4-31b-nvfp4", "/models/gemma4-31b"),)
        assert launch.docker == {
            "detach": True,
            "name": "gemma4-31b",
            "gpus": "all",
            "ipc": "host",
            "shm-size": "64gb",
            "publish": "8002:8000",
        }
        assert launch.args == {
            "served-model-name": "gemma-4-31b",
            "quantization": "modelopt",
            "kv-cache-dtype": "fp8",
            "max-model-len": 32768,
            "gpu-memory-utilization": 0.85,
            "reasoning-parser": "gemma4",
            "enable-auto-tool-choice": True,
            "tool-call-parser": "pythonic",
        }
        assert (launch.tp, launch.nodes, launch.origin) == (1, 1, "command")

    def test_single_spark(self) -> None:
        launch = parse(SINGLE_SPARK)
        assert launch.model == "nvidia/Gemma-4-31B-IT-NVFP4"
        assert (launch.base, launch.quantization) == ("google/gemma-4-31B-it", "nvfp4")
        assert launch.vllm is None
        assert launch.env["VLLM_CACHE_ROOT"] == "/ai/vllm-cache/gemma"
        assert launch.docker["network"] == "host"
        assert launch.args["gpu-memory-utilization"] == 0.5
        bare = ("language-model-only", "enable-prefix-caching", "enable-chunked-prefill")
        assert all(launch.args[flag] is True for flag in (*bare, "trust-remote-code"))

    def test_part_7(self) -> None:
        launch = parse(PART_7)
        assert (launch.base, launch.quantization) == ("google/gemma-4-26B-A4B-it", "nvfp4")
        assert launch.args["moe-backend"] == "marlin"
        assert launch.args["port"] == 8000
        assert launch.volumes[1].target.endswith("/vllm/model_executor/models/gemma4.py")

    def test_mtp(self) -> None:
        launch = parse(MTP)
        assert (launch.base, launch.quantization) == ("google/gemma-4-26B-A4B-it", "fp8")
        assert launch.drafter == "google/gemma-4-26B-A4B-it-assistant"
        assert launch.args["speculative-config"] == {
            "method": "gemma4_mtp",
            "model": "google/gemma-4-26B-A4B-it-assistant",
            "num_speculative_tokens": 4,
        }
        assert launch.image == ""

    @pytest.mark.parametrize("name", LAUNCHES)
    def test_nothing_had_to_be_guessed(self, name: str) -> None:
        reading = read(LAUNCHES[name])
        assert reading.notes == []
        assert reading.left_out == []

    @pytest.mark.parametrize(
        ("text", "found", "hint"),
        [
            (RUN_RECIPE, "./run-recipe.sh gemma-4-31b-fp8", "recipes import FILE"),
            (BENCHY, "uvx llama-benchy", "measures a server that runs already"),
        ],
    )
    def test_others_are_no_launch(self, text: str, found: str, hint: str) -> None:
        with pytest.raises(UsageError) as caught:
            parse(text)
        assert found in caught.value.message
        assert hint in caught.value.hint
        assert caught.value.where == "line 1"


@pytest.mark.parametrize("text", CASES["same"])
def test_all_the_ways_to_start_it(text: str) -> None:
    launch = parse(text)
    assert (launch.model, launch.tp) == ("org/model", 2)
    assert launch.args["tensor-parallel-size"] == 2
    assert "model" not in launch.args


class TestFlags:
    @pytest.mark.parametrize(("flags", "expected"), CASES["flags"])
    def test_values(self, flags: str, expected: dict[str, Any]) -> None:
        assert args_of(flags) == expected

    def test_unknown_flags_are_read_by_their_looks_and_noted(self) -> None:
        reading = read("vllm serve m --use-moon --moon-size 3 --moon full --max-num-seq 4")
        assert reading.launch.args["use-moon"] is True
        assert reading.launch.args["moon-size"] == 3
        assert reading.launch.args["moon"] == "full"
        assert reading.launch.args["max-num-seqs"] == 4
        assert len(reading.notes) == 4
        assert "--use-moon is not known here, read as bare" in reading.notes[0]

    def test_flags_of_earlier_versions_are_known(self) -> None:
        reading = read("vllm serve m --swap-space 4 --disable-log-requests --task generate")
        assert reading.notes == []
        assert reading.launch.args["disable-log-requests"] is True

    def test_many_machines(self) -> None:
        launch = parse("vllm serve m -tp 2 -pp 2 --distributed-executor-backend ray")
        assert (launch.tp, launch.nodes) == (2, 4)
        assert parse("vllm serve m --nnodes 2").nodes == 2


class TestDocker:
    def test_options(self) -> None:
        launch = parse(
            "docker run -itd --rm --privileged -e A=1 --env=B='x y' -eC=2 -p8000:8000 "
            "-p 9000:9000 --ulimit memlock=-1 --ulimit stack=67108864 --device /dev/infiniband "
            "--cap-add=IPC_LOCK --memory 100g --net host "
            "img@sha256:" + "a" * 64 + " vllm serve m"
        )
        assert launch.env == {"A": "1", "B": "x y", "C": "2"}
        assert launch.docker == {
            "interactive": True,
            "tty": True,
            "detach": True,
            "rm": True,
            "privileged": True,
            "publish": ["8000:8000", "9000:9000"],
            "ulimit": ["memlock=-1", "stack=67108864"],
            "device": "/dev/infiniband",
            "cap-add": "IPC_LOCK",
            "memory": "100g",
            "network": "host",
        }
        assert (launch.image, launch.digest) == ("img", "sha256:" + "a" * 64)

    def test_volumes(self) -> None:
        launch = parse(
            "docker run -v /a:/b:ro -v $HOME/c:/d -v ${X:-/e}:/f --volume=named:/g "
            "--mount type=bind,source=/h,target=/i,readonly --mount type=tmpfs,dst=/t "
            "img vllm serve m"
        )
        assert launch.volumes == (
            Volume("/a", "/b", read_only=True),
            Volume("$HOME/c", "/d"),
            Volume("/e", "/f"),
            Volume("named", "/g"),
            Volume("/h", "/i", read_only=True),
        )
        assert launch.docker["mount"] == "type=tmpfs,dst=/t"

    def test_variables_of_the_shell_before_the_command(self) -> None:
        reading = read("export HF_TOKEN=x\nA=1 docker run -e A -e HF_TOKEN -e B img vllm serve m")
        assert reading.launch.env == {"A": "1", "HF_TOKEN": "x"}
        assert what(reading) == ["-e B: its value is in the shell that runs it"]

    def test_variables_of_a_plain_serve(self) -> None:
        assert parse("export A=1\nB=2 vllm serve m").env == {"A": "1", "B": "2"}

    def test_what_stands_around_is_reported(self) -> None:
        reading = read("docker pull img\ndocker run img vllm serve m | tee log")
        assert what(reading) == ["command `docker pull img`", "command `tee log`"]

    def test_the_official_image_with_vllm_serve_is_noted(self) -> None:
        (note,) = read("docker run vllm/vllm-openai:v0.20.0 vllm serve m").notes
        assert "would be given twice" in note


@pytest.mark.parametrize(("image", "version"), CASES["images"])
def test_version_of_an_image(image: str, version: str | None) -> None:
    assert parse(f"docker run {image} --model m").vllm == (version or None)


@pytest.mark.parametrize(("words", "base", "quantization"), CASES["names"])
def test_what_names_tell(words: str, base: str | None, quantization: str | None) -> None:
    launch = parse(f"vllm serve {words}")
    assert (launch.base or "", launch.quantization or "") == (base, quantization)


@pytest.mark.parametrize(
    ("text", "where", "message", "hint"),
    [
        *CASES["errors"],
        ("vllm serve m " + "x" * 100_000, "", "a command line of 100,013 characters", ""),
    ],
)
def test_errors_say_what_and_where(text: str, where: str, message: str, hint: str) -> None:
    with pytest.raises(UsageError) as caught:
        parse(text)
    assert caught.value.where == where
    assert message in caught.value.message
    assert hint in caught.value.hint


@pytest.mark.parametrize("text", CASES["secret"])
def test_a_secret_is_in_no_message(text: str) -> None:
    with pytest.raises(UsageError) as caught:
        parse(text)
    assert "sEcReT" not in str(caught.value)


def test_a_secret_is_in_nothing_that_is_reported() -> None:
    reading = read(
        "HF_TOKEN=sEcReT hf login --token sEcReT; docker exec -e T=sEcReT c "
        "vllm serve m --new-token sEcReT"
    )
    assert "sEcReT" not in " ".join([*what(reading), *reading.notes])


def test_the_launcher_of_spark_vllm_docker() -> None:
    reading = read(
        "A=1 ./launch-cluster.sh -t vllm-node-tf5 -e B=2 --solo exec vllm serve org/m --port 8000"
    )
    assert reading.launch.image == "vllm-node-tf5"
    assert reading.launch.env == {"A": "1", "B": "2"}
    assert what(reading) == ["launch-cluster.sh --solo"]


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
def test_words_of_a_launch_are_read_back(
    args: dict[str, Any], equals: bool, underscores: bool
) -> None:
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
def test_anything_else_is_refused_in_words(text: str) -> None:
    try:
        parse(f"vllm serve m {text}")
    except UsageError as error:
        assert error.message

"""Command lines that start vLLM."""

from __future__ import annotations

import json
import shlex
from typing import Any

import pytest
from article_commands import BENCHY, LAUNCHES, MTP, PART_7, PART_9, RUN_RECIPE, SINGLE_SPARK
from hypothesis import given
from hypothesis import strategies as st

from spark_cluster.config.launch import Volume
from spark_cluster.errors import UsageError
from spark_cluster.importers.commandline import parse, read
from spark_cluster.importers.importer import Source
from spark_cluster.importers.vllm_flags import kinds


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


@pytest.mark.parametrize(
    "text",
    [
        "vllm serve org/model -tp 2",
        "vllm serve --model org/model --tensor-parallel-size 2",
        "vllm serve --model=org/model --tensor_parallel_size=2",
        "vllm serve -tp=2 org/model",
        "$ sudo -E nohup vllm serve org/model -tp 2 > log 2>&1 &",
        "python3 -m vllm.entrypoints.openai.api_server --model org/model -tp 2",
        "/opt/venv/bin/python -u -m vllm.entrypoints.openai.api_server --model org/model -tp 2",
        "python -m vllm.entrypoints.cli.main serve org/model -tp 2",
        "/usr/local/bin/vllm serve org/model -tp 2",
        "uv run --with ray vllm serve org/model -tp 2",
        "env A=1 timeout 60 vllm serve org/model -tp 2",
        "docker run img vllm serve org/model -tp 2",
        "docker run img bash -c 'vllm serve org/model -tp 2'",
        'docker run img bash -lc "ray start --head; exec vllm serve org/model -tp 2"',
        "docker run --entrypoint vllm img serve org/model -tp 2",
        "docker run --entrypoint vllm img org/model -tp 2",
        "docker run --entrypoint bash img -c 'vllm serve org/model -tp 2'",
        "docker run --entrypoint python3 img -m vllm.entrypoints.openai.api_server "
        "--model org/model -tp 2",
        "docker run vllm/vllm-openai:v0.28.0 org/model -tp 2",
        "docker run other/image --model org/model -tp 2",
        "podman run img vllm serve org/model -tp 2",
        "docker container run img vllm serve org/model -tp 2",
        "docker exec -it head vllm serve org/model -tp 2",
        "uvx --from vllm vllm serve org/model -tp 2",
        "./launch-cluster.sh -t img -n a,b --solo exec vllm serve org/model -tp 2",
        "docker pull img && docker run img vllm serve org/model -tp 2",
        "cd /srv\nsource .venv/bin/activate\nvllm serve org/model \\\n  -tp 2",
    ],
)
def test_all_the_ways_to_start_it(text: str) -> None:
    launch = parse(text)
    assert (launch.model, launch.tp) == ("org/model", 2)
    assert launch.args["tensor-parallel-size"] == 2
    assert "model" not in launch.args


class TestFlags:
    @pytest.mark.parametrize(
        ("flags", "expected"),
        [
            ("--max-model-len 8192", {"max-model-len": 8192}),
            ("--max-model-len 32k", {"max-model-len": 32000}),
            ("--max-model-len 32K", {"max-model-len": 32768}),
            ("--max-model-len auto", {"max-model-len": "auto"}),
            ("--max-model-len -1", {"max-model-len": -1}),
            ("--kv-cache-memory-bytes 1.5g", {"kv-cache-memory-bytes": 1_500_000_000}),
            ("--kv_cache_dtype=fp8", {"kv-cache-dtype": "fp8"}),
            ("--no-enable-prefix-caching", {"no-enable-prefix-caching": True}),
            ("--enable-chunked-prefill=False", {"no-enable-chunked-prefill": True}),
            ("--enable-chunked-prefill True", {"enable-chunked-prefill": True}),
            ("--served-model-name a b", {"served-model-name": ["a", "b"]}),
            ("--served-model-name 42", {"served-model-name": "42"}),
            ("--served-model-name a", {"served-model-name": "a"}),
            ("--revision 0123456", {"revision": "0123456"}),
            ("--cudagraph-capture-sizes 1 2 4", {"cudagraph-capture-sizes": [1, 2, 4]}),
            ("--middleware a --middleware b", {"middleware": ["a", "b"]}),
            ("-O3", {"optimization-level": 3}),
            ("-O 2", {"optimization-level": 2}),
            ("-q fp8", {"quantization": "fp8"}),
            ("-ep", {"enable-expert-parallel": True}),
            ("-n 2 -r 1", {"nnodes": 2, "node-rank": 1}),
            ("--device-memory-utilization 0.5", {"gpu-memory-utilization": 0.5}),
            ("--gpu-memory-util 0.5", {"gpu-memory-utilization": 0.5}),
            ("--hf-token --enforce-eager", {"hf-token": True, "enforce-eager": True}),
            ("--limit-mm-per-prompt image=4", {"limit-mm-per-prompt": "image=4"}),
            ("""--limit-mm-per-prompt '{"image": 4}'""", {"limit-mm-per-prompt": {"image": 4}}),
            ("""--allowed-origins '["*"]'""", {"allowed-origins": '["*"]'}),
            ("-cc.mode 3 -cc.a.b=x", {"compilation-config": {"mode": 3, "a": {"b": "x"}}}),
            ("--speculative-config.method=mtp", {"speculative-config": {"method": "mtp"}}),
            ("--port $PORT", {"port": "$PORT"}),
            ("--seed 0", {"seed": 0}),
        ],
    )
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


@pytest.mark.parametrize(
    ("image", "version"),
    [
        ("vllm/vllm-openai:gemma4", "0.18.2.dev0"),
        ("vllm/vllm-openai:gemma4-cu130", "0.19.0"),
        ("docker.io/vllm/vllm-openai:gemma4-0505-cu130", "0.20.2rc1.dev49"),
        ("vllm/vllm-openai:v0.28.0", "0.28.0"),
        ("vllm/vllm-openai:v0.19.1-aarch64-cu130-ubuntu2404", "0.19.1"),
        ("vllm/vllm-openai:v0.20.2rc1", "0.20.2rc1"),
        ("vllm/vllm-openai:latest", None),
        ("vllm/vllm-openai", None),
        ("nvcr.io/nvidia/vllm:26.05-py3", None),
        ("mine/vllm-openai:v0.28.0", None),
    ],
)
def test_version_of_an_image(image: str, version: str | None) -> None:
    assert parse(f"docker run {image} --model m").vllm == version


@pytest.mark.parametrize(
    ("words", "base", "quantization"),
    [
        ("google/gemma-4-31B-it", None, "bf16"),
        ("google/gemma-4-31B-it --quantization fp8", None, "fp8-online"),
        ("google/gemma-4-31B-it --quantization fp8_per_block", None, "fp8-online"),
        ("nvidia/Gemma-4-31B-IT-NVFP4", "google/gemma-4-31B-it", "nvfp4"),
        ("nvidia/Gemma-4-26B-A4B-NVFP4 -q modelopt", "google/gemma-4-26B-A4B-it", "nvfp4"),
        ("RedHatAI/gemma-4-31B-it-FP8-block", "google/gemma-4-31B-it", "fp8"),
        ("RedHatAI/gemma-4-31B-it-FP8-block -q fp8", "google/gemma-4-31B-it", "fp8"),
        ("nvidia/Qwen3.6-35B-A3B-NVFP4", "Qwen/Qwen3.6-35B-A3B", "nvfp4"),
        ("openai/gpt-oss-120b", None, "mxfp4"),
        ("org/Unheard-Of-7B", None, None),
        ("org/Unheard-Of-7B-AWQ", None, "awq-int4"),
        ("org/Unheard-Of-7B -q fp8", None, "fp8-online"),
        ("org/Unheard-Of-7B -q modelopt", None, None),
        ("org/Unheard-Of-7B -q modelopt_fp4", None, "nvfp4"),
        ("org/Unheard-Of-7B -q bitsandbytes", None, None),
        ("/models/x -q fp8", None, None),
        ("/models/gemma4", None, None),
        ("/models/gemma4 --served-model-name gemma-4-31b", "google/gemma-4-31B-it", "bf16"),
        ("/models/gemma-4-26b-a4b --served-model-name gemma-4-31b", None, None),
        (
            "/root/.cache/huggingface/hub/models--google--gemma-4-31B-it/snapshots/abc",
            "google/gemma-4-31B-it",
            "bf16",
        ),
    ],
)
def test_what_names_tell(words: str, base: str | None, quantization: str | None) -> None:
    launch = parse(f"vllm serve {words}")
    assert (launch.base, launch.quantization) == (base, quantization)


@pytest.mark.parametrize(
    ("text", "where", "message", "hint"),
    [
        ("", "", "there is no command", "expected `docker run"),
        ("ls -l", "line 1", "found 'ls'", "expected `docker run"),
        ("docker compose up", "line 1", "docker compose up", "starts no container by itself"),
        ("vllm bench serve --model m", "line 1", "vllm bench serve", "expected"),
        ("python train.py", "line 1", "python train.py", "expected"),
        ("vllm serve", "line 1", "no model to serve", "--model"),
        ("vllm serve --enforce-eager", "line 1", "no model to serve", "--model"),
        ("docker run img", "line 1", "nothing follows the image img", "vllm serve MODEL"),
        ("docker run --gpus all", "line 1", "no image", "image's name"),
        ("docker run img sleep 1", "line 1", "does not start vLLM: found 'sleep 1'", "after the"),
        ("vllm serve m\nvllm serve n", "line 1", "2 launches of vLLM", "one at a time"),
        ("vllm serve m \\\n --seed", "line 2", "--seed has no value", "give it one"),
        ("vllm serve m --seed --port 1", "line 1", "--seed has no value", "give it one"),
        ("vllm serve m --seed 1 \\\n--seed 2", "line 2", "given twice, first on line 1", "keep"),
        ("vllm serve m -tp 2 --tensor-parallel-size 2", "line 1", "given twice", "keep"),
        (
            "vllm serve m --enable-prefix-caching --no-enable-prefix-caching",
            "line 1",
            "--no-enable-prefix-caching contradicts --enable-prefix-caching",
            "keep one",
        ),
        ("vllm serve m --enforce-eager n", "line 1", "'n', which belongs to no flag", "quotes"),
        ("vllm serve m --model n", "line 1", "'m', which belongs to no flag", "given already"),
        ("vllm serve m --enforce-eager=3", "line 1", "takes no value; found '3'", ""),
        ("vllm serve m --max-num-seqs many", "line 1", "found 'many', expected a number", ""),
        ("vllm serve m -tp 0", "", "--tensor-parallel-size 0: expected 1 or more", ""),
        ("vllm serve m -x 1", "line 1", "'-x', which is not a flag", "two dashes"),
        ("vllm serve m \N{EN DASH}seed 1", "line 1", "typographic dash", "again"),
        (
            'vllm serve m --speculative-config {"method":"mtp"} ',
            "line 1",
            "is not JSON",
            "single quotes",
        ),
        ("vllm serve m --hf-overrides '{\"a\": }'", "line 1", "is not JSON", ""),
        ("vllm serve m -cc.mode 1 -cc.mode 2", "line 1", "given twice", ""),
        ("docker run --gpu all img vllm serve m", "line 1", "no option '--gpu'", "'--gpus'"),
        ("docker run -z img vllm serve m", "line 1", "no option '-z'", "two dashes"),
        ("docker run --name a --name b img vllm serve m", "line 1", "given twice", "keep"),
        ("docker run --rm --restart always img vllm serve m", "line 1", "contradicts", "keep"),
        ("docker run -e A=1 -e A=2 img vllm serve m", "line 1", "variable A is given twice", ""),
        ("docker run -v :/x img vllm serve m", "line 1", "found the volume ':/x'", ""),
        ("docker run --mount type=bind,src=/a img vllm serve m", "line 1", "has no target", ""),
        ("vllm serve m 'x", "line 1", "a quote is never closed", "add the missing '"),
        ("\0\1\2", "", "this is not text", ""),
        ("vllm serve m " + "x" * 100_000, "", "a command line of 100,013 characters", ""),
    ],
)
def test_errors_say_what_and_where(text: str, where: str, message: str, hint: str) -> None:
    with pytest.raises(UsageError) as caught:
        parse(text)
    assert caught.value.where == where
    assert message in caught.value.message
    assert hint in caught.value.hint


@pytest.mark.parametrize(
    "text",
    [
        "docker run -e HF_TOKEN='sEcReT img vllm serve m",
        "docker run img bash -c 'export HF_TOKEN=sEcReT'",
        "docker run -e hf_sEcReT! img vllm serve m",
        "HF_TOKEN=sEcReT python train.py",
        "export HF_TOKEN=sEcReT",
        "huggingface-cli login --token sEcReT",
        "curl -H 'Authorization: Bearer sEcReT' http://localhost",
    ],
)
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

"""Kits: folders with compose files and start scripts, and what hostile ones cannot reach."""

from __future__ import annotations

import contextlib
import os
import time
from pathlib import Path
from typing import Any

import pytest
from factories import put

from spark_cluster.config.recipe import Recipe
from spark_cluster.config.schema import parse
from spark_cluster.config.yamlfile import load
from spark_cluster.errors import InvalidFile, SparkClusterError, UsageError
from spark_cluster.importers.files import read_file, write
from spark_cluster.importers.importer import BUILD_IT, Choice, Imported, Source
from spark_cluster.importers.kitfiles import LARGEST_FILE

KITS = Path(__file__).parents[2] / "data/kits"
DIST = "/usr/local/lib/python3.12/dist-packages/vllm"


def source_of(name: str, variant: str = "default") -> Source:
    return read_file(KITS / name, Choice(variant))


def recipe_of(made: Imported, folder: Path) -> dict[str, Any]:
    """The recipe as our own reader takes it."""
    path = put(folder / f"{made.name}.yaml", made.text)
    data = load(path, "recipe").data
    parse(Recipe, data)
    return data


def lost(made: Imported) -> list[str]:
    return [str(one["what"]) for one in made.not_carried_over]


def kit(folder: Path, **files: str) -> Path:
    """A kit of these files; `__` in a name is a `/`, and `_` a `.` before its ending."""
    for name, text in files.items():
        put(folder / "kit" / name.replace("__", "/").replace("_", "."), text)
    return folder / "kit"


def service(command: str, **fields: object) -> str:
    rows = "".join(f"    {name}: {value}\n" for name, value in fields.items())
    return f"services:\n  engine:\n    image: org/engine:1\n    command: {command}\n{rows}"


SERVE = "vllm serve Qwen/Qwen3-8B"


@pytest.mark.parametrize("name", sorted(one.name for one in KITS.iterdir()))
def test_each_kit_becomes_a_recipe_or_says_what_to_name(name: str, tmp_path: Path) -> None:
    if name == "several-models":
        with pytest.raises(InvalidFile, match="2 different servers"):
            source_of(name)
    else:
        recipe_of(write(source_of(name)), tmp_path)


def test_files_for_two_nodes_are_one_server(tmp_path: Path) -> None:
    source = source_of("a-file-for-each-node")
    recipe = recipe_of(write(source), tmp_path)
    assert recipe["tensor_parallel"]["default"] == 2
    assert recipe["executor"] == "mp"
    assert recipe["image"] == {"ref": "example.org/team/vllm-for-two:0.27"}
    assert recipe["engine_args"] == {"max-model-len": 65536}
    assert recipe["env"] == {"VLLM_ALLOW_LONG_MAX_MODEL_LEN": "1"}
    assert recipe["sources"] == ["the kit a-file-for-each-node: head/compose.yaml"]
    assert "2 launches are the ranks of one server" in source.notes


@pytest.mark.parametrize(
    ("head", "worker", "executor"),
    [
        ("--nnodes 2 --node-rank 0", f"{SERVE} --nnodes 2 --node-rank 1 --headless", "mp"),
        ("--distributed-executor-backend ray", "ray start --address head:6379 --block", "ray"),
    ],
)
def test_services_of_one_file_for_two_nodes(
    tmp_path: Path, head: str, worker: str, executor: str
) -> None:
    size = "--tensor-parallel-size 2"
    worker = worker.replace("--nnodes", f"{size} --nnodes")
    text = (
        f"services:\n  worker: {{image: 'org/e:1', command: {worker}}}\n"
        f"  head: {{image: 'org/e:1', command: {SERVE} {size} {head}}}\n"
    )
    made = write(read_file(kit(tmp_path, compose_yaml=text)))
    recipe = recipe_of(made, tmp_path)
    assert (recipe["executor"], recipe["tensor_parallel"]["default"]) == (executor, 2)
    assert "services.worker" in [left.what for left in made.left_out]


def test_variables_come_from_the_example_of_env(tmp_path: Path) -> None:
    source = source_of("one-file-and-env")
    made = write(source)
    recipe = recipe_of(made, tmp_path)
    assert recipe["engine_args"] == {"max-num-seqs": 6, "max-cudagraph-capture-size": 24}
    assert recipe["drafter"] == {"method": "mtp", "tokens": 3}
    assert recipe["tensor_parallel"]["default"] == 2
    assert recipe["env"] == {"DRAFTED": "3"}
    assert made.files == {"qwen3-32b.patches/scheduler.py": b"# stands in for a patched file\n"}
    assert [one["target"] for one in recipe["patches"]] == [f"{DIST}/v1/core/scheduler.py"]
    assert lost(made) == ["command `python3 /opt/notes/repair.py`", "-v ./notes:/opt/notes"]
    example, note = source.notes
    assert example == "there is no .env: its variables are those of .env.example"
    assert note.endswith(": ENGINE_IMAGE, HF_CACHE, DRAFTED, MODEL")


def test_a_server_is_put_into_the_container_that_waits_for_it(tmp_path: Path) -> None:
    made = write(source_of("ray-and-here-document"))
    recipe = recipe_of(made, tmp_path)
    assert recipe["model"]["name"] == "Qwen/Qwen3-235B-A22B-GPTQ-Int4"
    assert recipe["image"] == {"ref": "example.org/team/with-ray:2"}
    assert (recipe["executor"], recipe["tensor_parallel"]["default"]) == ("ray", 2)
    assert recipe["env"] == {"NCCL_IB_DISABLE": "0", "PYTHONUNBUFFERED": "1"}
    assert lost(made) == ["command `sed`"]
    recipe = recipe_of(write(source_of("inside-a-container")), tmp_path)
    assert recipe["image"] == {"ref": "example.org/team/idle:3"}
    assert recipe["model"]["path"] == "/srv/models/given"
    assert recipe["env"] == {"KEPT": "1"}


def test_the_repository_says_the_format_that_a_folder_does_not(tmp_path: Path) -> None:
    """Weights of 4 bits were taken for BF16, of which two Sparks were told that they do not fit."""
    script = "MODEL_REPO=someone/Hy3-NVFP4-W4A16\ndocker run -v $D:/models image:1 "
    script += "vllm serve /models --served-model-name hy3\n"
    found = read_file(kit(tmp_path, start_sh=script))
    assert found.repository == "someone/Hy3-NVFP4-W4A16"
    assert (found.launch.base, found.launch.quantization) == ("tencent/Hy3", "nvfp4")


@pytest.mark.parametrize(
    ("line", "name"),
    [("MODEL_REPO=${R:-org/model}", "org/model"), ("GIT_REPO=org/code", "m"), ("X=1", "m")],
)
def test_another_script_names_the_repository(tmp_path: Path, line: str, name: str) -> None:
    serve = "#!/bin/sh\nexec vllm serve /models/m\n"
    folder = kit(tmp_path, inner__serve_sh=serve, start_sh=f"#!/bin/sh\n{line}\nfetch it\n")
    assert recipe_of(write(read_file(folder)), tmp_path)["model"]["name"] == name


def test_arrays_and_conditions_of_a_script(tmp_path: Path) -> None:
    source = source_of("arrays-and-conditions")
    made = write(source)
    recipe = recipe_of(made, tmp_path)
    assert recipe["model"]["name"] == "Qwen/Qwen3-32B-FP8"
    assert recipe["engine_args"] == {"max-model-len": 8192, "limit-mm-per-prompt": {"image": 1}}
    assert recipe["drafter"] == {"method": "ngram", "tokens": 4}
    assert list(made.files) == ["qwen3-32b-fp8.patches/model_fix.py"]
    assert made.to_do == [
        "read the files in qwen3-32b-fp8.patches: the container runs them as vLLM's own"
    ]
    unknown = "line 14: EXTRA gets --max-num-seqs under a condition that only the machine knows"
    assert any(note.startswith(unknown) for note in source.notes)


def test_an_engine_other_than_vllm(tmp_path: Path) -> None:
    recipe = recipe_of(write(source_of("sglang-and-dotenv")), tmp_path)
    assert (recipe["engine"], recipe["engine_args"]) == ("sglang", {"context-length": 16384})


def test_an_image_that_is_built_there(tmp_path: Path) -> None:
    made = write(source_of("built-image"))
    build = recipe_of(made, tmp_path)["image"]["build"]
    assert build["dockerfile"].splitlines() == [
        "FROM docker.io/vllm/vllm-openai:v0.28.0",
        "ARG TAG=v0.28.0",
        "RUN pip install a-tool",
        'ENTRYPOINT ["vllm"]',
    ]
    assert "services.proxy" in [left.what for left in made.left_out]
    made = write(source_of("copied-into-image"))
    (left,) = [one for one in made.left_out if one.what == "build of engine-patched:1"]
    assert (left.consequence, left.blocks) == (BUILD_IT, False)
    assert "copies files of the kit into it (fixes/ /opt/fixes/)" in left.why


def test_an_image_of_a_registry_is_pulled_though_it_could_be_built(tmp_path: Path) -> None:
    folder = kit(tmp_path, compose_yaml=service(SERVE, build="."))
    put(folder / "Dockerfile", "FROM other:1\nCOPY a b\n")
    made = write(read_file(folder))
    assert recipe_of(made, tmp_path)["image"] == {"ref": "org/engine:1"}
    assert ("build of org/engine:1", "") in [(one.what, one.consequence) for one in made.left_out]


def test_extends_include_and_env_file_within_the_folder() -> None:
    source = source_of("extended")
    assert source.launch.env == {
        "FROM_FILE": "a $b",
        "QUOTED": "two words",
        "OWN": "2",
        "BASE": "1",
    }
    assert (source.launch.model, source.launch.args["max-model-len"]) == ("Qwen/Qwen3-8B", 4096)
    assert "services.metrics" in [left.what for left in source.left_out]


def test_one_of_several_servers_is_named() -> None:
    with pytest.raises(InvalidFile, match=r"small \(Qwen/Qwen3-8B\); large") as caught:
        source_of("several-models")
    assert caught.value.hint == "name one of them: --variant small"
    assert source_of("several-models", "large").launch.model == "Qwen/Qwen3-32B"
    with pytest.raises(InvalidFile, match="no file or service other"):
        source_of("several-models", "other")
    with pytest.raises(UsageError, match="there is no service 'other'"):
        read_file(KITS / "several-models/compose.yaml", Choice("other"))


def test_the_usual_name_is_meant_and_others_are_offered(tmp_path: Path) -> None:
    folder = kit(
        tmp_path,
        start_sh=f"#!/bin/sh\n{SERVE}\n",
        start__mtp_sh="#!/bin/sh\nvllm serve Qwen/Qwen3-32B\n",
        run_sh="#!/bin/sh\necho nothing\n",
    )
    put(folder / "start-fast.sh", "#!/bin/sh\nvllm serve Qwen/Qwen3-32B\n")
    source = read_file(folder)
    assert source.launch.model == "Qwen/Qwen3-8B"
    assert [offer.option for offer in source.offers] == ["--variant start-fast.sh"]
    assert read_file(folder, Choice("start-fast.sh")).launch.model == "Qwen/Qwen3-32B"


def test_a_chat_model_is_meant_rather_than_its_embeddings(tmp_path: Path) -> None:
    text = (
        f"services:\n  chat: {{image: org/e:1, command: {SERVE}}}\n"
        "  vectors:\n    image: org/e:1\n"
        "    command: vllm serve Qwen/Qwen3-Embedding-0.6B --runner pooling\n"
    )
    source = read_file(kit(tmp_path, compose_yaml=text))
    assert source.launch.model == "Qwen/Qwen3-8B"
    assert [offer.option for offer in source.offers] == ["--variant vectors"]


def test_the_folders_of_its_author_are_left_out(tmp_path: Path) -> None:
    volumes = '["/home/someone/m8:/models/m:ro", "/x:/tmp"]'
    text = service("vllm serve /models/m", volumes=volumes)
    unknown = text.replace("/home/someone/m8", "$ROOT/m8")
    assert read_file(kit(tmp_path, compose_yaml=unknown)).launch.model == "./m8"
    made = write(read_file(kit(tmp_path, compose_yaml=text)))
    recipe = recipe_of(made, tmp_path)
    assert recipe["model"]["name"] == "m8"
    assert "path" not in recipe["model"]
    assert "mounts" not in recipe
    assert made.to_do == [
        "write the repository that ./m8 was downloaded from into model.name (or import again with "
        "--model ORG/NAME)"
    ]


@pytest.mark.parametrize(
    ("files", "message"),
    [
        ({"notes_txt": "vllm serve x\n"}, "no file of this folder starts vLLM or SGLang"),
        ({"start_sh": "#!/bin/sh\nssh a docker run b\n"}, "no command in it starts"),
        ({"compose_yaml": "services: {a: {image: nginx}}\n"}, "no service starts vLLM or SGLang"),
        ({"compose_yaml": "services: [a]\n", "x_sh": ""}, "no file of this folder starts"),
        ({"start_sh": "#!/bin/sh\ndocker run -q img vllm serve 'x\n"}, "a quote is never closed"),
    ],
)
def test_what_it_lacks_is_said(tmp_path: Path, files: dict[str, str], message: str) -> None:
    with pytest.raises(InvalidFile, match=message):
        read_file(kit(tmp_path, **files))


# What a hostile kit tries.


@pytest.fixture
def secret(tmp_path: Path) -> Path:
    """A file outside of the kit, with something that must not be in any recipe."""
    return put(tmp_path / "secret.env", "STOLEN=hunter2\nservices: {base: {image: hunter2}}\n")


@pytest.mark.parametrize(
    "fields",
    [
        {"extends": "{file: /etc/passwd, service: base}"},
        {"extends": "{file: ../secret.env, service: base}"},
        {"extends": "{file: link.yaml, service: base}"},
        {"env_file": "../secret.env"},
        {"env_file": "[/etc/shadow]"},
        {"env_file": "link.yaml"},
        {"env_file": "/dev/zero"},
    ],
)
def test_nothing_outside_of_the_folder_is_read(
    tmp_path: Path, secret: Path, fields: dict[str, str]
) -> None:
    folder = kit(tmp_path, compose_yaml=service(SERVE, **fields))
    (folder / "link.yaml").symlink_to(secret)
    with pytest.raises(InvalidFile, match="is not a file of this folder") as caught:
        read_file(folder)
    assert "hunter2" not in str(caught.value)
    assert ": services.engine" in str(caught.value)


@pytest.mark.usefixtures("secret")
def test_links_and_places_outside_count_as_not_there(tmp_path: Path) -> None:
    folder = kit(
        tmp_path,
        start_sh="#!/bin/sh\n. ../secret.env\nsource /etc/os-release\n. ./.env\n"
        f"docker run -e STOLEN=$STOLEN -v ../secret.env:{DIST}/x.py org/e:1 {SERVE}\n",
    )
    (folder / ".env").symlink_to(tmp_path / "secret.env")
    (folder / "Dockerfile").symlink_to("/etc/passwd")
    made = write(read_file(folder))
    assert "hunter2" not in made.text
    assert not made.files


@pytest.mark.parametrize("build", ["..", "/etc", "{context: ., dockerfile: ../secret.env}"])
@pytest.mark.usefixtures("secret")
def test_a_build_cannot_leave_the_folder(tmp_path: Path, build: str) -> None:
    folder = kit(tmp_path, compose_yaml=service(SERVE, build=build))
    with pytest.raises(InvalidFile, match="nothing outside of it is read"):
        read_file(folder)


def test_nothing_of_it_is_run(tmp_path: Path) -> None:
    mark = tmp_path / "mark"
    run = f"$(touch {mark})`touch {mark}`"
    folder = kit(
        tmp_path,
        compose_yaml=service(f"\"sh -c '{SERVE} --seed $${run} && touch {mark}'\""),
        start_sh=f"#!/bin/sh\ntouch {mark}\nA={run}\n{SERVE} --seed $A --dtype {run}\n",
    )
    for name in ("compose.yaml", "start.sh"):
        made = write(read_file(folder, Choice(name)))
        assert "seed" not in made.kept
        assert not mark.exists()


@pytest.mark.parametrize(
    ("source", "target"),
    [("/", "/host"), ("/etc", "/etc"), ("/root/.ssh", "/keys"), ("/var/run/docker.sock", "/d")],
)
def test_no_path_of_root_gets_into_a_recipe(tmp_path: Path, source: str, target: str) -> None:
    text = service(SERVE, volumes=f'["{source}:{target}"]', privileged="true", pid="host")
    made = write(read_file(kit(tmp_path, compose_yaml=text)))
    assert "mounts" not in recipe_of(made, tmp_path)


def test_aliases_cannot_fill_the_memory(tmp_path: Path) -> None:
    lines = ["a0: &a0 [x, x, x, x, x, x, x, x, x]"]
    lines += [f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 9)}]" for n in range(1, 9)]
    bomb = "\n".join([*lines, "services: {engine: {image: x, command: *a8}}\n"])
    with pytest.raises(InvalidFile, match="aliases"):
        read_file(kit(tmp_path, compose_yaml=bomb))


@pytest.mark.parametrize(
    "text",
    [
        "A=xxxxxxxxxxxxxxxx\n" + "A=$A$A\n" * 40 + f"{SERVE} --seed $A\n",
        "A=(a b c d)\n" + 'A=("${A[@]}" "${A[@]}")\n' * 40 + f'{SERVE} "${{A[@]}}"\n',
        f"{SERVE} --seed " + "${A:-" * 300 + "x" + "}" * 300 + "\n",
        "if true; then\n" * 3000 + SERVE + "\n",
        f"{SERVE} --seed $((9**9**9**9))\n",
        f"{SERVE} --seed $(({'(' * 90}1{')' * 90}))\n",
        "cat <<E\n" * 12_000 + SERVE,
        f"{SERVE} --seed " + "$((" * 9000 + "1" + "))" * 9000 + "\n",
        "A=" + "x" * 40_000 + "\n" + "b $A\n" * 10_000,
        "A=(" + "x " * 20_000 + ")\n" + 'b "${A[@]}"\n' * 4_000,
        "(" * 90_000,
        f"{SERVE} " + "${" * 40_000,
        f"# {'x' * 90_000} --a\n{SERVE}\n",
        "if x; then\n" * 5000 + "A=1\n" * 5000,
    ],
    ids=[
        "doubled", "arrays", "defaults", "blocks", "power", "brackets", "documents", "sums", "long",
        "wide", "open", "unclosed", "comment", "assignments",
    ],
)  # fmt: skip
def test_a_script_cannot_take_long_or_end_in_a_traceback(tmp_path: Path, text: str) -> None:
    folder = kit(tmp_path, start_sh=f"#!/bin/sh\n{text}")
    begun = time.process_time()
    try:
        write(read_file(folder))
    except SparkClusterError as error:
        assert len(str(error)) < 2000
    assert time.process_time() - begun < 10


def test_variables_of_a_compose_file_cannot_double_for_ever(tmp_path: Path) -> None:
    env = "A=xxxxxxxxxxxxxxxx\n" + "A=$A$A\n" * 40
    folder = kit(tmp_path, compose_yaml=service(f"{SERVE} --seed $A"))
    put(folder / ".env", env)
    with pytest.raises(SparkClusterError, match="more than 200,000 characters"):
        read_file(folder)
    put(folder / ".env", "A=" + "${" * 40_000 + "\nB=" + "$((" * 20_000)
    with pytest.raises(SparkClusterError, match="more than 2,000,000 characters"):
        read_file(folder)
    put(folder / ".env", "A=" + "x" * 100_000)
    put(folder / "compose.yaml", service(SERVE, environment=f"[{', '.join(['B=$A'] * 1000)}]"))
    with pytest.raises(SparkClusterError, match="more than 2,000,000 characters"):
        read_file(folder)


@pytest.mark.parametrize("value", ["7", "text", "[1, [2]]", "{a: {b: 1}}", "[{a: 1}]", "null"])
@pytest.mark.parametrize(
    "name",
    [
        "command", "entrypoint", "environment", "env_file", "volumes", "ulimits", "build",
        "extends", "image", "devices", "ports", "deploy", "gpus", "profiles",
    ],
)  # fmt: skip
def test_any_value_of_a_field_is_read_or_refused(tmp_path: Path, name: str, value: str) -> None:
    fields = {"command": SERVE, "image": "org/engine:1", name: value}
    rows = "".join(f"    {key}: {one}\n" for key, one in fields.items())
    folder = kit(tmp_path, compose_yaml=f"services:\n  engine:\n{rows}")
    try:
        write(read_file(folder))
    except SparkClusterError as error:
        assert str(error)


@pytest.mark.parametrize("name", ['"a\\0b"', '"\\e[31m"', "x" * 5000, "'../' ", "."])
def test_odd_names_of_files_are_not_there(tmp_path: Path, name: str) -> None:
    for fields in ({"env_file": name}, {"volumes": f"[{{source: {name}, target: /x}}]"}):
        folder = kit(tmp_path, compose_yaml=service(SERVE, **fields))
        with contextlib.suppress(SparkClusterError):
            assert "x" not in read_file(folder).files


def test_files_that_extend_each_other_end(tmp_path: Path) -> None:
    other = service(SERVE, extends="{file: compose.yaml, service: engine}")
    folder = kit(
        tmp_path,
        compose_yaml=service(SERVE, extends="{file: other.yaml, service: engine}"),
        other_yaml=other,
    )
    with pytest.raises(InvalidFile, match="extend"):
        read_file(folder)
    put(folder / "compose.yaml", service(SERVE, extends="engine"))
    with pytest.raises(InvalidFile, match="engine extends itself"):
        read_file(folder)


def test_large_files_pipes_and_many_files_are_passed_over(tmp_path: Path) -> None:
    folder = kit(tmp_path, start_sh=f"#!/bin/sh\n{SERVE}\n")
    put(folder / "run.sh", f"#!/bin/sh\n{SERVE} --seed 1\n" + "#" * LARGEST_FILE)
    os.mkfifo(folder / "launch.sh")
    (folder / "up.sh").symlink_to(folder / "up.sh")
    for number in range(300):
        put(folder / f"deep/{'x/' * (number % 9)}{number}.txt", "x")
    assert read_file(folder).launch.model == "Qwen/Qwen3-8B"

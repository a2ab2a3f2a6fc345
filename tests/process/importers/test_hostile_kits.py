"""Kits that reach for other files, fill the memory or take a day: each ends soon, in words."""

import os
import time
from pathlib import Path

import pytest
from cases import each_row
from factories import put
from program import run

from spark_cluster.errors import InvalidFile, SparkClusterError
from spark_cluster.importers.compose import MOST_FILES
from spark_cluster.importers.files import read_file, write
from spark_cluster.importers.importer import MOST_TEXT, MOST_TRIED, Choice
from spark_cluster.importers.kitfiles import LARGEST_FILE, KitFolder

SERVE = "vllm serve Qwen/Qwen3-8B"
SERVICE = f"services:\n  engine:\n    image: org/engine:1\n    command: {SERVE}\n"
DIST = "/usr/local/lib/python3.12/dist-packages/vllm"
LONG = "x" * 40_000
SECONDS = 15
"""Of the processor, on a machine that does other work; without limits each takes minutes."""


def kit(folder: Path, files: dict[str, str]) -> Path:
    """A kit of these files."""
    for name, text in files.items():
        put(folder / "kit" / name, text)
    return folder / "kit"


def service(command: str = SERVE, **fields: object) -> str:
    """A compose file of one service."""
    rows = {"image": "org/engine:1", "command": command, **fields}
    return "services:\n  engine:\n" + "".join(f"    {key}: {one}\n" for key, one in rows.items())


def read(folder: Path, files: dict[str, str]) -> str:
    """What became of a kit: the text of its recipe, or why there is none."""
    begun = time.process_time()
    try:
        told = write(read_file(kit(folder, files)), name="kit").text
    except SparkClusterError as error:
        told = error.message
        assert 0 < len(str(error)) < 2000
    assert time.process_time() - begun < SECONDS
    return told


# -- what lies outside of it ---------------------------------------------------------------------


@pytest.fixture
def secret(tmp_path: Path) -> Path:
    """A file outside of the kit, with something that must not be in any recipe."""
    return put(tmp_path / "secret.env", "STOLEN=hunter2\nservices: {base: {image: hunter2}}\n")


@each_row(__file__, "hostile_kits.toml", "nothing_outside_of_the_folder_is_read")
def test_nothing_outside_of_the_folder_is_read(tmp_path, secret, name, value):
    folder = kit(tmp_path, {"compose.yaml": service(**{name: value})})
    (folder / "link.yaml").symlink_to(secret)
    with pytest.raises(InvalidFile, match="is not a file of this folder") as caught:
        read_file(folder)
    assert "hunter2" not in str(caught.value)
    assert ": services.engine" in str(caught.value)


@pytest.mark.usefixtures("secret")
def test_links_and_places_outside_count_as_not_there(tmp_path):
    script = (
        "#!/bin/sh\n. ../secret.env\nsource /etc/os-release\n. ./.env\n"
        f"docker run -e STOLEN=$STOLEN -v ../secret.env:{DIST}/x.py org/e:1 {SERVE}\n"
    )
    folder = kit(tmp_path, {"start.sh": script})
    (folder / ".env").symlink_to(tmp_path / "secret.env")
    (folder / "Dockerfile").symlink_to("/etc/passwd")
    (folder / "README.md").symlink_to(tmp_path / "secret.env")
    made = write(read_file(folder))
    assert "hunter2" not in made.text
    assert not made.files


@pytest.mark.parametrize(
    "variant", ["../secret.env", "/etc/os-release", "link.env", "a/../../x.env"]
)
def test_no_file_of_variables_outside_is_taken(tmp_path, secret, variant):
    folder = kit(tmp_path, {"start.sh": f"#!/bin/sh\n. ./$1.env\n{SERVE} --dtype $STOLEN\n"})
    (folder / "link.env").symlink_to(secret)
    with pytest.raises(SparkClusterError) as caught:
        read_file(folder, Choice(variant))
    assert "hunter2" not in str(caught.value)


def test_a_kit_is_reached_through_a_link(tmp_path):
    script = f'#!/bin/sh\n. "presets/$1.env"\n{SERVE} --dtype $TYPE\n'
    folder = kit(tmp_path, {"start.sh": script, "real/q.conf": "TYPE=half\n"})
    (folder / "q.env").symlink_to("real/q.conf")
    (tmp_path / "link").symlink_to(folder)
    source = read_file(tmp_path / "link")
    assert source.launch.args["dtype"] == "half"
    assert [note for note in source.notes if "q.env" in note and "another file" not in note]


@pytest.mark.parametrize(
    ("files", "variant"),
    [
        ({"README.md": f"```\n{SERVE}\n```\n"}, "default"),
        ({"start.sh": f"#!/bin/sh\n{SERVE}\n"}, "{real}/start.sh"),
        (
            {
                "compose.yaml": service(extends="{file: sub/base.yaml, service: b}"),
                "sub/base.yaml": "services: {b: {env_file: missing.env}}\n",
            },
            "default",
        ),
    ],
    ids=["readme", "variant", "env_file"],
)
def test_files_of_a_kit_are_found_through_a_link_to_it(tmp_path, files, variant):
    folder = kit(tmp_path, files)
    (tmp_path / "link").symlink_to(folder)
    source = read_file(tmp_path / "link", Choice(variant.format(real=folder)))
    assert source.launch.model == "Qwen/Qwen3-8B"


def test_no_name_writes_lines_of_its_own(tmp_path):
    script = f'#!/bin/sh\n. "presets/$1.env"\n{SERVE} --seed $SEED\n'
    files = {"start.sh": script, "a.env": "SEED=1\n", "b\nmodel: {name: x}\n.env": "SEED=2\n"}
    source = read_file(kit(tmp_path / 'k\nenv: {STOLEN: "1"}\n#', files))
    assert not [note for note in source.notes if "\n" in note]
    head = write(source, name="kit").text.partition("\nname: ")[0]
    assert all(line.startswith("#") for line in head.splitlines())


@each_row(__file__, "hostile_kits.toml", "an_image_is_built_where_it_needs_no_file_of_the_kit")
def test_an_image_is_built_where_it_needs_no_file_of_the_kit(tmp_path, line, is_carried):
    files = {"compose.yaml": service(build="."), "Dockerfile": f"FROM x\n{line}\n"}
    files["compose.yaml"] = files["compose.yaml"].replace("org/engine:1", "mine:1")
    assert (f"{line}\n" in read(tmp_path, files)) is is_carried


@pytest.mark.parametrize("build", ["..", "/etc", "{context: ., dockerfile: ../secret.env}"])
@pytest.mark.usefixtures("secret")
def test_a_build_cannot_leave_the_folder(tmp_path, build):
    told = read(tmp_path, {"compose.yaml": service(build=build)})
    assert "nothing outside of it is read" in told


def test_nothing_of_it_is_run(tmp_path):
    mark = tmp_path / "mark"
    run = f"$(touch {mark})`touch {mark}`"
    compose = service(f"\"sh -c '{SERVE} --seed $${run} && touch {mark}'\"")
    script = f"#!/bin/sh\ntouch {mark}\nA={run}\n{SERVE} --seed $A --dtype {run}\n"
    folder = kit(tmp_path, {"compose.yaml": compose, "start.sh": script})
    for name in ("compose.yaml", "start.sh"):
        made = write(read_file(folder, Choice(name)))
        assert "seed" not in made.kept
        assert not mark.exists()


@pytest.mark.parametrize(
    "volume", ["/:/host", "/etc:/etc", "/root/.ssh:/keys", "/var/run/docker.sock:/d"]
)
def test_no_path_of_root_gets_into_a_recipe(tmp_path, volume):
    told = read(
        tmp_path, {"compose.yaml": service(volumes=f'["{volume}"]', privileged="true", pid="host")}
    )
    assert "name: Qwen/Qwen3-8B" in told
    assert "\nmounts:" not in told


@pytest.mark.parametrize("value", ["7", "text", "[1, [2]]", "{a: {b: 1}}", "[{a: 1}]", "null"])
@each_row(__file__, "hostile_kits.toml", "any_value_of_a_field_is_read_or_refused")
def test_any_value_of_a_field_is_read_or_refused(tmp_path, name, value):
    read(tmp_path, {"compose.yaml": service(**{name: value})})


@pytest.mark.parametrize("name", ['"a\\0b"', '"\\e[31m"', "x" * 5000, "'../' ", "."])
def test_odd_names_of_files_are_not_there(tmp_path, name):
    for fields in ({"env_file": name}, {"volumes": f"[{{source: {name}, target: /x}}]"}):
        read(tmp_path, {"compose.yaml": service(**fields)})
    assert not list(tmp_path.rglob("*.patches"))


def test_large_files_pipes_and_many_files_are_passed_over(tmp_path):
    files = {f"deep/{'x/' * (number % 9)}{number}.txt": "x" for number in range(300)}
    files["run.sh"] = f"#!/bin/sh\n{SERVE} --seed 1\n" + "#" * LARGEST_FILE
    folder = kit(tmp_path, {**files, "start.sh": f"#!/bin/sh\n{SERVE}\n"})
    os.mkfifo(folder / "launch.sh")
    (folder / "up.sh").symlink_to(folder / "up.sh")
    assert read_file(folder).launch.model == "Qwen/Qwen3-8B"


# -- memory and time -----------------------------------------------------------------------------


SLOW_SCRIPTS = {
    "doubled": "A=xxxxxxxxxxxxxxxx\n" + "A=$A$A\n" * 40 + f"{SERVE} --seed $A\n",
    "arrays": "A=(a b c d)\n" + 'A=("${A[@]}" "${A[@]}")\n' * 40 + f'{SERVE} "${{A[@]}}"\n',
    "defaults": f"{SERVE} --seed " + "${A:-" * 300 + "x" + "}" * 300 + "\n",
    "blocks": "if true; then\n" * 3000 + SERVE + "\n",
    "power": f"{SERVE} --seed $((9**9**9**9))\n",
    "brackets": f"{SERVE} --seed $(({'(' * 90}1{')' * 90}))\n",
    "documents": "cat <<E\n" * 12_000 + SERVE,
    "sums": f"{SERVE} --seed " + "$((" * 9000 + "1" + "))" * 9000 + "\n",
    "long": "A=" + "x" * 40_000 + "\n" + "b $A\n" * 10_000,
    "wide": "A=(" + "x " * 20_000 + ")\n" + 'b "${A[@]}"\n' * 4_000,
    "open": "(" * 90_000,
    "unclosed": f"{SERVE} " + "${" * 40_000,
    "comment": f"# {'x' * 90_000} --a\n{SERVE}\n",
    "assignments": "if x; then\n" * 5000 + "A=1\n" * 5000,
    "functions": 'f() { "$@"\n' * 9000,
    "called": 'f() { "$@"; }\n' + f"f f {SERVE}\n" * 9000,
    "calling": "".join(f'f{n}() {{ f{n + 1} "$@"; f{n + 1} "$@"; }}\n' for n in range(60))
    + "f0 x\n",
    "evaluated": "A='eval $A'\n" + "eval " * 20_000 + "$A\n",
    "blanks": "f" + " " * 45_000 + "(" + " " * 45_000,
    "heads": "function f" + " " * 45_000 + "x\nf()" + " " * 45_000,
    "growing": "A=x\n" + "A+=$A\n" * 40 + "B+=xxxxxxxx\n" * 8000 + SERVE,
    "dockers": "docker" + " " * 40_000 + "docker" + '"' * 40_000,
}


@pytest.mark.parametrize("text", SLOW_SCRIPTS.values(), ids=SLOW_SCRIPTS)
def test_a_script_cannot_take_long_or_end_in_a_traceback(tmp_path, text):
    read(tmp_path, {"start.sh": f"#!/bin/sh\n{text}"})


@pytest.mark.parametrize(
    "files",
    [
        {"Makefile": "A = " + "$(A)" * 20_000 + "\n" + "B := $(A)\n" * 900},
        {"Makefile": "A = '$(A)' '$(A)'\n" * 60 + "x:\n" + "\tvllm serve $(A)\n" * 900},
        {"Makefile": "x:\n" + "\t" * 45_000 + "docker run " + "{{ " * 9000},
        {"README.md": "# " * 30_000 + f"\n```\n{SERVE}\n" * 4000},
        {f"{n}.md": f"```\n{SERVE} --seed {n}\n```\n" * 900 for n in range(60)},
        {"e.env": "A=" + LONG, "start.sh": "docker run --env-file e.env x\n" * 2000},
    ],
    ids=["variables", "quotes", "blanks", "headings", "documents", "env-file"],
)
def test_other_files_cannot_take_long(tmp_path, files):
    read(tmp_path, files)


def test_long_documents_leave_room_for_scripts(tmp_path):
    files = {f"a{number}.md": "x" * (MOST_TEXT // MOST_TRIED) for number in range(MOST_TRIED)}
    assert "Qwen/Qwen3-8B" in read(tmp_path, {**files, "below/start.sh": f"#!/bin/sh\n{SERVE}\n"})


@pytest.mark.usefixtures("secret")
def test_a_script_alone_and_its_options_read_nothing_outside(tmp_path):
    names = ("../secret.env", "link.env", "/etc/passwd")
    files = " ".join(f"--env-file {name}" for name in names)
    text = (
        f"#!/bin/sh\n. ../secret.env\n. ./link.env\ndocker run {files} -e S=$STOLEN o/e:1 {SERVE}\n"
    )
    folder = kit(
        tmp_path, {"start.sh": text, "Makefile": f"include ../secret.env\nx:\n\t{SERVE}\n"}
    )
    (folder / "link.env").symlink_to(tmp_path / "secret.env")
    for name in ("start.sh", "Makefile"):
        made = write(read_file(folder / name))
        assert "hunter2" not in made.text
        assert "root:" not in made.text


@pytest.mark.parametrize(
    ("env", "fields", "most"),
    [
        ("A=xxxxxxxxxxxxxxxx\n" + "A=$A$A\n" * 40, {"command": f"{SERVE} --seed $A"}, "200,000"),
        ("A=" + "${" * 40_000 + "\nB=" + "$((" * 20_000, {}, "2,000,000"),
        ("A=" + "x" * 100_000, {"environment": f"[{', '.join(['B=$A'] * 1000)}]"}, "2,000,000"),
    ],
    ids=["doubled", "open", "repeated"],
)
def test_variables_of_a_compose_file_cannot_double_for_ever(tmp_path, env, fields, most):
    told = read(tmp_path, {"compose.yaml": service(**fields), ".env": env})
    assert f"more than {most} characters" in told


LARGE_KITS = {
    "words": {"start.sh": f"A={LONG}\necho " + "$A " * 15_000 + f"\n{SERVE}\n"},
    "sum": {"start.sh": f"A={LONG}\nB=$(({'A+' * 15_000}1))\n{SERVE}\n"},
    "empty": {"start.sh": "A=('' '')\n" + 'A=("${A[@]}" "${A[@]}")\n' * 40 + f"{SERVE}\n"},
    "array": {"start.sh": f"A=({'a ' * 9000})\nB=(" + '"${A[@]}" ' * 6000 + f")\n{SERVE}\n"},
    "containers": {
        "start.sh": f"A={LONG}\n"
        + "docker run -e B=$A org/engine:1 bash -c 'vllm serve $B'\n" * 1000
    },
    "env": {"compose.yaml": SERVICE, ".env": f"A={LONG}\n" + "B=$A\n" * 9000},
    "compose": {
        "compose.yaml": f"{SERVICE}    environment:\n"
        + "".join(f"      B{n}: $A\n" for n in range(9000)),
        ".env": f"A={LONG}\n",
    },
    "unclosed": {"compose.yaml": SERVICE, ".env": "A=" + "${" * 60_000},
    "sums": {"compose.yaml": SERVICE, ".env": "A=" + "$((" * 60_000},
}


@pytest.mark.parametrize("files", LARGE_KITS.values(), ids=LARGE_KITS)
def test_values_cannot_fill_the_memory(tmp_path, files):
    assert "more than 2,000,000 characters" in read(tmp_path, files)


SHELLS = {
    "bash": 'A=\'bash -c "$A"\'\nbash -c "$A"\n',
    "exec": "docker exec " * 60,
    "launcher": "launch-cluster.sh exec " * 3000 + SERVE,
    "documents": "".join(f"cat <<A{n}\n" for n in range(600))
    + f"{SERVE}\n"
    + "".join(f"A{n}\n" for n in reversed(range(600))),
}


@pytest.mark.parametrize("text", SHELLS.values(), ids=SHELLS)
def test_shells_inside_of_shells_end(tmp_path, text):
    told = read(tmp_path, {"start.sh": f"{text}\n{SERVE}\n"})
    assert "more than 8 shells run one another" in told


SLOW_KITS = {
    "brackets": {"start.sh": f"{'(' * 90_000}\n{SERVE}\n"},
    "documents": {"start.sh": "".join(f"cat <<A{n}\n" for n in range(7000)) + SERVE},
    "sums": {"start.sh": f"A={'$((' * 3000}1{'))' * 3000}\n{SERVE}\n"},
    "sourced": {"start.sh": ". ./a.sh\n" * 8000 + SERVE, "a.sh": "export A=1\n" * 8000},
    "dots": {"start.sh": f"{' . ' * 30_000}\n{SERVE}\n"},
    "include": {
        "compose.yaml": f"include: [{'a.yaml, ' * 2000}]\n{SERVICE}",
        "a.yaml": "services:\n" + "".join(f"  s{n}: {{image: x}}\n" for n in range(150)),
    },
    "env_file": {
        "compose.yaml": f"{SERVICE}    env_file: [{'a.env, ' * 9000}]\n",
        "a.env": "".join(f"B{n}=1\n" for n in range(3000)),
    },
    "paths": {
        **{f"{number // 100}/{number}.txt": "" for number in range(1500)},
        "serve.sh": "".join(f"/opt/{number}\n" for number in range(20_000)) + f"{SERVE}\n",
        "start.sh": "docker run org/engine:1 bash /opt/serve.sh\n",
    },
    "copied": {
        "compose.yaml": "services: {engine: {image: org/engine:1, build: .}}\n",
        "Dockerfile": f'FROM x\nCOPY {"a" * 200_000}\nENTRYPOINT ["/opt/serve.sh"]\n',
        "serve.sh": SERVE,
    },
    "callers": {
        **{f"start{n}.sh": f"{SERVE}\n" + "./start1.sh start2.sh\n" * 3000 for n in range(45)},
        "README.md": "```\nif ./start0.sh; then A='\n# start1.sh start2.sh\n```\n" * 4000,
    },
    "named": {
        **{f"go{n}.sh": f"./go{n + 1}.sh x.yml ./y{n}.sh\n" * 5000 for n in range(60)},
        "README.md": "./go0.sh " * 20_000,
        "in/a.sh": f"{SERVE} --node-rank 0",
        "in/b.sh": f"{SERVE} --node-rank 1",
    },
    "long words": {
        "README.md": "a/" * 50_000,
        **{f"in{n}/a.sh": f"{SERVE} --node-rank {n}" for n in range(2)},
    },
    "two thousand": {
        f"s{n}.sh": "".join(f"./s{n + more}.sh\n" for more in range(1, 30))
        + f"docker run x {SERVE}\n"
        for n in range(2000)
    },
}


@pytest.mark.parametrize("files", SLOW_KITS.values(), ids=SLOW_KITS)
def test_it_is_read_soon(tmp_path, files):
    assert "name: Qwen/Qwen3-8B" in read(tmp_path, files)


def test_flags_that_nobody_knows_are_not_all_compared_with_those_of_vllm(tmp_path):
    flags = " ".join(f"--max-num-batched-tokenz{number} 1" for number in range(2800))
    put(tmp_path / "start.sh", f"{SERVE} {flags}\n")
    begun = time.monotonic()
    done = run("lint", "./start.sh", cwd=tmp_path)
    assert "more than 200 flags" in done.stderr
    assert time.monotonic() - begun < 8


def test_a_file_of_flags_that_many_commands_name_is_not_read_for_each(tmp_path):
    files = {
        "a.yaml": f"port: 1\nx: [{'1, ' * 40_000}]\n",
        "start.sh": f"{SERVE} --config a.yaml\n" * 2000,
    }
    assert "repeat to more than 2,000,000 characters" in read(tmp_path, files)


def test_many_large_scripts_are_not_all_read(tmp_path):
    text = "#" * 60_000 + "\ndocker run\n"
    told = read(tmp_path, {f"start{number}.sh": text for number in range(60)})
    assert "docker run: no image" in told
    assert f"and {MOST_TEXT // len(text) - 5} more" in told


def test_many_scripts_are_not_all_searched_for_the_model_of_a_folder(tmp_path):
    """A script that starts nothing may name the repository of a model that is a folder."""
    scripts = {f"later{number:04}.sh": "A=1; " * 9 for number in range(MOST_TRIED)}
    named = {"first.sh": "vllm serve /models/m\n", "zlast.sh": "MODEL_REPO=org/late\n"}
    assert "name: org/late" in read(tmp_path / "few", named)
    assert "name: org/late" not in read(tmp_path / "many", {**named, **scripts})


def test_a_compose_file_names_a_limited_number_of_files(tmp_path):
    names = [f"{number}.env" for number in range(MOST_FILES + 1)]
    files = {**dict.fromkeys(names, "A=1\n"), "compose.yaml": SERVICE}
    files["compose.yaml"] += f"    env_file: [{', '.join(names)}]\n"
    assert f"more than {MOST_FILES} files are named" in read(tmp_path, files)


def test_a_file_that_many_services_extend_is_read_once(tmp_path):
    rows = "".join(
        f"  s{n}: {{image: 'x{n}', environment: [{'a=1, ' * 200}]}}\n" for n in range(99)
    )
    own = "".join(f"  a{n}: {{extends: {{file: a.yaml, service: s{n}}}}}\n" for n in range(99))
    files = {"compose.yaml": f"{SERVICE}{own}", "a.yaml": f"services:\n{rows}"}
    assert "name: Qwen/Qwen3-8B" in read(tmp_path, files)


def test_a_file_that_became_a_pipe_since_it_was_found_is_not_waited_for(tmp_path):
    os.mkfifo(tmp_path / "start.sh")
    assert KitFolder(tmp_path).text(tmp_path / "start.sh") == ""


def test_many_scripts_that_name_many_presets_end_soon(tmp_path):
    named = "".join(f'. "missing{number}-$1.env"\n' for number in range(20))
    files = {f"start{number}.sh": f"#!/bin/sh\n{named}vllm serve $MODEL\n" for number in range(30)}
    files |= {f"p{number}.env": "A=1\n" for number in range(1200)} | {"README.md": "p1.env " * 9000}
    assert "only the shell knows what $MODEL is" in read(tmp_path, files)

"""Ways in which public kits start a server: reduced to what each of them is about."""

from __future__ import annotations

from pathlib import Path

import pytest
from cases import cases
from factories import put

from spark_cluster.errors import InvalidFile, UsageError
from spark_cluster.importers.commandline import read
from spark_cluster.importers.docker_run import docker_run
from spark_cluster.importers.expansion import Word
from spark_cluster.importers.files import read_file, write
from spark_cluster.importers.importer import BUILD_IT, Choice, Source

CASES = cases(__file__, "kit_launches.toml")

KITS = Path(__file__).parents[2] / "data/kits"
SERVE = "vllm serve Qwen/Qwen3-8B"


def source_of(folder: Path, files: dict[str, str]) -> Source:
    for name, text in files.items():
        put(folder / name, text)
    return read_file(folder)


def test_a_script_of_the_kit_that_the_image_runs_by_itself() -> None:
    source = read_file(KITS / "script-in-container")
    assert source.launch.model == "Qwen/Qwen3-32B-FP8"
    assert (source.launch.tp, source.launch.executor) == (2, "mp")
    assert source.launch.args["max-num-seqs"] == 8
    assert source.notes[0].endswith(
        "--max-num-seqs is given twice, first on line 8; the last counts"
    )


@pytest.mark.parametrize("start", CASES["mounted"])
def test_a_script_that_is_mounted_gets_its_arguments(tmp_path: Path, start: str) -> None:
    command = start.replace("{}", "Qwen/Qwen3-8B")
    compose = (
        "services:\n  engine:\n    image: org/engine:1\n    environment: {SEQS: '3'}\n"
        f"    volumes: ['./scripts:/opt/a:ro']\n    entrypoint: {command}\n"
    )
    script = "#!/bin/bash\nexec vllm serve $1 --max-num-seqs ${SEQS:-9}\n"
    source = source_of(tmp_path, {"compose.yaml": compose, "scripts/serve.sh": script})
    assert source.launch.model == "Qwen/Qwen3-8B"
    assert source.launch.args == ({} if "vllm" in start else {"max-num-seqs": 3})


def test_scripts_that_run_each_other_are_not_followed_without_end(tmp_path: Path) -> None:
    compose = "services: {a: {image: 'org/e:1', entrypoint: /a.sh, volumes: ['./a.sh:/a.sh']}}\n"
    files = {"compose.yaml": compose, "a.sh": "#!/bin/sh\n/a.sh\n/a.sh\n"}
    with pytest.raises(InvalidFile, match="shells run one another"):
        source_of(tmp_path, files)


def test_the_script_that_the_start_script_or_the_readme_names_is_meant(tmp_path: Path) -> None:
    files = {f"profiles/{n}.sh": f"#!/bin/sh\n{SERVE} --max-num-seqs {n}\n" for n in (1, 2, 3)}
    readme = "Run `profiles/2.sh`, or else `profiles/3.sh`."
    source = source_of(tmp_path, {**files, "README.md": readme})
    assert source.launch.args == {"max-num-seqs": 2}
    offered = [offer.option for offer in source.offers]
    assert offered == ["--variant profiles/1.sh", "--variant profiles/3.sh"]
    start = 'PROFILE="profiles/3.sh"\ndocker cp "$PROFILE" engine:/serve.sh\n'
    source = source_of(tmp_path, {"start.sh": start})
    assert source.launch.args == {"max-num-seqs": 3}


def test_a_kit_without_a_script_has_its_command_in_the_readme() -> None:
    source = read_file(KITS / "launch-in-readme")
    assert (source.launch.model, source.launch.nodes) == ("Qwen/Qwen3-32B-FP8", 2)
    assert source.origin == "the kit launch-in-readme: README.md"
    assert source.notes == [
        "no file starts a server: this is README.md, Qwen on one Spark, or on two: Two; it has 1 "
        "other commands"
    ]


def test_a_file_of_flags_comes_before_those_of_the_command() -> None:
    source = read_file(KITS / "file-of-flags")
    assert source.launch.model == "Qwen/Qwen3-32B-FP8"
    assert source.launch.args == {
        "tensor-parallel-size": 2,
        "distributed-executor-backend": "ray",
        "enforce-eager": True,
        "max-num-seqs": 4,
        "override-generation-config": {"top_k": 20},
    }
    assert "its flags are those of two.yaml, too" in source.notes


def test_a_comment_in_a_folded_command_hides_no_flags(tmp_path: Path) -> None:
    compose = (
        "services:\n  engine:\n    image: org/engine:1\n    entrypoint: [bash, -c]\n    command:\n"
        f"      - >\n        exec {SERVE}\n        # two nodes; --revision abc\n"
        "        --tensor-parallel-size 2\n"
    )
    source = source_of(tmp_path, {"compose.yaml": compose})
    assert source.launch.args == {"tensor-parallel-size": 2}
    assert source.notes[0].startswith("line 6: a shell takes everything behind the '#'")


def test_a_volume_whose_variable_is_empty_is_left_out(tmp_path: Path) -> None:
    compose = (
        f"services: {{a: {{image: 'org/e:1', command: {SERVE}, volumes: ['$PATCH:/opt/p.py']}}}}\n"
    )
    source = source_of(tmp_path, {"compose.yaml": compose, ".env": "PATCH=\n"})
    assert "-v :/opt/p.py" in [left.what for left in source.left_out]


def test_a_value_that_may_be_found_on_the_machine_is_not_known(tmp_path: Path) -> None:
    script = (
        '#!/bin/bash\nCACHE=""\nEAGER=""\nPEER="${PEER:-<PEER_IP>}"\n'
        'for c in /a /b; do if [ -d "$c" ]; then CACHE="$c"; EAGER="--enforce-eager"; fi; done\n'
        'docker run -v "$CACHE:/root/.cache/huggingface" -e HEAD=$PEER org/e:1 '
        f'bash -c "{SERVE} --master-addr $PEER $EAGER"\n'
    )
    source = source_of(tmp_path, {"start.sh": script})
    assert source.launch.volumes[0].source == "$CACHE"
    assert source.launch.args == {"master-addr": "${PEER:-<PEER_IP>}"}


@pytest.mark.parametrize(("test", "args"), CASES["numbers"])
def test_numbers_are_compared(tmp_path: Path, test: str, args: dict[str, int]) -> None:
    script = f"#!/bin/sh\nX=''\nif [ {test} ]; then X='--seed 1'; fi\n{SERVE} $X\n"
    assert source_of(tmp_path, {"start.sh": script}).launch.args == args


@pytest.mark.parametrize(("text", "model"), CASES["entry_points"])
def test_an_entry_point_that_is_not_known_serves(text: str, model: str) -> None:
    assert read(text).launch.model == model


def test_what_is_no_model_is_no_launch() -> None:
    for words in ("python3 -c 'print(1)'", "a/b", "--help x"):
        with pytest.raises(UsageError):
            read(f"docker run own/image:1 {words}")


def test_a_here_document_without_quotes_has_escapes(tmp_path: Path) -> None:
    written = f"cat <<EOF > /tmp/x\nexec {SERVE} \\\\\n  --served-model-name \\$NAME\nEOF\n"
    source = source_of(tmp_path, {"start.sh": f"#!/bin/sh\nNAME=n\n{written}"})
    assert source.launch.args == {"served-model-name": "n"}
    quoted = written.replace("<<EOF", "<<'EOF'").replace("\\\\\n", "\\\n").replace("\\$", "$")
    assert source_of(tmp_path, {"start.sh": f"#!/bin/sh\nNAME=n\n{quoted}"}).launch.args == {
        "served-model-name": "n"
    }


def test_a_default_inside_of_a_default_is_no_end_of_a_volume() -> None:
    words = [Word(text, 1) for text in ("-v", "${A:-${HOME}}/x:/srv/x:ro", "org/e:1")]
    (volume,) = docker_run(words).volumes
    assert (volume.source, volume.target, volume.read_only) == ("${A:-${HOME}}/x", "/srv/x", True)


def test_the_drafter_within_the_model_has_no_weights_of_its_own() -> None:
    config = '{"method":"dspark","num_speculative_tokens":5,"model":"deepseek-ai/DeepSeek-V4"}'
    made = write(read(f"vllm serve deepseek-ai/DeepSeek-V4 --speculative-config '{config}'"))
    assert "drafter:\n  method: dspark\n  tokens: 5\n" in made.text


def test_an_image_that_nodes_build_does_not_block() -> None:
    made = write(read(f"docker run own-image:1 {SERVE}"))
    (left,) = [one for one in made.left_out if one.what == "image own-image:1"]
    assert (left.consequence, left.blocks) == (BUILD_IT, False)


def test_a_named_file_is_not_replaced_by_the_readme() -> None:
    with pytest.raises(InvalidFile, match="no file or service two"):
        read_file(KITS / "launch-in-readme", Choice("two"))

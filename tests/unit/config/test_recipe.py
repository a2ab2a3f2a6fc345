"""Recipes: what wrong ones say, and the arguments they become."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from packaging.specifiers import SpecifierSet

from spark_cluster.config.project import Project
from spark_cluster.config.recipe import Recipe
from spark_cluster.config.recipes import load_recipe
from spark_cluster.config.schema import parse
from spark_cluster.errors import InvalidFile, Refused

BASE = """\
name: r
model: {name: org/m, served_name: m}
image: {ref: "repo/image:1"}
"""


def load(folder: Path, text: str) -> Recipe:
    path = folder / "r.yaml"
    path.write_text(text)
    return load_recipe(path, Project(folder))


def made(**fields: object) -> Recipe:
    base = {"name": "r", "model": {"name": "o/m", "served_name": "m"}, "image": {"ref": "i:1"}}
    return parse(Recipe, {**base, **fields})


WRONG = [
    ("model: {name: x}\nname: r\nimage: {ref: x}\n",
     "1: model.served_name: missing; expected name that clients ask for"),
    (BASE + "engin_args: {}\n", "4: engin_args: unknown field; did you mean 'engine_args'?"),
    (BASE + "engine_args:\n  --max-model-len: 1\n",
     "5: engine_args.--max-model-len: found '--max-model-len'; did you mean 'max-model-len'?"),
    (BASE + "engine_args:\n  max_model_len: 1\n",
     "5: engine_args.max_model_len: found 'max_model_len'; did you mean 'max-model-len'?"),
    (BASE + "engine_args:\n  port: 1\n",
     "5: engine_args.port: not an engine argument here: it is serve.port in the inventory"),
    (BASE + "engine_args:\n  api-key: sk-secret\n",
     "5: engine_args.api-key: not an engine argument here: it is serve.api_key in the inventory; "
     "a key is never written into a recipe"),
    (BASE + "engine_args:\n  enforce-eager: false\n",
     "5: engine_args.enforce-eager: found false; "
     "leave the flag out, or write its no- form with true"),
    (BASE + "engine_args:\n  enforce-eager:\n",
     "5: engine_args.enforce-eager: found nothing; "
     "leave the flag out, or write its no- form with true"),
    (BASE + "env:\n  HF_TOKEN: hf_abc\n",
     "5: env.HF_TOKEN: a secret is never written into a recipe; "
     "expected {env: HF_TOKEN}, the laptop's variable of that name"),
    (BASE + "env:\n  DEBUG: true\n", "5: env.DEBUG: found true, expected text; put it in quotes"),
    (BASE + "mounts:\n  - {source: cache, target: /x}\n",
     "5: mounts[0].source: found 'cache', expected an absolute path on the node such as /srv/x"),
    (BASE + "tensor_parallel: {min: 3}\n", "4: tensor_parallel: min (3) is more than max (2)"),
    (BASE + "gpu_memory_utilization: lots\n",
     "4: gpu_memory_utilization: found 'lots', expected 'auto' or a number such as 0.75"),
    (BASE + "gpu_memory_utilization: 1.5\n",
     "4: gpu_memory_utilization: found 1.5, expected at most 0.95"),
    (BASE + "ray: {min_worker_port: 8000, max_worker_port: 9000}\n",
     "4: ray: ports 8000-9000 and 8265 overlap"),
    (BASE + "ray: {first_port: 40000}\n",
     "4: ray: ports 40000-40008 is in the kernel's own range 32768-60999"),
    ("name: r\nmodel: {name: x, served_name: y, source: directory}\nimage: {ref: x}\n",
     "2: model: source: directory needs 'directory', the folder on the laptop"),
    ("name: r\nmodel: {name: x, served_name: y, source: hubb}\nimage: {ref: x}\n",
     "2: model.source: found 'hubb', expected 'hub' or 'directory'; did you mean 'hub'?"),
    ("name: r\nmodel: {name: x, served_name: y}\nimage: {ref: x, digest: abc}\n",
     "3: image.digest: found 'abc', expected sha256: and 64 hexadecimal digits"),
    (BASE + "env:\n  OPENAI_KEY: verysecret\n",
     "5: env.OPENAI_KEY: a secret is never written into a recipe; "
     "expected {env: OPENAI_KEY}, the laptop's variable of that name"),
    (BASE + "env:\n  X: {env: hf_abcdefghijklmnop}\n",
     "5: env.X: expected {env: NAME}, the name of a variable (value is not shown)"),
    (BASE + "env:\n  X: {file: /etc/shadow}\n",
     "5: env.X: expected a text, or {env: NAME} for a secret (not shown)"),
    (BASE + "env:\n  VLLM_PORT: 70000\n",
     "5: env.VLLM_PORT: found '70000', expected a port from 1 to 65535"),
    (BASE + "env:\n  VLLM_PORT: {env: X}\n",
     "5: env.VLLM_PORT: a port cannot be a secret; expected a port from 1 to 65535"),
    (BASE + "env:\n  VLLM_API_KEY: {env: X}\n",
     "5: env.VLLM_API_KEY: it is serve.api_key in the inventory"),
    (BASE + "mounts:\n  - {source: /var/run/docker.sock, target: /x}\n",
     "5: mounts[0].source: found /var/run/docker.sock, which no container may have: /var/run holds "
     "the sockets of Docker and systemd, and secrets; put what is needed into a folder of its own, "
     "such as /srv/NAME"),
    (BASE + "mounts:\n  - {source: '/srv/x,source=/etc', target: /x}\n",
     "5: mounts[0].source: found '/srv/x,source=/etc'; Docker takes no comma, colon or quote in a "
     "path"),
    (BASE + "drafter: {method: mtp, tokens: 1, path: /etc/x}\n",
     "4: drafter.path: found /etc/x, where no model may be put: /etc holds the node's "
     "configuration, with its accounts and keys; put what is needed into a folder of its own, "
     "such as /srv/NAME"),
    (BASE + "patches:\n  - {file: ../../etc/shadow, target: /x, why: y}\n",
     "5: patches[0].file: found '../../etc/shadow', expected a path inside the model's folder"),
    (BASE.replace("repo/image:1", "--privileged"),
     "3: image.ref: found '--privileged', expected text that matches ^[^\\s-]\\S*$"),
    (BASE.replace("name: r\n", "name: q\n"),
     "1: name: found 'q', expected 'r', the name of the file"),
]  # fmt: skip


@pytest.mark.parametrize(
    ("text", "expected"), WRONG, ids=[e.split(":")[1].strip() for _, e in WRONG]
)
def test_wrong_recipes(tmp_path: Path, text: str, expected: str) -> None:
    with pytest.raises(InvalidFile) as caught:
        load(tmp_path, text)
    assert str(caught.value).replace(f"{tmp_path}/r.yaml:", "") == expected


def test_no_secret_in_a_message(tmp_path: Path) -> None:
    for line in ("engine_args: {api-key: sk-1}", "env: {OPENAI_API_KEY: sk-1}"):
        with pytest.raises(InvalidFile) as caught:
            load(tmp_path, BASE + line)
        assert "sk-1" not in str(caught.value)


def test_defaults(tmp_path: Path) -> None:
    recipe = load(tmp_path, BASE)
    assert recipe.model.in_hub_cache
    assert recipe.model.node_path == "org/m", "the folder is known with the revision"
    assert recipe.located({"org/m": "/hub/x"}).model.node_path == "/hub/x"
    assert recipe.image.reference == "repo/image:1"
    assert recipe.gpu_memory_utilization is None
    assert recipe.probe.expect == "Paris"


def test_every_kind_of_argument() -> None:
    recipe = made(
        engine_args={
            "max-model-len": 4096,
            "enforce-eager": True,
            "allowed-origins": ["a", 2],
            "compilation-config": {"mode": 3, "level": 2},
            "dtype": "bfloat16",
            "swap-space": 0.5,
        }
    )
    assert recipe.args_for(2, 0.7) == [
        "--allowed-origins", "a", "2",
        "--compilation-config", '{"level":2,"mode":3}',
        "--dtype", "bfloat16",
        "--enforce-eager",
        "--gpu-memory-utilization", "0.7",
        "--max-model-len", "4096",
        "--served-model-name", "m",
        "--swap-space", "0.5",
        "--tensor-parallel-size", "2",
    ]  # fmt: skip


def test_the_recipes_own_memory_share_wins() -> None:
    args = made(gpu_memory_utilization=0.6).args_for(1, 0.7)
    assert args[args.index("--gpu-memory-utilization") + 1] == "0.6"
    assert "--gpu-memory-utilization" not in made().args_for(1)


def test_a_size_it_does_not_do_is_refused() -> None:
    with pytest.raises(Refused, match="size 1 to 2, not 3\n  use --tp 2"):
        made().args_for(3)
    with pytest.raises(Refused, match="size 2, not 1\n  use --tp 2"):
        made(tensor_parallel={"min": 2, "max": 2}).args_for(1)


def test_numbers_in_the_environment_are_text() -> None:
    assert made(env={"OMP_NUM_THREADS": 1}).env == {"OMP_NUM_THREADS": "1"}


def test_mounts_and_digests() -> None:
    digest = "sha256:" + "a" * 64
    recipe = made(
        image={"ref": "i:1", "digest": digest},
        mounts=[
            {"source": "/a/", "target": "/b"},
            {"source": "/c", "target": "/d", "read_only": False},
        ],
    )
    assert recipe.image.reference == f"i:1@{digest}"
    assert [mount.volume for mount in recipe.mounts] == ["/a:/b:ro", "/c:/d"]


def test_a_relative_directory_starts_at_the_recipe(tmp_path: Path) -> None:
    text = BASE.replace("served_name: m", "served_name: m, source: directory, directory: models/m")
    assert load(tmp_path, text).model.directory == tmp_path / "models/m"
    home = load(tmp_path, text.replace("models/m", "~/m")).model.directory
    assert home == Path.home() / "m"


@given(
    st.dictionaries(
        st.from_regex(r"x[a-z]{1,8}(-[a-z]{1,5})?", fullmatch=True),
        st.one_of(st.just(True), st.integers(-(2**63), 2**63), st.text(min_size=1)),
    ),
    st.randoms(),
)
def test_arguments_do_not_depend_on_the_order_of_lines(
    flags: dict[str, object], random: object
) -> None:
    items = list(flags.items())
    random.shuffle(items)  # type: ignore[attr-defined]
    assert made(engine_args=flags).args_for(1) == made(engine_args=dict(items)).args_for(1)


CARDS = {"the checkpoint's own card, quoted in part 7"}
SHIPPED = sorted(Project(Path(__file__).parent).list("recipes"))
GEMMA = [name for name in SHIPPED if name.startswith("gemma4")]


@pytest.mark.parametrize("name", SHIPPED)
def test_shipped_recipes_are_sound(name: str, tmp_path: Path) -> None:
    recipe = load_recipe(name, Project(tmp_path))
    sizes = recipe.tensor_parallel.usual
    assert len({tuple(recipe.args_for(tp)) for tp in sizes}) == len(sizes)
    assert recipe.name == name
    assert recipe.description
    assert recipe.ready_timeout_s >= (300 if name == "lab-paris" else 900), "it compiles for long"


@pytest.mark.parametrize("name", [name for name in SHIPPED if name != "lab-paris"])
def test_shipped_recipes_say_what_plans_need(name: str, tmp_path: Path) -> None:
    recipe = load_recipe(name, Project(tmp_path))
    assert recipe.model.base
    assert recipe.model.quantization
    assert recipe.vllm.supported
    assert recipe.sources
    assert {m.source for m in recipe.measured} <= {*recipe.sources, *CARDS}
    assert recipe.vllm.version is None or recipe.vllm.version in SpecifierSet(
        recipe.vllm.supported, prereleases=True
    )
    assert not recipe.image.ref.endswith((":latest", ":nightly")), "tags that move"


@pytest.mark.parametrize("name", GEMMA)
def test_what_the_articles_had_wrong_is_right(name: str, tmp_path: Path) -> None:
    recipe = load_recipe(name, Project(tmp_path))
    assert recipe.engine_args["tool-call-parser"] == "gemma4"
    assert recipe.engine_args["enable-auto-tool-choice"] is True
    assert recipe.gpu_memory_utilization is None or recipe.gpu_memory_utilization <= 0.5
    assert recipe.image.ref != "vllm/vllm-openai:gemma4"
    if recipe.model.quantization == "nvfp4" and "a4b" in name:
        assert recipe.engine_args["moe-backend"] == "marlin"
        assert any("MARLIN" in line for line in recipe.readiness.log_expect)
    if recipe.image.build:
        assert "git clone" not in recipe.image.build.dockerfile, "a branch is another one tomorrow"


def test_the_measured_configurations_are_all_there() -> None:
    """A row for each recipe, as the articles print it: decode tokens/s of one request."""
    found = {
        (name, m.tp, m.decode_tok_s)
        for name in SHIPPED
        for m in load_recipe(name, Project(Path(__file__).parent)).measured
        if m.concurrency == 1
    }
    assert found >= {
        ("gemma4-31b-nvfp4", 1, 7.0),
        ("gemma4-31b-nvfp4-text", 1, 6.8),
        ("gemma4-31b-fp8", 1, 6.91),
        ("gemma4-31b-fp8", 2, 11.2),
        ("gemma4-31b-fp8-eager", 1, 6.24),
        ("gemma4-26b-a4b-nvfp4", 1, 51.6),
        ("gemma4-26b-a4b-fp8", 1, 36.9),
        ("gemma4-26b-a4b-fp8", 1, 35.0),
        ("gemma4-26b-a4b-fp8-mtp", 1, 75.7),
        ("gemma4-26b-a4b-fp8-mtp-min", 1, 80.0),
        ("gemma4-26b-a4b-fp8-mtp-fp8kv", 1, 53.7),
    }

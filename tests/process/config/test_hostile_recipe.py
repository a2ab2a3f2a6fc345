"""A recipe of an attacker is refused by every command, before a node is asked for anything."""

from pathlib import Path

import pytest
from factories import make_recipe, put
from hostile import recipe
from program import invoke
from role_samples import a_spark, yielded

from spark_cluster.config.recipe import recipe_problems
from spark_cluster.config.recipe_schema import Drafter, Model, Mount
from spark_cluster.config.recipe_settings import model_settings
from spark_cluster.errors import InvalidFile, Refused
from spark_cluster.node import paths
from spark_cluster.node.host import Host
from spark_cluster.node.values import ResourceError
from spark_cluster.resources import Directory

COMMANDS = (("lint",), ("plan", "--offline"), ("up", "--recipe"))
INVENTORY = "nodes: {a: {address: 127.0.0.1, port: 1}}\n"
OWN_ROOT = """\
settings: {caches: {root: /data/caches}, llama_benchy: {path: /data/benchy}}
serve: {allow_mounts: [/data, /other], allow_venv: true}
"""


@pytest.fixture(autouse=True)
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "inventory.yaml").write_text(INVENTORY)
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.parametrize("source", recipe.REACHED)
def test_no_path_of_root_is_mounted_whatever_is_allowed(project, source):
    """A container that writes there would be root on the node at the next `up`."""
    recipe.write(project, recipe.with_mount(source))
    for command in COMMANDS:
        for allowed in ((), ("--allow-mount", source), ("--allow-mount", "/")):
            done = invoke(*command, recipe.NAME, *allowed)
            assert isinstance(done.exception, InvalidFile | Refused), (command, allowed)


@pytest.mark.parametrize("source", recipe.TARGETS)
def test_nor_is_it_read(project, source):
    recipe.write(project, recipe.with_mount(source, read_only=True))
    done = invoke("lint", recipe.NAME, "--allow-mount", source)
    assert isinstance(done.exception, InvalidFile) or source.startswith("/usr/")


@pytest.mark.parametrize(
    "archive",
    [
        f"{paths.CACHE_ROOT}/huggingface/hub/models--evil--m/snapshots/{'0' * 40}/i.tar",
        f"{paths.MODELS_FOLDER}/evil/i.tar",
        "/srv/mine/i.tar",
        "/srv/own/i.tar",
    ],
)
@pytest.mark.parametrize("image", [recipe.ARCHIVE, recipe.BASE_ARCHIVE])
def test_no_image_comes_out_of_a_download_or_of_a_container(project, image, archive):
    """It would get any name that other recipes have their images by."""
    mount = "mounts: [{source: /srv/own, target: /data, read_only: false}]"
    text = recipe.text(f"{image}\n{mount}").replace("served_name:", "path: /srv/mine, served_name:")
    recipe.write(project, text % archive)
    done = invoke("lint", recipe.NAME)
    assert isinstance(done.exception, InvalidFile)
    assert f"archive: found {archive}" in str(done.exception)
    recipe.write(project, text % "/srv/images/i.tar")
    assert not isinstance(invoke("lint", recipe.NAME).exception, InvalidFile)


@pytest.mark.parametrize("image", [recipe.ARCHIVE, recipe.BASE_ARCHIVE])
def test_nor_out_of_the_folder_of_caches_that_settings_name(project, image):
    (project / "inventory.yaml").write_text(INVENTORY + OWN_ROOT)
    recipe.write(project, recipe.text(image % "/data/caches/images/a/i.tar"))
    with pytest.raises(Refused, match="archive"):
        invoke("up", "--recipe", recipe.NAME, "--allow-build", catch_exceptions=False,
               standalone_mode=False)  # fmt: skip


@pytest.mark.parametrize("source", recipe.REACHED)
def test_import_leaves_it_out(source):
    line = f"docker run -v {source}:/data ghcr.io/evil/vllm:1 vllm serve evil/m"
    done = invoke("recipes", "import", "--command", line)
    assert "mounts:" not in done.stdout
    assert source in done.output, "it is said that it was left out"


@pytest.mark.parametrize("source", ["/opt/vllm", "/home/me/venv", "/srv/data", "/var/cache/x"])
@pytest.mark.parametrize("command", COMMANDS)
def test_what_it_writes_is_named_by_the_user(project, source, command):
    recipe.write(project, recipe.with_mount(source))
    assert isinstance(invoke(*command, recipe.NAME).exception, Refused)
    done = invoke(*command, recipe.NAME, "--allow-mount", source)
    assert not isinstance(done.exception, Refused)


@pytest.mark.parametrize("source", ["/data/caches", "/data/caches/images", "/data", "/data/benchy"])
def test_folders_that_settings_give_us_are_our_own(project, source):
    """Although the inventory lets recipes write to a folder above them."""
    (project / "inventory.yaml").write_text(INVENTORY + OWN_ROOT)
    recipe.write(project, recipe.with_mount(source))
    done = invoke("lint", recipe.NAME)
    assert isinstance(done.exception, Refused)
    assert "spark-cluster's own" in done.exception.message
    recipe.write(project, recipe.with_mount("/other/x"))
    assert invoke("lint", recipe.NAME).exception is None


@pytest.mark.parametrize("path", ["/other/venv", "/"])
def test_no_environment_is_where_recipes_write(project, path):
    (project / "inventory.yaml").write_text(INVENTORY + OWN_ROOT)
    text = recipe.text(f"runtime: venv\nvenv: {{path: {path}, requirements: [vllm==0.32.0]}}")
    recipe.write(project, "\n".join(x for x in text.splitlines() if not x.startswith("image:")))
    assert isinstance(invoke("up", "--recipe", recipe.NAME).exception, InvalidFile | Refused)


def test_a_dockerfile_needs_the_permission_of_build_steps(project):
    recipe.write(project, recipe.text(recipe.DOCKERFILE))
    done = invoke("up", "--recipe", recipe.NAME)
    assert isinstance(done.exception, Refused)
    assert "its Dockerfile" in done.exception.message
    assert "--allow-build-network" in done.exception.hint
    still = invoke("up", "--recipe", recipe.NAME, "--allow-build")
    assert isinstance(still.exception, Refused), "a Dockerfile is built with a network"
    given = invoke("up", "--recipe", recipe.NAME, "--allow-build-network")
    assert not isinstance(given.exception, Refused)
    told = " ".join(invoke("lint", recipe.NAME).output.split())
    assert "`up` needs --allow-build-network" in told


@pytest.mark.parametrize("sent", [False, True], ids=["from the hub", "from the laptop"])
def test_no_folder_for_a_model_is_reached_through_what_another_download_left(
    tmp_path, sent
) -> None:
    """Its image downloads as root, into a folder that it may fill with links: the next folder is
    mounted there for the next download, or filled by root."""
    root = tmp_path / "node"
    (root / "disk/models/a").mkdir(parents=True)
    (root / "srv").symlink_to("disk")  # an administrator's
    (root / "etc/cron.d").mkdir(parents=True)
    (root / "disk/models/a/b").symlink_to("../../../etc")
    drafter = {"method": "eagle3", "name": "evil/d", "path": "/srv/models/a/b/cron.d", "tokens": 1}
    found = make_recipe("gemma4-31b-nvfp4", drafter=Drafter.model_validate(drafter)).model_copy(
        update={
            "model": Model(name="evil/m", path="/srv/models/a", served_name="m"),
            "mounts": [Mount(source="/srv/models/a/b", target="/x")],
        }
    )
    assert not recipe_problems(found)
    assert not any(given["mounts"] for given in model_settings(found)), "nor seen by the next one"
    put(tmp_path / "files/job", "* * * * * root true")
    more = {"source": "directory", "directory": tmp_path / "files"} if sent else {}
    own, other = (
        next(
            r for r in yielded("models", a_spark(), **{**given, **more}) if isinstance(r, Directory)
        )
        for given in model_settings(found)
    )
    assert own.observe(Host(root))["kind"] == "directory"
    with pytest.raises(ResourceError, match=r"/etc/cron\.d by a link below /srv/models"):
        other.observe(Host(root))

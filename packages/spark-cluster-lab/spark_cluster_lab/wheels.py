"""Files that llama-benchy needs on nodes: wheels to install it from, and a text for its prompts.

The lab's nodes reach no package index, so they are shown a folder, like a disk that is plugged in.
"""

from __future__ import annotations

import re
import shutil
from pathlib import Path

from spark_cluster.errors import Failed
from spark_cluster_lab.artefact import Artefact, enter
from spark_cluster_lab.layout import Layout
from spark_cluster_lab.vllm_env import (
    INSIDE,
    copy_named_files,
    local_directories,
    pip_settings,
)

REQUIREMENTS = ("llama-benchy==0.4.0",)
WHEELS = Path("/srv/wheels")
"""Where nodes see them."""

BOOK = "book.txt"
LINE = "The capital of France is Paris, and line {} of this text says so once more.\n"
LINES = 4000

DOWNLOAD = """\
import subprocess, sys
version, *requirements = sys.argv[1:]
tag = "cp" + version.replace(".", "")
options = ["--only-binary=:all:", "--python-version", version, "--implementation", "cp"]
options += [word for abi in (tag, "abi3", "none") for word in ("--abi", abi)]
argv = [sys.executable, "-m", "pip", "download", "--quiet", "--dest", "/srv/wheels"]
sys.exit(subprocess.run([*argv, *options, *requirements]).returncode)
"""


def wheels(layout: Layout, base: Artefact, tree: Artefact, environment: Artefact) -> Artefact:
    """The folder of wheels, for the Python of the nodes (which may be another than the image's)."""
    recipe = "\n".join([base.recipe, *REQUIREMENTS, DOWNLOAD, LINE, str(LINES)])

    def build(folder: Path) -> None:
        log = layout.prepared / "wheels.log"
        log.unlink(missing_ok=True)
        assets = folder.with_name(folder.name + ".assets")
        assets.mkdir(exist_ok=True)
        settings = copy_named_files(pip_settings(), assets, Path("/srv/assets"))
        try:
            enter(
                tree.path,
                [f"{INSIDE}/bin/python", "-c", DOWNLOAD, _python_of(base.path), *REQUIREMENTS],
                log=log,
                binds={folder: WHEELS, assets: Path("/srv/assets")},
                read_only={environment.path: INSIDE}
                | {path: path for path in local_directories(settings)},
                environment=settings,
            )
        except Failed as error:
            hint = f"pip must reach wheels of {', '.join(REQUIREMENTS)}; all of its output: {log}"
            raise Failed(error.message, hint=hint) from error
        finally:
            shutil.rmtree(assets)
        (folder / BOOK).write_text("".join(LINE.format(number) for number in range(LINES)))

    return Artefact(layout.prepared, "wheels", recipe, build, usual_s=20, usual_mb=50)


def _python_of(tree: Path) -> str:
    """Return the version of a tree's Python, `3.13`."""
    found = [p.name for p in (tree / "usr/lib").iterdir() if re.fullmatch(r"python3\.\d+", p.name)]
    if len(found) != 1:
        raise Failed(f"expected one Python below {tree}/usr/lib, found {found or 'none'}")
    return found[0].removeprefix("python")

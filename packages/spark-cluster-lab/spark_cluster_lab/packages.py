"""Stand-ins for NVIDIA's packages, in a small apt repository on the node.

They have the real names and versions and hardly any content, so that pins, holds, upgrades and
reboots are exercised with the real apt and dpkg. As with the real driver, a new version is in force
after a reboot only; until then nvidia-smi says `Driver/library version mismatch`.
"""

from __future__ import annotations

import hashlib
import tempfile
from dataclasses import dataclass, field
from pathlib import Path

from spark_cluster_lab.shell import output, run

FOLDER = Path("srv/apt")
SOURCE = "etc/apt/sources.list.d/lab-nvidia.list"
DRIVER = "nvidia-driver-580-open"
DRIVER_VERSIONS = ("580.126.09", "580.142", "580.159.03", "580.173.02")
REVISION = "-0ubuntu1"

_STATE = """import json, sys
from pathlib import Path
file = Path("/var/lib/lab/state.json")
state = json.loads(file.read_text()) if file.exists() else {}
state.update(json.loads(sys.argv[1]))
file.parent.mkdir(parents=True, exist_ok=True)
file.write_text(json.dumps({k: v for k, v in state.items() if v is not None}))
"""
_UNIT = """[Unit]
Description=The installed driver is the one that runs (stand-in)
DefaultDependencies=no
After=local-fs.target
Before=lab-hardware.service

[Service]
Type=oneshot
ExecStart=/usr/bin/python3 /usr/lib/lab-driver/state '{now}'

[Install]
WantedBy=sysinit.target
"""
_CTK = """#!/bin/sh
# stand-in: `nvidia-ctk cdi generate --output=FILE`, which writes what 1.19 does
version=$(nvidia-smi --query-gpu=driver_version --format=csv,noheader) ||
  { echo "failed to initialize NVML: $version" >&2; exit 1; }
mkdir -p "$(dirname "${3#--output=}")"
cat > "${3#--output=}" <<END
---
cdiVersion: 0.5.0
containerEdits:
  deviceNodes:
  - path: /dev/nvidia-uvm
  - path: /dev/nvidiactl
  env:
  - NVIDIA_VISIBLE_DEVICES=void
  hooks:
  - args:
    - nvidia-cdi-hook
    - create-symlinks
    - --link
    - libcuda.so.1::/usr/lib/aarch64-linux-gnu/libcuda.so
    hookName: createContainer
    path: /usr/bin/nvidia-cdi-hook
  mounts:
  - containerPath: /usr/lib/aarch64-linux-gnu/libcuda.so.$version
    hostPath: /usr/lib/aarch64-linux-gnu/libcuda.so.$version
    options:
    - ro
    - nosuid
    - nodev
    - rbind
    - rprivate
devices:
- containerEdits:
    deviceNodes:
    - path: /dev/nvidia0
  name: "0"
- containerEdits:
    deviceNodes:
    - path: /dev/nvidia0
  name: all
kind: nvidia.com/gpu
END
"""
_CDI_HOOK = "#!/bin/sh\n# stand-in: runs in a container that is made\n"
_POSTINST = """#!/bin/sh
set -e
/usr/bin/python3 /usr/lib/lab-driver/state '{mismatch}'
/usr/local/sbin/lab-hardware refresh || true
ln -sf /usr/lib/systemd/system/lab-driver.service \\
    /etc/systemd/system/sysinit.target.wants/lab-driver.service
echo '*** System restart required ***' > /run/reboot-required
echo {package} >> /run/reboot-required.pkgs
"""


@dataclass(frozen=True)
class Deb:
    """A package: its control fields, and the text of its files by path."""

    name: str
    version: str
    files: dict[str, str] = field(default_factory=dict)
    postinst: str = ""

    @property
    def control(self) -> str:
        return (
            f"Package: {self.name}\nVersion: {self.version}\nArchitecture: all\n"
            "Maintainer: spark-cluster lab <root@localhost>\nSection: misc\nPriority: optional\n"
            f"Description: stand-in for {self.name}\n"
        )


def driver(version: str) -> Deb:
    """The driver: a new one does not fit what runs until the next boot."""
    state = '{"nvml_error": "Driver/library version mismatch"}'
    now = f'{{"nvml_error": null, "driver_version": "{version}"}}'
    files = {
        "usr/lib/lab-driver/state": _STATE,
        "usr/lib/systemd/system/lab-driver.service": _UNIT.format(now=now),
    }
    postinst = _POSTINST.format(mismatch=state, package=DRIVER)
    return Deb(DRIVER, version + REVISION, files, postinst)


def stand_ins() -> list[Deb]:
    """Return all stand-in packages."""
    flashed = "#!/bin/sh\ntouch /var/lib/lab/flashed\n"
    return [
        *(driver(version) for version in DRIVER_VERSIONS),
        Deb("mlnx-fw-updater", "24.10-1", postinst=flashed),
        Deb("mlnx-fw-updater", "25.04-1", postinst=flashed),
        *(
            Deb(
                "nvidia-container-toolkit",
                version,
                {"usr/bin/nvidia-ctk": _CTK, "usr/bin/nvidia-cdi-hook": _CDI_HOOK},
            )
            for version in ("1.19.0-1", "1.19.1-1")
        ),
        Deb("nvidia-spark-grub-kho", "1.0"),
        # fwupd's command is a stand-in of its own; a node that has the package is asked with it.
        Deb("fwupd", "99.0-1"),
    ]


def add_repository(root: Path) -> None:
    """Put the repository into a node's file system; `apt-get update` there makes apt know it."""
    folder = root / FOLDER
    folder.mkdir(parents=True, exist_ok=True)
    entries = [_entry(_build(deb, folder), folder) for deb in stand_ins()]
    (folder / "Packages").write_text("\n".join(entries))
    (root / SOURCE).write_text(f"deb [trusted=yes] file:/{FOLDER} ./\n")


def _build(deb: Deb, folder: Path) -> Path:
    target = folder / f"{deb.name}_{deb.version}_all.deb"
    with tempfile.TemporaryDirectory() as scratch:
        tree = Path(scratch)
        tree.chmod(0o755)
        _put(tree / "DEBIAN/control", deb.control)
        for name, text in deb.files.items():
            _put(tree / name, text).chmod(0o755 if text.startswith("#!") else 0o644)
        if deb.postinst:
            _put(tree / "DEBIAN/postinst", deb.postinst).chmod(0o755)
        run(["dpkg-deb", "--root-owner-group", "-Znone", "--build", tree, target])
    return target


def _put(path: Path, text: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return path


def _entry(package: Path, folder: Path) -> str:
    """Return one paragraph of the repository's index."""
    data = package.read_bytes()
    fields = output(["dpkg-deb", "--field", package])
    return (
        f"{fields.strip()}\nFilename: ./{package.relative_to(folder)}\nSize: {len(data)}\n"
        f"SHA256: {hashlib.sha256(data).hexdigest()}\n"
    )

"""A file-system layer over the base tree with the stand-ins for what needs a Spark's hardware."""

from __future__ import annotations

from importlib import resources
from pathlib import Path

from spark_cluster_lab.artefact import Artefact
from spark_cluster_lab.layout import Layout
from spark_cluster_lab.vllm_env import texts

STANDINS = resources.files("spark_cluster_lab") / "standins"
LIBRARY = Path("usr/local/lib/spark-lab")
PROGRAMS = {
    "usr/bin/nvidia-smi": "nvidia_smi",
    "usr/bin/ibdev2netdev": "ibdev2netdev",
    "usr/bin/ibv_devinfo": "ibv_devinfo",
    "usr/bin/fwupdmgr": "fwupdmgr",
    "usr/local/sbin/rdma": "rdma",
    "usr/local/sbin/swapoff": "swapoff",
    "usr/local/sbin/ethtool": "ethtool",
    "usr/local/sbin/runc": "runc",
    "usr/local/sbin/lab-hardware": "hardware",
}
LAUNCHER = """#!/usr/bin/python3 -IS
import sys

sys.path.insert(0, "/{library}")
from standins.{module} import main

sys.exit(main(sys.argv[1:]))
"""
NOTHING = "#!/bin/sh\n# stand-in: there is nothing to do here\nexit 0\n"
STUBS = ("usr/local/sbin/udevadm", "usr/local/sbin/nvidia-container-runtime-hook")
UNIT = """[Unit]
Description=Hardware of a DGX Spark (stand-in)
DefaultDependencies=no
After=local-fs.target
Before=sysinit.target systemd-sysctl.service

[Service]
Type=notify
NotifyAccess=all
ExecStart=/usr/local/sbin/lab-hardware serve
Restart=on-failure

[Install]
WantedBy=sysinit.target
"""
FILES = {
    "etc/systemd/system/lab-hardware.service": UNIT,
    "etc/fastos-release": 'NAME="DGX SPARK FASTOS"\n',
    "etc/dgx-release": """DGX_NAME="DGX Spark"
DGX_PRETTY_NAME="NVIDIA DGX Spark"
DGX_SWBUILD_DATE="2025-09-10-13-50-03"
DGX_SWBUILD_VERSION="7.2.3"
DGX_COMMIT_ID="833b4a7"
DGX_PLATFORM="DGX Server for KVM"
DGX_SERIAL_NUMBER="1983725003055"

DGX_OTA_VERSION="7.3.1"
DGX_OTA_DATE="Fri Jan 16 23:27:32 UTC 2026"

DGX_OTA_VERSION="7.4.0"
DGX_OTA_DATE="Tue Feb 17 22:17:46 IST 2026"
""",
}


def standin_layer(layout: Layout) -> Artefact:
    """The layer; it changes whenever a stand-in's source does."""
    recipe = "\n".join([*texts(STANDINS), repr(PROGRAMS), LAUNCHER, repr(STUBS), repr(FILES)])
    return Artefact(layout.prepared, "standins", recipe, write_layer)


def write_layer(folder: Path) -> None:
    library = folder / LIBRARY / "standins"
    library.mkdir(parents=True)
    for source in STANDINS.iterdir():
        if source.name.endswith(".py"):
            (library / source.name).write_text(source.read_text())
    for name, module in PROGRAMS.items():
        write(folder / name, LAUNCHER.format(library=LIBRARY, module=module), 0o755)
    for name in STUBS:
        write(folder / name, NOTHING, 0o755)
    for name, text in FILES.items():
        write(folder / name, text, 0o644)
    wants = folder / "etc/systemd/system/sysinit.target.wants"
    wants.mkdir()
    (wants / "lab-hardware.service").symlink_to("../lab-hardware.service")


def write(path: Path, text: str, mode: int) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    path.chmod(mode)

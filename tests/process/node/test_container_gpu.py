"""Scripts about the GPU of containers, run by a real shell against folders of this machine."""

import json
import os
import subprocess
from dataclasses import dataclass
from pathlib import Path

import pytest
from factories import put

from spark_cluster.node import confinement

CTK = 'sed "s/VERSION/$(cat {root}/driver)/" {root}/template > "${{3#--output=}}"'


@dataclass
class Driver:
    """A driver below a folder, the two folders of specifications, and stand-ins of its tools."""

    root: Path

    @property
    def folders(self) -> tuple[str, str]:
        return str(self.root / "etc"), str(self.root / "run")

    def install(self, version: str) -> None:
        for library in self.root.glob("libcuda.so.*"):
            library.unlink()
        (self.root / f"libcuda.so.{version}").touch()
        (self.root / "driver").write_text(version)

    def text(self, version: str) -> str:
        text = Path(__file__).with_name("cdi.yaml").read_text()
        return text.format(root=self.root, version=version)

    def command(self, name: str, script: str) -> None:
        put(self.root / "bin" / name, f"#!/bin/sh\n{script}\n", 0o755)

    def run(self, script: str) -> subprocess.CompletedProcess[str]:
        env = {"PATH": f"{self.root / 'bin'}:{os.environ['PATH']}"}
        argv = ["sh", "-c", script, "cdi", *self.folders]
        return subprocess.run(
            argv, env=env, capture_output=True, text=True, check=False, timeout=60
        )

    @property
    def missing(self) -> list[str]:
        """What is named and is not there, without the folder of this test."""
        script = confinement.SPECIFICATIONS.replace("/dev/nvidia[", f"{self.root}/dev/nvidia[")
        lines = self.run(script).stdout.splitlines()
        return [line.replace(str(self.root), "") for line in lines if "\t" in line]


@pytest.fixture
def driver(tmp_path: Path) -> Driver:
    made = Driver(tmp_path)
    for folder in ("etc", "run", "bin", "dev"):
        (tmp_path / folder).mkdir()
    (tmp_path / "nvidia-cdi-hook").touch()
    (tmp_path / "dev/nvidiactl").touch()
    (tmp_path / "template").write_text(made.text("VERSION"))
    made.command("nvidia-ctk", CTK.format(root=tmp_path))
    made.command("nvidia-smi", "exit 0")
    made.command("systemctl", "exit 5")  # there is no nvidia-cdi-refresh
    made.install("580.126.09")
    return made


def described(driver: Driver) -> bool:
    return driver.run(confinement.DESCRIBED).returncode == 0


def test_a_driver_that_was_changed_is_described_again(driver):
    """P03: the specification names the libraries of the driver that is there, after each change."""
    assert not described(driver)
    assert driver.run(confinement.DESCRIBE).returncode == 0
    assert described(driver)
    assert driver.missing == []
    driver.install("580.142")
    assert driver.missing == ["/etc/nvidia.yaml\t/libcuda.so.580.126.09"]
    assert not described(driver)
    assert driver.run(confinement.DESCRIBE).returncode == 0
    assert described(driver)
    assert "libcuda.so.580.142" in (driver.root / "etc/nvidia.yaml").read_text()


def test_the_service_of_the_toolkit_describes_first(driver):
    """Both places are right then: a device that both describe is taken from the second."""
    (driver.root / "etc/nvidia.yaml").write_text(driver.text("580.95.05"))
    driver.command(
        "systemctl",
        'test "$*" = "restart nvidia-cdi-refresh.service" || exit 1\n'
        f"nvidia-ctk cdi generate --output={driver.root}/run/nvidia.yaml",
    )
    assert driver.run(confinement.DESCRIBE).returncode == 0
    for folder in driver.folders:
        assert "libcuda.so.580.126.09" in Path(folder, "nvidia.yaml").read_text()
    (driver.root / "etc/nvidia.yaml").unlink()
    (driver.root / "run/nvidia.yaml").unlink()
    assert driver.run(confinement.DESCRIBE).returncode == 0
    assert not (driver.root / "etc/nvidia.yaml").exists(), "the service's own is enough"


def test_a_driver_that_waits_for_a_reboot_is_described_after_it(driver):
    (driver.root / "etc/nvidia.yaml").write_text(driver.text("580.95.05"))
    driver.command("nvidia-smi", "echo 'Driver/library version mismatch'; exit 18")
    assert described(driver), "nothing can be done now"
    driver.command("nvidia-smi", "exit 0")
    assert not described(driver)


def test_a_tool_that_fails_says_why(driver):
    driver.command("nvidia-ctk", "echo failed to initialize NVML >&2; exit 1")
    done = driver.run(confinement.DESCRIBE)
    assert (done.returncode, done.stderr) == (1, "failed to initialize NVML\n")


@pytest.mark.parametrize("indent", [None, 2])
def test_a_specification_as_json(driver, indent):
    edits = {
        "deviceNodes": [{"path": "/dev/null"}, {"path": "/dev/nvidia7"}],
        "mounts": [{"hostPath": "/nowhere/libcuda.so", "containerPath": "/libcuda.so"}],
    }
    text = json.dumps({"kind": "nvidia.com/gpu", "containerEdits": edits}, indent=indent)
    (driver.root / "run/nvidia.json").write_text(text)
    assert driver.missing == [
        "/run/nvidia.json\t/dev/nvidia7",
        "/run/nvidia.json\t/nowhere/libcuda.so",
    ]


def test_specifications_of_others_are_left(driver):
    """Of another device, and one that a user wrote: what is ours to write again is nvidia.yaml."""
    (driver.root / "etc/amd.yaml").write_text("kind: amd.com/gpu\npath: /nowhere\n")
    (driver.root / "etc/own.yaml").write_text(driver.text("1"))
    assert driver.missing == ["/etc/own.yaml\t/libcuda.so.1"]
    assert described(driver)


def test_whatever_is_in_the_folders_the_scripts_end(driver):
    """A node that lies: a pipe, a folder, a loop of links, no text, and far too many paths."""
    etc = driver.root / "etc"
    os.mkfifo(etc / "pipe.yaml")
    (etc / "folder.json").mkdir()
    (etc / "loop.yaml").symlink_to("loop.yaml")
    binary = b"nvidia.com/gpu\0\xff\xfe path: /a\0b\n\x1b]0;x\x07path: /c$(id)`id`\n"
    (etc / "binary.yaml").write_bytes(binary)
    many = "".join(f"- path: /nowhere/{n}\n" for n in range(20000))
    (etc / "nvidia.yaml").write_text(f"kind: nvidia.com/gpu\n{many}")
    (driver.root / "dev/nvidia0").touch()
    missing = driver.missing
    assert "\t/dev/nvidia0" in missing
    assert len([line for line in missing if line.startswith("/etc/nvidia.yaml")]) == 50
    assert "/etc/binary.yaml\t/c$(id)`id`" in missing
    assert driver.run(confinement.DESCRIBE).returncode == 0


def test_lines_in_another_form_name_no_container():
    assert confinement.states("vllm lost a.scope\n\nvllm\nx y z more\n") == [
        ("vllm", "lost", "a.scope")
    ]


def test_systemd_is_told_of_units_of_containers_only():
    """A privileged container gives the control groups below its own any name."""
    unit = f"docker-{'a' * 64}.scope"
    named = ("ssh.service", f"x-{unit}", f"{unit}.d", "docker-1.scope", "-H", "a" * 64)
    rows = "".join(f"vllm lost {name}\n" for name in (*named, unit))
    assert confinement.to_be_told(rows) == [("vllm", unit)]
    assert confinement.to_be_told(f"vllm unknown-to-systemd {unit}") == [("vllm", unit)]
    assert confinement.to_be_told(f"vllm kept {unit}") == []

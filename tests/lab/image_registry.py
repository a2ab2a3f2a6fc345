"""A real registry of container images on the lab's bridge, with TLS and a log of who asks it."""

import json
import re
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from free_ports import free_port
from waiting import until

from spark_cluster_lab import LabNode
from spark_cluster_lab.layout import GATEWAY

_PULL = re.compile(r'^(\S+) .*"GET /v2/\S+/blobs/(sha256:[0-9a-f]{64}) ', re.MULTILINE)


@dataclass(frozen=True)
class ImageRegistry:
    """A registry that runs.

    Attributes:
        address: host and port, the beginning of the images' names.
    """

    address: str
    folder: Path

    def trust(self, node: LabNode) -> None:
        """Have a node's Docker take the registry's certificate."""
        certificate = (self.folder / "registry.pem").read_text()
        place = f"/etc/docker/certs.d/{self.address}"
        node.run(["mkdir", "-p", place])
        node.run(["sh", "-c", f"cat > {place}/ca.crt << 'END'\n{certificate}\nEND"])

    def distrust(self, node: LabNode) -> None:
        """Remove what `trust` has written."""
        node.run(["rm", "-rf", f"/etc/docker/certs.d/{self.address}"])

    def push(self, node: LabNode, image: str) -> tuple[str, str]:
        """Push a node's image; return its name here, and its digest."""
        name = f"{self.address}/{image}"
        node.run(["docker", "tag", image, name])
        pushed = node.run(["docker", "push", name]).stdout
        digest = re.search(r"digest: (sha256:[0-9a-f]{64})", pushed)
        assert digest is not None, pushed
        return name, digest[1]

    def pulls(self) -> list[tuple[str, str]]:
        """Who has asked for which blob, each request once."""
        return _PULL.findall((self.folder / "registry.log").read_text())


@contextmanager
def registry(folder: Path) -> Iterator[ImageRegistry]:
    """Serve an empty registry below a folder, as long as the context lasts."""
    address = f"{GATEWAY}:{free_port()}"
    paths = [str(folder / name) for name in ("registry.pem", "registry.key")]
    subprocess.run(
        [
            *("openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2"),
            *("-subj", "/CN=registry", "-addext", f"subjectAltName=IP:{GATEWAY}"),
            *("-out", paths[0], "-keyout", paths[1]),
        ],
        check=True,
        capture_output=True,
    )
    settings = {
        "version": 0.1,
        "log": {"accesslog": {"disabled": False}, "level": "error"},
        "storage": {"filesystem": {"rootdirectory": str(folder / "store")}},
        "http": {"addr": address, "tls": {"certificate": paths[0], "key": paths[1]}},
    }
    (folder / "registry.yml").write_text(json.dumps(settings))  # which is YAML too
    with (folder / "registry.log").open("wb") as log:
        server = subprocess.Popen(
            ["docker-registry", "serve", str(folder / "registry.yml")], stdout=log, stderr=log
        )
        try:
            ask = ["curl", "-sf", "--cacert", paths[0], f"https://{address}/v2/"]
            until(lambda: not subprocess.run(ask, check=False).returncode, 30, "it answers")
            yield ImageRegistry(address, folder)
        finally:
            server.terminate()
            server.wait(30)

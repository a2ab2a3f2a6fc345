"""The certificate of a copy, checked by OpenSSL at the time that a node's clock shows."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from spark_cluster.engine.copies.certificate import make_certificate

YEAR_S = 365.25 * 86400


@pytest.mark.skipif(not shutil.which("openssl"), reason="no openssl on this machine")
@pytest.mark.parametrize("year", [1970, 1999, 2026, 2049, 2090])
def test_a_nodes_clock_does_not_matter(tmp_path: Path, year: int) -> None:
    """A Spark whose clock was never set is in 1970, or in the year of its image."""
    pem = tmp_path / "certificate.pem"
    pem.write_text(make_certificate().certificate)
    moment = str(int((year - 1970) * YEAR_S))
    argv = ["openssl", "verify", "-attime", moment, "-purpose", "sslserver"]
    done = subprocess.run(
        [*argv, "-CAfile", str(pem), str(pem)],
        capture_output=True, text=True, check=False, timeout=60,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr

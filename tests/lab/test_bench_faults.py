"""Benchmark runs that meet faults: a full disk, a reboot of the head; on one server, which the
full disk leaves up.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from bench_results import attached, bench_user, cells, record, results
from commandline import CommandLine, until
from small_disk import small_disk

from spark_cluster.bench.on_node import FOLDER

pytestmark = [pytest.mark.lab, pytest.mark.soak]

ROOM = "80m"
"""Of the disk that becomes full: with less than 64 MiB free no cell is begun."""


@pytest.fixture(scope="module")
def user(lab, tmp_path_factory: pytest.TempPathFactory) -> Iterator[CommandLine]:
    with bench_user(lab, tmp_path_factory.mktemp("bench-faults"), "four") as made:
        yield made


def test_a_full_disk_ends_the_run_and_it_continues_with_room(user, spark1):
    """The server stays up when a run fails, so the next run needs no start."""
    with small_disk(spark1, FOLDER, ROOM):
        run = user.start("bench", "run", "four", "--out", "full", "--keep")
        until(lambda: results(spark1), what="the first result")
        spark1.run(["fallocate", "-l", "30M", f"{FOLDER}/other-data"])
        ran = run.end(status=1)
        assert "less than 64 MiB are free" in ran.printed
        assert record(user.home / "full")["status"] == "failed"
        before = results(spark1)
        assert 0 < len(before) < 4

        again = user("bench", "attach", "full", "--keep", status=1)
        assert "less than 64 MiB are free" in again.printed
        assert results(spark1) == before

        spark1.run(["rm", f"{FOLDER}/other-data"])
        attached(user, "full", 4, "--keep")
        assert before.items() <= results(spark1).items(), "no cell was measured twice"


def test_the_head_is_rebooted_in_the_middle_of_a_run(user, spark1):
    run = user.start("bench", "run", "four", "--out", "reboot", "--keep")
    until(lambda: len(results(spark1)) > 1, what="two results")
    before = results(spark1)
    spark1.poweroff(orderly=False)  # away for longer than a run waits for it
    ran = run.end(status=3)
    assert "spark1" in ran.printed
    assert record(user.home / "reboot")["status"] == "failed"
    spark1.boot()
    before |= results(spark1)  # one more may have come between the look and the reboot
    assert len(before) < 4, "the reboot came after the last cell: the test shows nothing"

    attached(user, "reboot", 4, "--keep")
    after = results(spark1)
    assert set(after) == set(cells(user, "reboot"))
    assert before.items() <= after.items(), "only the cell in progress is repeated"
    assert (user.home / "reboot/telemetry.parquet").stat().st_size > 1000

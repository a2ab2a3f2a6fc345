"""A benchmark run whose head is rebooted."""

from collections.abc import Iterator

import pytest
from bench_results import attached, bench_user, cells, record, results
from commandline import CommandLine, until

pytestmark = [pytest.mark.lab, pytest.mark.soak]


@pytest.fixture(scope="module")
def user(lab, tmp_path_factory: pytest.TempPathFactory) -> Iterator[CommandLine]:
    with bench_user(lab, tmp_path_factory.mktemp("bench-faults"), "small") as made:
        yield made


def test_the_head_is_rebooted_in_the_middle_of_a_run(user, spark1):
    run = user.start("bench", "run", "small", "--out", "reboot", "--keep")
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

"""Lines are searched once for what is in all lines that differ in digits only."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from spark_cluster.issues import log_reading
from spark_cluster.issues.log_reading import DIGITS, Shapes

ANCHORS = (b"Error 12", b"Error", b"12345", b"sm_121a", b"KV cache")
lines = st.lists(
    st.lists(st.sampled_from([*ANCHORS, b"1", b"x", b" ", b"Err", b"sm_a"])).map(b"".join),
    max_size=20,
)


@given(lines, st.integers(1, 4))
def test_no_anchor_of_a_line_is_missed(found: list[bytes], times: int) -> None:
    known = Shapes(ANCHORS)
    for _ in range(times):
        by_shape = known.anchors_of([line.translate(None, DIGITS) for line in found])
        for line in found:
            here = {anchor for anchor in ANCHORS if anchor in line}
            assert here <= set(by_shape[line.translate(None, DIGITS)])


def test_what_is_remembered_is_bounded(monkeypatch) -> None:
    monkeypatch.setattr(log_reading, "MOST", 10)
    known = Shapes([b"Error"])
    for start in range(0, 100, 5):
        known.anchors_of([bytes([97 + n % 26]) * (start + n + 1) for n in range(5)])
    known.anchors_of([b"x" * (log_reading.LONGEST + 1)])
    assert len(known._known) <= 10
    assert b"x" * (log_reading.LONGEST + 1) not in known._known

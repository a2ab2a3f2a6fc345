"""Install or remove the supervision of what serves, on the head."""

from __future__ import annotations

from typing import Literal

from spark_cluster.engine import supervision
from spark_cluster.engine.readiness import must_serve_one
from spark_cluster.engine.supervision import Supervision
from spark_cluster.runner.play import Play


def main(
    play: Play, *, state: Literal["present", "absent"], at_boot: bool = False
) -> Supervision | None:
    """Bring the head's supervision into a state; None in check mode."""
    if state == "present":
        must_serve_one(play, "supervise watches")
    with play.stage("supervise"):
        play.apply(play.head, play.role("supervise", state=state, at_boot=at_boot))
    return None if play.check else supervision.report(play.session(play.head))

"""The class of a resource's type, looked up by several documents at once."""

import sys
import threading

from waiting import HANG_S

import spark_cluster.resources
from spark_cluster.resources.base import resource_class

SLOW = """
import threading
from spark_cluster.resources.base import Resource

class Slow(Resource):
    complete = False

threading.slow_begun.set()
threading.slow_go.wait()
Slow.complete = True
"""


def test_a_module_that_another_thread_imports_is_waited_for(tmp_path, monkeypatch):
    """Two documents at once on a fresh agent: a class is registered before its module is done."""
    (tmp_path / "slow.py").write_text(SLOW)
    monkeypatch.setattr(spark_cluster.resources, "__path__", [str(tmp_path)])
    begun, go, complete = threading.Event(), threading.Event(), []
    monkeypatch.setattr(threading, "slow_begun", begun, raising=False)
    monkeypatch.setattr(threading, "slow_go", go, raising=False)

    def look_up() -> None:
        complete.append(getattr(resource_class("Slow"), "complete", None))

    threads = [threading.Thread(target=look_up) for _ in range(2)]
    try:
        threads[0].start()
        assert begun.wait(HANG_S)
        threads[1].start()
        threads[1].join(0.2)  # who does not wait is back by now
        go.set()
        for thread in threads:
            thread.join(HANG_S)
        assert complete == [True, True]
    finally:
        go.set()
        sys.modules.pop("spark_cluster.resources.slow", None)


def test_no_such_type():
    assert resource_class("NoSuchThing") is None
    assert resource_class("not a name") is None

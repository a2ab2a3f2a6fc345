"""Which nodes are heard at a port: over this machine's loopback, with a neighbour that floods."""

import json
import threading

from hostile import user

from spark_cluster.node import probes


@user.needs_root
def test_a_neighbour_that_gives_itself_names_without_an_end(capsys):
    """It hears the token, as everyone there does."""
    ended, port = threading.Event(), probes._port("lo")

    def flood() -> None:
        number = 0
        while not ended.is_set():
            number += 1
            probes._broadcast([port], json.dumps(["token", f"{number}" + 1000 * "x"]).encode())

    neighbour = threading.Thread(target=flood)
    neighbour.start()
    try:
        probes.neighbours("token", "spark1", "1", "lo")
    finally:
        ended.set()
        neighbour.join()
        port.close()
    heard = json.loads(capsys.readouterr().out)
    assert 0 < len(heard) <= probes.MOST_HEARD + 1

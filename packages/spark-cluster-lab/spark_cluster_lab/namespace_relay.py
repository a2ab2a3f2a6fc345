"""Carry connections into a network namespace: `python3 namespace_relay.py PORT`, run by nsenter.

Standard input is a listening socket, which stays in the namespace that it was made in; new
connections are made in the one that this program runs in, to PORT of its loopback. The program ends
when nobody reads its standard output any more, as when who started it was killed. Standard library
only, and nothing of ours.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import select
import socket
import sys

BLOCK = 65536
CONNECTS_WITHIN_S = 10.0


async def carry(source: asyncio.StreamReader, sink: asyncio.StreamWriter) -> None:
    """Copy one direction to its end."""
    with contextlib.suppress(OSError):
        while data := await source.read(BLOCK):
            sink.write(data)
            await sink.drain()
        sink.write_eof()


async def main(port: int) -> None:
    """Accept connections until nobody reads standard output."""

    async def both_ways(here: asyncio.StreamReader, back: asyncio.StreamWriter) -> None:
        with contextlib.closing(back), contextlib.suppress(OSError):
            connecting = asyncio.open_connection("127.0.0.1", port)
            there, on = await asyncio.wait_for(connecting, CONNECTS_WITHIN_S)
            with contextlib.closing(on):
                await asyncio.gather(carry(here, on), carry(there, back))

    await asyncio.start_server(both_ways, sock=socket.socket(fileno=0))
    poll = select.poll()
    poll.register(1, 0)  # POLLERR is always told
    await asyncio.to_thread(poll.poll)
    # At once: Python 3.11's `wait_for` can lose the cancellation of a connection that has just been
    # made, and this program would wait for it.
    os._exit(0)


if __name__ == "__main__":
    asyncio.run(main(int(sys.argv[1])))

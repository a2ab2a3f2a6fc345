"""SIGTERM and SIGHUP end a command as Ctrl-C does."""

from __future__ import annotations

import contextlib
import signal
from collections.abc import Iterator
from types import FrameType
from typing import NoReturn


@contextlib.contextmanager
def ended_by_signals() -> Iterator[None]:
    """Have SIGTERM and SIGHUP raise KeyboardInterrupt, once: what is open is then closed."""

    def end(_number: int, _frame: FrameType | None) -> NoReturn:
        for number in chosen:
            signal.signal(number, signal.SIG_IGN)
        raise KeyboardInterrupt

    # nohup has SIGHUP ignored
    chosen = [n for n in (signal.SIGTERM, signal.SIGHUP) if signal.getsignal(n) != signal.SIG_IGN]
    before = {number: signal.signal(number, end) for number in chosen}
    try:
        yield
    finally:
        if all(signal.getsignal(number) is end for number in chosen):
            for number, handler in before.items():
                signal.signal(number, handler)

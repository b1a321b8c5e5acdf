"""How a command is stopped: Ctrl-C and SIGTERM leave complete files, and an exit code as in shells."""

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager


class Terminated(KeyboardInterrupt):
    """SIGTERM, handled like Ctrl-C: background processes of scripts ignore SIGINT."""


@contextmanager
def stopped_by_sigterm() -> Iterator[None]:
    """Within this context, SIGTERM stops a command as Ctrl-C does; a handler of the caller's own stays in force."""

    def stop(*_: object) -> None:
        raise Terminated

    is_main = threading.current_thread() is threading.main_thread()  # signals can only be handled there
    if not is_main or signal.getsignal(signal.SIGTERM) is not signal.SIG_DFL:
        yield
        return
    signal.signal(signal.SIGTERM, stop)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)


def exit_code(stop: KeyboardInterrupt) -> int:
    """128 and the number of the signal, as shells count."""
    return 128 + (signal.SIGTERM if isinstance(stop, Terminated) else signal.SIGINT)

"""How a command ends before it is done: by Ctrl-C or SIGTERM, and with which exit code."""

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager

# exit codes: written, but some subjects could not be assigned; stopped, 128 and the number of the signal as in shells
INCOMPLETE, INTERRUPTED, TERMINATED = 3, 128 + signal.SIGINT, 128 + signal.SIGTERM


class Terminated(KeyboardInterrupt):
    """SIGTERM, handled like Ctrl-C: background processes of scripts ignore SIGINT."""


@contextmanager
def stopped_by_sigterm() -> Iterator[None]:
    """Within this context, SIGTERM stops a command as Ctrl-C does: files stay complete."""

    def stop(*_: object) -> None:
        raise Terminated

    is_main = threading.current_thread() is threading.main_thread()  # only there can signals be handled
    if not is_main or signal.getsignal(signal.SIGTERM) is not signal.SIG_DFL:
        yield
        return
    signal.signal(signal.SIGTERM, stop)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)


def code_of(stop: KeyboardInterrupt) -> int:
    return TERMINATED if isinstance(stop, Terminated) else INTERRUPTED

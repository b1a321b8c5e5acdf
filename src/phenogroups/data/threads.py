"""Threads that work ahead of the caller, such as decoding files while a network computes, and context variables."""

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from contextvars import ContextVar
from typing import TypeVar

Item = TypeVar("Item")
Result = TypeVar("Result")


def map_ahead(
    function: Callable[[Item], Result], items: Iterable[Item], *, workers: int, ahead: int
) -> Iterator[Result]:
    """Yield the results in the order of `items`; at most `ahead` of them are computed in advance."""
    waiting: deque[Future[Result]] = deque()
    with ThreadPoolExecutor(workers, thread_name_prefix="decode") as pool:
        try:
            for item in items:
                waiting.append(pool.submit(function, item))
                if len(waiting) > ahead:
                    yield waiting.popleft().result()
            while waiting:
                yield waiting.popleft().result()
        finally:
            for task in waiting:
                task.cancel()


@contextmanager
def set_within(variable: ContextVar[Item], value: Item) -> Iterator[None]:
    """Set a context variable until the context ends."""
    before = variable.set(value)
    try:
        yield
    finally:
        variable.reset(before)

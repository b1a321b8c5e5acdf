"""Each job runs in its own process, so that a crash or a memory leak does not affect the next.

On Linux one server imports the package once and forks for every job, which starts in milliseconds; elsewhere every job
starts a new interpreter. Unlike with multiprocessing, the caller's script is not imported again, so that it needs no
`if __name__ == "__main__"`, and what all jobs share is sent once.
"""

import importlib
import os
import pickle
import signal
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import IO, Any, Self

from phenogroups.training.memory import keep_memory

FORKS = sys.platform == "linux"  # macOS crashes in forks that have loaded its frameworks
INTERVAL = 0.1  # least number of seconds between two reports of progress


class JobFailed(RuntimeError):
    """The job raised an error or its process ended; `trace` is the traceback."""

    def __init__(self, message: str, trace: str = "") -> None:
        super().__init__(message)
        self.trace = trace


class Isolated:
    """Calls `function(shared, job, progress)`, named as module:function, for one job after the other."""

    def __init__(self, function: str, shared: Any) -> None:
        self._function, self._shared = function, shared
        self._server: subprocess.Popen[bytes] | None = None
        self._errors: IO[bytes] = tempfile.TemporaryFile()  # noqa: SIM115, closed by __exit__

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._stop()
        self._errors.close()

    def __call__(self, job: Any, progress: Callable[[Any], None]) -> Any:
        """Returns what the function returns; raises JobFailed."""
        kind: str = ""
        value: Any = None
        if self._server is not None and self._server.poll() is not None:  # it was killed between two jobs
            self._stop()
        try:
            server = self._server or self._start()
            _send(server.stdin, job)
            while kind not in ("result", "error"):
                if kind == "progress":
                    progress(value)
                kind, value = pickle.load(server.stdout)  # pyright: ignore[reportArgumentType]
        except (EOFError, pickle.UnpicklingError, BrokenPipeError):
            raise JobFailed(self._why_it_died()) from None
        finally:
            if not FORKS or kind not in ("result", "error"):
                self._stop()
        if kind == "error":
            raise JobFailed(*value)
        return value

    def _start(self) -> subprocess.Popen[bytes]:
        # the same paths of import as here; and a check for CUDA that does not initialise it, so that forking works
        environment = os.environ | {
            "PYTHONPATH": os.pathsep.join(filter(None, sys.path)), "PYTORCH_NVML_BASED_CUDA_CHECK": "1",
        }  # fmt: skip
        self._errors.seek(0)
        self._errors.truncate()
        # in a new session, so that an interruption reaches the caller alone, which then ends the server and its job
        self._server = subprocess.Popen(
            [sys.executable, "-P", "-m", "phenogroups.training.isolated"], stdin=subprocess.PIPE,
            stdout=subprocess.PIPE, stderr=self._errors, env=environment, start_new_session=True,
        )  # fmt: skip
        _send(self._server.stdin, (self._function, FORKS))
        _send(self._server.stdin, self._shared)
        return self._server

    def _stop(self) -> None:
        if self._server is None:
            return
        server, self._server = self._server, None
        if server.poll() is None:
            os.killpg(server.pid, signal.SIGKILL) if FORKS else server.kill()
        server.wait()
        for pipe in (server.stdin, server.stdout):
            with suppress(BrokenPipeError):  # unsent data is of no use
                pipe.close()  # pyright: ignore[reportOptionalMemberAccess]

    def _why_it_died(self) -> str:
        code = 0 if self._server is None else self._server.wait()
        number = -code if code < 0 else code - 128
        if number > 0:
            name = signal.Signals(number).name if number in set(signal.Signals) else f"signal {number}"
            memory = ", as when memory runs out. Free memory or take fewer subjects" * (name == "SIGKILL")
            return f"Expected an answer. Received: the process was ended by {name}{memory}."
        self._errors.seek(0)
        words = self._errors.read().decode(errors="replace").strip().splitlines()[-3:]
        return f"Expected an answer. Received: the process ended with code {code}. {' '.join(words)}".strip()


def peak_memory_mb() -> float | None:
    """The largest memory of this process so far, with its libraries; None on Windows, where it is unknown."""
    status = Path("/proc/self/status")
    if status.is_file():  # rusage would include the memory of the parent before the fork
        line = next(line for line in status.read_text().splitlines() if line.startswith("VmHWM"))
        return int(line.split()[1]) / 2**10
    if sys.platform == "win32":
        return None
    import resource

    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2 ** (20 if sys.platform == "darwin" else 10)


def serve() -> None:
    keep_memory()  # jobs may train, and the process is theirs alone
    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # printed text must not be mixed with the answers
    jobs = sys.stdin.buffer
    named, forks = pickle.load(jobs)
    module, _, name = named.partition(":")
    function = getattr(importlib.import_module(module), name)
    shared = pickle.load(jobs)
    while True:
        try:
            job = pickle.load(jobs)
        except EOFError:
            return
        if not forks:
            return _answer(answers, function, shared, job)
        child = os.fork()
        if child == 0:
            status = 1
            try:
                _answer(answers, function, shared, job)
                status = 0
            finally:
                os._exit(status)
        code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        if code != 0:  # its last answer may be incomplete: the caller starts a new server
            os._exit(code if code > 0 else 128 - code)


def _answer(answers: IO[bytes], function: Callable[..., Any], shared: Any, job: Any) -> None:
    last = 0.0

    def progress(row: Any) -> None:
        nonlocal last
        if time.monotonic() - last > INTERVAL:
            last = time.monotonic()
            _send(answers, ("progress", row))

    try:
        answer = ("result", function(shared, job, progress))
    except BrokenPipeError:
        raise  # the caller has ended
    except Exception as error:
        answer = ("error", (f"{type(error).__name__}: {error}", traceback.format_exc()))
    _send(answers, answer)


def _send(pipe: Any, value: Any) -> None:
    pickle.dump(value, pipe)
    pipe.flush()


if __name__ == "__main__":
    serve()

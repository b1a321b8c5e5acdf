"""A process of its own for each job: what it leaves behind or dies of stays there."""

import os
import platform
import signal
import sys
import time

import pytest

from phenogroups.training import isolated
from phenogroups.training.isolated import Isolated, JobFailed, peak_memory_mb

JOBS = """
import os, resource, sys, time
import numpy as np
from phenogroups.training.isolated import peak_memory_mb

seen = []

def pages_of_arrays():
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    for _ in range(20):
        np.ones(2**22).sum()
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before

def work(shared, job, progress):
    print("not an answer")
    if job == "raise":
        raise ValueError("Expected sense. Received: none.")
    if job == "die":
        os.kill(os.getpid(), 9)
    if job == "leave":
        sys.stderr.write("last words")
        sys.stderr.flush()
        os._exit(3)
    if job == "long":
        for i in range(1000):
            progress(os.getpid())
            time.sleep(0.05)
    if job == "arrays":
        first = pages_of_arrays()
        return {"first": first, "again": pages_of_arrays()}
    if job == "memory":
        seen.append(bytearray(200 * 2**20))
    seen.append(job)
    progress("half")
    return {"shared": shared, "seen": len(seen), "pid": os.getpid(), "mb": peak_memory_mb()}
"""


@pytest.fixture(params=[True, False], ids=["forked", "started"])
def worker(request, tmp_path, monkeypatch):
    if request.param and not isolated.FORKS:
        pytest.skip("no forks here")
    (tmp_path / "jobs_of_the_test.py").write_text(JOBS)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setattr(isolated, "FORKS", request.param)
    with Isolated("jobs_of_the_test:work", "everybody's") as worker:
        yield worker


def test_jobs_know_nothing_of_each_other(worker):
    told = []
    first, second = worker("a", told.append), worker("b", told.append)
    assert first["shared"] == second["shared"] == "everybody's"
    assert first["seen"] == second["seen"] == 1
    assert len({first["pid"], second["pid"], os.getpid()}) == 3
    assert told == ["half", "half"]


def test_memory_is_that_of_the_job(worker):
    big = worker("memory", lambda _: None)["mb"]
    small = worker("small", lambda _: None)["mb"]
    assert big > small + 150


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="memory is kept where the C library is glibc")
def test_memory_that_was_freed_stays_with_the_job(worker):
    pages = worker("arrays", lambda _: None)
    assert pages["again"] < 1000  # an array has 8,192, each time if it is given back


@pytest.mark.parametrize(
    ("job", "words"),
    [
        ("raise", "ValueError: Expected sense. Received: none."),
        ("die", "the process was ended by SIGKILL, as when memory runs out. Free memory"),
        ("leave", "the process ended with code 3. not an answer last words"),
    ],
)
def test_a_failure_is_told_and_the_next_job_runs(worker, job, words):
    with pytest.raises(JobFailed) as error:
        worker(job, lambda _: None)
    assert words in " ".join(str(error.value).split())
    assert ("work" in error.value.trace) == (job == "raise")
    assert worker("next", lambda _: None)["seen"] == 1


def test_an_interruption_ends_the_job(worker):
    running = []

    def interrupt(pid):
        running.append(pid)
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        worker("long", interrupt)
    wait_until_gone(running[0])
    assert worker("next", lambda _: None)["seen"] == 1


def test_a_server_ended_between_jobs_is_replaced(worker):
    worker("a", lambda _: None)
    if worker._server is not None:
        worker._server.send_signal(signal.SIGKILL)
        worker._server.wait()
    assert worker("b", lambda _: None)["seen"] == 1


def test_an_import_that_fails_is_told():
    with Isolated("no_such_module:work", None) as worker, pytest.raises(JobFailed, match="No module named"):
        worker("a", lambda _: None)


def test_peak_memory():
    assert sys.platform == "win32" or peak_memory_mb() > 10  # pyright: ignore


def wait_until_gone(pid):
    for _ in range(100):
        try:
            os.kill(pid, 0)
        except ProcessLookupError:
            return
        time.sleep(0.05)
    pytest.fail(f"process {pid} is still there")

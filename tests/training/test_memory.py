"""Memory that was freed stays with the process."""

import platform
import subprocess
import sys

import pytest

ARRAYS = """
import resource
import numpy as np
from phenogroups.training.memory import keep_memory
if {kept}:
    keep_memory()
def pages():
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    for _ in range(20):
        np.ones(2**24).sum()
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before
pages()
print(pages())
"""


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="memory is kept where the C library is glibc")
def test_an_array_gets_the_memory_of_the_one_before():
    kept, given_back = (
        int(subprocess.run([sys.executable, "-c", ARRAYS.format(kept=kept)], capture_output=True, check=True).stdout)
        for kept in (True, False)
    )
    assert 10 * kept < given_back

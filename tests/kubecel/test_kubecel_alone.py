# SPDX-License-Identifier: Apache-2.0
"""The package `kubecel` stands alone, and its documentation is true."""

import doctest
import subprocess
import sys

import kubecel

LOADED = """
import sys
import msgspec  # which may load others
before = set(sys.modules)
import kubecel
kubecel.compile("device.driver == 'a'")
print(*sorted({name.partition(".")[0] for name in set(sys.modules) - before} - sys.stdlib_module_names))
"""


def test_the_example_runs() -> None:
    failed, tried = doctest.testmod(kubecel)
    assert failed == 0 and tried >= 6


def test_nothing_but_msgspec_is_loaded_with_it() -> None:
    done = subprocess.run([sys.executable, "-c", LOADED], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["kubecel"]

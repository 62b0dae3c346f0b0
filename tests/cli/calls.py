# SPDX-License-Identifier: Apache-2.0
"""Many calls of the command, each in a process of its own.

Rules
- A process starts with the modules that earlier calls have imported: what is not `heavy` need not be imported by each.
- A call that imported a heavy module hands nothing on. So a later one still has to import it itself.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterable
from typing import NamedTuple

_PROGRAM = """
import json, os, sys, traceback
from contextlib import suppress
from importlib import import_module
from dovetail.cli import main

class Missing:
    def find_spec(self, name, path=None, target=None):
        if name in missing:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)

calls, heavy, missing = json.loads(sys.argv[1])
sys.meta_path.insert(0, Missing())
for number, call in enumerate(calls):
    files = [os.memfd_create(f"{number}") for _ in range(2)]
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        sys.argv = ["dovetail", *call]
        for stream, file in enumerate(files, 1):
            os.dup2(file, stream)
        code = 0
        try:
            main()
        except SystemExit as end:
            code = end.code
        except Exception:
            traceback.print_exc()
            code = 1
        sys.stdout.flush()
        sys.stderr.flush()
        found = [module for module in heavy if module in sys.modules]
        with open(writing, "w") as channel:
            json.dump([code, found, [] if found else list(sys.modules)], channel)
        os._exit(0)
    os.close(writing)
    with open(reading) as channel:
        # One that died has answered nothing.
        code, found, modules = json.loads(channel.read() or "[-1, [], []]")
    os.waitpid(child, 0)
    texts = [os.pread(file, 1 << 24, 0).decode() for file in files]
    print(json.dumps([code, found, *texts]), flush=True)
    for file in files:
        os.close(file)
    for module in modules:
        if module not in sys.modules:
            with suppress(Exception):
                import_module(module)
"""


class CallEnd(NamedTuple):
    """How a call ended. `found` are the heavy modules that it imported."""

    code: int
    found: list[str]
    printed: str
    errors: str


def each_call(
    calls: Iterable[Iterable[str]], heavy: Iterable[str] = (), *, missing: Iterable[str] = ()
) -> list[CallEnd]:
    """The ends of the calls, in order; `missing` are modules that are not there."""
    asked = json.dumps([[list(call) for call in calls], list(heavy), list(missing)])
    argv = [sys.executable, "-c", _PROGRAM, asked]
    done = subprocess.run(argv, capture_output=True, text=True, timeout=300, check=True)
    return [CallEnd(*json.loads(line)) for line in done.stdout.splitlines()]

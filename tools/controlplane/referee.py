# SPDX-License-Identifier: Apache-2.0
"""The referee: a program that runs Kubernetes' packages, so that tests can compare their results with ours.

A case is a JSON object with an `id`, a `question` and its input. `referee/*.go` define the questions and the answers.
The program is built like the control plane's binaries, in a separate cache directory: a change to it does not rebuild
those.
"""

import json
import subprocess
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from tempfile import TemporaryFile
from typing import IO, Any

from tools.controlplane import binaries
from tools.controlplane.binaries import Report

PACKAGES = {"referee": "./referee"}

Case = dict[str, Any]
Answer = dict[str, Any]


class RefereeFailed(Exception):
    """The program ended without an answer to every case."""


def build(report: Report) -> Path:
    """The path of the program, built if the cache lacks it (10 s if the control plane was built before).

    Raises PlaneUnavailable.
    """
    return binaries.build(report, PACKAGES) / "referee"


def answers(program: Path, cases: Iterable[Case], workers: int | None = None) -> Iterator[Answer]:
    """Evaluate all cases. Yields one answer per case in any order; match them by `id`.

    An answer with `error` has the errors in its case by field. `workers` None: one per core.
    Raises RefereeFailed if the program dies, and whatever `cases` raises.
    """
    argv = [str(program)] if workers is None else [str(program), f"-workers={workers}"]
    with (
        TemporaryFile() as log,
        subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log) as process,
        ThreadPoolExecutor(max_workers=1) as beside,
    ):
        assert process.stdin and process.stdout
        # A separate thread writes, because the program stops reading cases while its answers are not read.
        written = beside.submit(_write, cases, process.stdin)
        answered = 0
        try:
            for line in process.stdout:
                answered += 1
                yield json.loads(line)
            asked, status = written.result(), process.wait()
        finally:
            process.kill()
        if status or answered != asked:
            log.seek(0)
            error_output = log.read().decode(errors="replace").strip()
            raise RefereeFailed(f"{answered} of {asked} cases answered, exit status {status}: {error_output}")


def _write(cases: Iterable[Case], stdin: IO[bytes]) -> int:
    """Write the cases and return their number. If the program has exited, the last ones may be lost."""
    asked = 0
    with suppress(BrokenPipeError), stdin:
        for case in cases:
            asked += 1
            stdin.write(json.dumps(case, separators=(",", ":")).encode() + b"\n")
    return asked

# SPDX-License-Identifier: Apache-2.0
"""A program that is started by someone else has that one's pipes, environment and signals, as any process has."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time

from tests.patience import PATIENCE_S
from tests.piped import piped


def _repeats() -> None:
    print(sys.argv[1:], os.environ["OF_THE_CLIENT"], flush=True)
    for line in sys.stdin:
        print(line.upper(), end="", flush=True)
    print("it ends", file=sys.stderr)
    sys.exit(3)


def _waits() -> None:
    try:
        print("waits", flush=True)
        time.sleep(PATIENCE_S)
    except KeyboardInterrupt:
        print("interrupted")


def _prints() -> None:
    sys.stdin.readline()
    print("to nobody")


def test_it_has_the_streams_and_the_environment_of_the_client_and_its_status_is_known() -> None:
    environment = {"OF_THE_CLIENT": "yes"}
    command = piped(_repeats, "a", "b")
    done = subprocess.run(command, input="one\ntwo\n", capture_output=True, text=True, env=environment, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (3, "['a', 'b'] yes\nONE\nTWO\n", "it ends\n")


def test_signals_reach_it_and_it_ends_with_its_client() -> None:
    ends = (
        (signal.SIGINT, "interrupted\n", 0),
        (signal.SIGTERM, "", -signal.SIGTERM),
        (signal.SIGKILL, "", -signal.SIGKILL),
    )
    for number, last, status in ends:
        with subprocess.Popen(piped(_waits), stdout=subprocess.PIPE, text=True) as process:
            assert process.stdout is not None and process.stdout.readline() == "waits\n"
            process.send_signal(number)
            # To the end of the output: no process has the pipe any more.
            assert process.stdout.read() == last and process.wait() == status


def test_what_cannot_be_written_at_the_end_is_an_error() -> None:
    process = subprocess.Popen(piped(_prints), stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    assert process.stdin and process.stdout and process.stderr
    process.stdout.close()
    process.stdin.close()
    assert b"BrokenPipeError" in process.stderr.read() and process.wait(PATIENCE_S) == 120
    process.stderr.close()

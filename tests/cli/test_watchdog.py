# SPDX-License-Identifier: Apache-2.0
"""A step of the event loop that does not end, seen from outside: real processes, which end or go on."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import pytest

SERVING = """
import asyncio, logging, re
from dovetail.cli.service import serve

async def work():
    await asyncio.sleep(0.2)
    {step}

def spins():
    while True:
        pass

def keeps_the_interpreter():
    re.match("(a+)+$", "a" * 64 + "b")

async def turns():
    for _ in range(20):
        await asyncio.sleep(0.1)

serve(work(), logging.getLogger(), watchdog_s={limit_s})
"""
SCHEDULER = """
import sys
from dovetail.cli import scheduler
from dovetail.scheduler import serve

async def run(config, options):
    while True:
        pass

serve.run = run
scheduler.command(["--kubeconfig", sys.argv[1], "--no-recording", "--watchdog", "1"])
"""
KUBECONFIG = """
{apiVersion: v1, kind: Config, current-context: x, contexts: [{name: x, context: {cluster: x}}],
 clusters: [{name: x, cluster: {server: "http://127.0.0.1:1"}}]}
"""


def run(program: str, *args: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", textwrap.dedent(program), *args]
    return subprocess.run(command, capture_output=True, text=True, timeout=60)


@pytest.mark.slow
@pytest.mark.parametrize("step", ["spins", "keeps_the_interpreter"])
def test_a_step_that_does_not_end_ends_the_process_with_its_stack(step: str) -> None:
    """Also one during which no other thread of Python's can run, as in compiled code."""
    ended = run(SERVING.format(step=f"{step}()", limit_s=1.0))
    assert ended.returncode == 1
    assert "Timeout (0:00:01)!" in ended.stderr
    assert f"in {step}" in ended.stderr


@pytest.mark.slow
def test_a_loop_that_turns_is_left_alone_however_long_it_goes_on() -> None:
    ended = run(SERVING.format(step="await turns()", limit_s=0.5))
    assert (ended.returncode, ended.stderr) == (0, "")


@pytest.mark.slow
def test_the_command_watches_itself(tmp_path: Path) -> None:
    config = tmp_path / "config"
    config.write_text(KUBECONFIG)
    ended = run(SCHEDULER, str(config))
    assert ended.returncode == 1
    assert "Timeout (0:00:01)!" in ended.stderr


@pytest.mark.slow
def test_no_limit_is_no_watch() -> None:
    command = [sys.executable, "-c", SERVING.format(step="spins()", limit_s=0.0)]
    with subprocess.Popen(command, stderr=subprocess.PIPE) as process:
        time.sleep(2.0)
        assert process.poll() is None
        os.kill(process.pid, signal.SIGKILL)

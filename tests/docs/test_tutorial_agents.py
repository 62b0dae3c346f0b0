# SPDX-License-Identifier: Apache-2.0
"""The tutorial for agents, carried out on a real API server: its files, its commands, and what they print."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.docs.pages import page
from tests.paths import ROOT
from tests.patience import PATIENCE_S
from tools.controlplane import binaries

pytestmark = [pytest.mark.plane, pytest.mark.slow]
_ELSEWHERE = ("dovetail demo", "make ", "eval ", "export ")
"""What other tests carry out, and what this one does in another way."""


def masked(text: str) -> list[str]:
    """What counts of an output: times and numbers of nodes differ."""
    text = re.sub(r"\d{4}-\d\d-\d\dT[\d:.]+Z", "TIME", text)
    text = re.sub(r"\bgpu-[12]\b", "gpu-N", text)
    return [" ".join(line.split()) for line in text.splitlines() if line.strip()]


class Reader:
    """A reader of the tutorial, with a folder and a shell."""

    def __init__(self, folder: Path, kubeconfig: Path) -> None:
        self.folder = folder
        path = f"{Path(sys.executable).parent}:{binaries.binaries_dir()}:{os.environ['PATH']}"
        cache = {"KUBECACHEDIR": str(folder / "cache"), "KUBERC": "off"}
        self._env = os.environ | cache | {"KUBECONFIG": str(kubeconfig), "PATH": path, "COLUMNS": "200"}
        (folder / "deploy").symlink_to(ROOT / "deploy")

    @contextmanager
    def running(self, command: str) -> Iterator[None]:
        with (self.folder / "log").open("w") as log:
            process = subprocess.Popen(command.split(), cwd=self.folder, env=self._env, stdout=log, stderr=log)
        try:
            yield
        finally:
            process.terminate()
            process.wait()

    def run(self, command: str, printed: list[str]) -> None:
        """The command prints what the page shows; what it shows may take a moment."""
        deadline_s = time.monotonic() + PATIENCE_S
        while True:
            done = subprocess.run(
                ["bash", "-c", command], cwd=self.folder, env=self._env, capture_output=True, text=True, check=False
            )
            shown = masked(done.stdout)
            if done.returncode == 0 and (not printed or shown == masked("\n".join(printed))):
                return
            # What writes is not repeated.
            assert " get " in command and time.monotonic() < deadline_s, (command, shown, done.stderr)
            time.sleep(0.2)


def test_the_tutorial_for_agents(plane_factory: Callable[..., Any], tmp_path: Path) -> None:
    reader = Reader(tmp_path, plane_factory(controllers=False).kubeconfig)
    blocks = page("docs/tutorial-agents.md").blocks
    with ExitStack() as running:
        for block in blocks:
            if block.language in ("yaml", "python"):
                (name,) = re.findall(r"`(\w+\.\w+)`", block.before)
                (reader.folder / name).write_text(block.text)
            before = ""
            for command, printed in block.commands:
                if command == "dovetail scheduler":
                    running.enter_context(reader.running("dovetail scheduler --listen="))
                elif command.startswith("offer="):
                    offer = command.removeprefix("offer=")
                    reader.run(f'test -n "{offer}"', [])
                    before = f"{command}; "
                elif not command.startswith(_ELSEWHERE):
                    reader.run(before + command, printed)
                    before = ""
                if command == "kubectl apply -k deploy/crds":
                    reader.run("kubectl wait --for=condition=established crd --all --timeout=60s", [])
    assert sum(len(block.commands) for block in blocks) > 15

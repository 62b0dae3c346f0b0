# SPDX-License-Identifier: Apache-2.0
"""The referee, and NVIDIA's toolkit, as fixtures. Where one cannot be built its
tests are skipped with the reason; with CI=true they fail."""

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from tools.controlplane import referee
from tools.controlplane.binaries import PlaneUnavailable, Report
from tools.toolkit import toolkit


def _built(config: pytest.Config, build: Callable[[Report], Path], what: str) -> Path:
    terminal = config.pluginmanager.getplugin("terminalreporter")
    capture = config.pluginmanager.getplugin("capturemanager")

    def report(text: str) -> None:
        with capture.global_and_fixture_disabled():
            terminal.write_line(text)

    try:
        return build(report)
    except PlaneUnavailable as error:
        outcome = pytest.fail if os.environ.get("CI") == "true" else pytest.skip
        outcome(f"no {what}: {error}")


@pytest.fixture(scope="session")
def program(pytestconfig: pytest.Config) -> Path:
    return _built(pytestconfig, referee.build, "referee")


@pytest.fixture(scope="session")
def nvidia_ctk(pytestconfig: pytest.Config) -> Path:
    return _built(pytestconfig, toolkit.build, "toolkit of NVIDIA")

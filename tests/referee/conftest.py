# SPDX-License-Identifier: Apache-2.0
"""The referee as a fixture. Where it cannot be built its tests are skipped with the reason; with CI=true they fail."""

import os
from pathlib import Path

import pytest

from tools.controlplane import referee
from tools.controlplane.binaries import PlaneUnavailable


@pytest.fixture(scope="session")
def program(pytestconfig: pytest.Config) -> Path:
    terminal = pytestconfig.pluginmanager.getplugin("terminalreporter")
    capture = pytestconfig.pluginmanager.getplugin("capturemanager")

    def report(text: str) -> None:
        with capture.global_and_fixture_disabled():
            terminal.write_line(text)

    try:
        return referee.build(report)
    except PlaneUnavailable as error:
        outcome = pytest.fail if os.environ.get("CI") == "true" else pytest.skip
        outcome(f"no referee: {error}")

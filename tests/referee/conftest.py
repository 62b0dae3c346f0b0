# SPDX-License-Identifier: Apache-2.0
"""The referee, and NVIDIA's toolkit, as fixtures. Where one cannot be built its
tests are skipped with the reason; with CI=true they fail."""

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.needs import reporter, unavailable
from tools.controlplane import referee
from tools.controlplane.binaries import PlaneUnavailable, Report
from tools.toolkit import toolkit


def _built(config: pytest.Config, build: Callable[[Report], Path], what: str) -> Path:
    try:
        return build(reporter(config))
    except PlaneUnavailable as error:
        unavailable(f"no {what}: {error}")


@pytest.fixture(scope="session")
def program(pytestconfig: pytest.Config) -> Path:
    return _built(pytestconfig, referee.build, "referee")


@pytest.fixture(scope="session")
def nvidia_ctk(pytestconfig: pytest.Config) -> Path:
    return _built(pytestconfig, toolkit.build, "toolkit of NVIDIA")

# SPDX-License-Identifier: Apache-2.0
"""The real control plane as fixtures, for tests that carry `@pytest.mark.plane`.

Rules: the binaries are built at the first such test, with progress on the terminal. Where they cannot be had these
tests are skipped with the reason, and the end of the run says so once more and loudly; with `CI=true` they fail.
"""

import os
from collections.abc import Callable, Iterator
from contextlib import ExitStack

import pytest

from tools.controlplane import binaries
from tools.controlplane.plane import Plane

UNAVAILABLE = pytest.StashKey[str]()
NOT_RUN = pytest.StashKey[list[str]]()


def pytest_configure(config: pytest.Config) -> None:
    config.stash[NOT_RUN] = []


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    if not item.get_closest_marker("plane"):
        return
    if UNAVAILABLE not in item.config.stash:
        item.config.stash[UNAVAILABLE] = _build(item.config)
    if reason := item.config.stash[UNAVAILABLE]:
        item.config.stash[NOT_RUN].append(item.nodeid)
        outcome = pytest.fail if os.environ.get("CI") == "true" else pytest.skip
        outcome(f"no control plane: {reason}")


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    not_run = config.stash[NOT_RUN]
    if not not_run:
        return
    terminalreporter.section("CONTROL PLANE TESTS DID NOT RUN", sep="!", red=True, bold=True)
    terminalreporter.line(f"{len(not_run)} tests need a real kube-apiserver and were not run:")
    for nodeid in not_run:
        terminalreporter.line(f"  {nodeid}")
    terminalreporter.line(config.stash[UNAVAILABLE])


def _build(config: pytest.Config) -> str:
    """Build the binaries if need be; return why they cannot be had, or nothing."""
    terminal = config.pluginmanager.getplugin("terminalreporter")
    capture = config.pluginmanager.getplugin("capturemanager")

    def report(text: str) -> None:
        with capture.global_and_fixture_disabled():
            terminal.write_line(text)

    try:
        binaries.build(report)
    except binaries.PlaneUnavailable as error:
        return str(error)
    return ""


@pytest.fixture(scope="session")
def plane(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Plane]:
    """One plane for the whole run, with the workload API and the controllers. Use a namespace of your own in it."""
    with Plane(work_dir=tmp_path_factory.mktemp("plane")) as plane:
        yield plane


@pytest.fixture
def plane_factory() -> Iterator[Callable[..., Plane]]:
    """Start private planes (arguments: those of `Plane`), which end with the test."""
    with ExitStack() as planes:
        yield lambda **options: planes.enter_context(Plane(**options))

# SPDX-License-Identifier: Apache-2.0
"""The real control plane and a real node as fixtures, for tests that carry `@pytest.mark.plane` or `@pytest.mark.node`.

Rules: the binaries are built at the first such test, with progress on the terminal. Where they cannot be had these
tests are skipped with the reason, and the end of the run says so once more and loudly; with `CI=true` they fail. Where
the machine itself cannot carry a node (no root, no namespaces) they are skipped in CI too.
"""

import os
from collections.abc import Callable, Iterator
from contextlib import ExitStack

import pytest
from hypothesis import settings
from msgspec import Struct, field

from dovetail.core import cycle
from dovetail.core.attempt import Attempt
from dovetail.core.decisions import Decision
from dovetail.core.state import State
from tools.controlplane import binaries
from tools.controlplane.plane import Plane
from tools.node import programs
from tools.node.configuration import KubeletOptions
from tools.node.node import Node

# How long an example takes says more about the machine than about the project.
settings.register_profile("dovetail", settings.get_profile(settings.get_current_profile_name()), deadline=None)
settings.load_profile("dovetail")

Decide = Callable[[Attempt], list[Decision]]


@pytest.fixture
def deciding(monkeypatch: pytest.MonkeyPatch) -> Callable[[Decide], None]:
    """Lets attempts decide otherwise. (Their class may be compiled, and then nothing about it can be replaced.)"""

    def instead(decide: Decide) -> None:
        class Otherwise:
            def __init__(self, state: State, root: str) -> None:
                self._attempt = Attempt(state, root)
                self.work = self._attempt.work

            def decide(self) -> list[Decision]:
                return decide(self._attempt)

        monkeypatch.setattr(cycle, "Attempt", Otherwise)

    return instead


class Need(Struct):
    """What the tests of one mark need: why it cannot be had here ("" if it can), and which tests were not run for it.

    name, instance: how it is called; build: makes it, raises PlaneUnavailable; lacking: what the machine does not have.
    """

    name: str
    instance: str
    build: Callable[[binaries.Report], object]
    lacking: Callable[[], list[str]]
    reason: str | None = None
    hopeless: bool = False
    not_run: list[str] = field(default_factory=list)

    def check(self, report: binaries.Report) -> None:
        """Find out, once."""
        if self.reason is not None:
            return
        self.reason = "; ".join(self.lacking())
        self.hopeless = bool(self.reason)
        if not self.hopeless:
            try:
                self.build(report)
            except binaries.PlaneUnavailable as error:
                self.reason = str(error)


def _build_node(report: binaries.Report) -> None:
    binaries.build(report)
    programs.build(report)


NEEDS = pytest.StashKey[dict[str, Need]]()


def pytest_configure(config: pytest.Config) -> None:
    config.stash[NEEDS] = {
        "plane": Need("control plane", "a real kube-apiserver", binaries.build, list),
        "node": Need("real node", "a real kubelet", _build_node, programs.missing),
    }


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    for mark, need in item.config.stash[NEEDS].items():
        if not item.get_closest_marker(mark):
            continue
        need.check(_reporter(item.config))
        if need.reason:
            need.not_run.append(item.nodeid)
            may_fail = os.environ.get("CI") == "true" and not need.hopeless
            outcome = pytest.fail if may_fail else pytest.skip
            outcome(f"no {need.name}: {need.reason}")


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    for need in config.stash[NEEDS].values():
        if need.not_run:
            terminalreporter.section(f"{need.name.upper()} TESTS DID NOT RUN", sep="!", red=True, bold=True)
            terminalreporter.line(f"{len(need.not_run)} tests need {need.instance} and were not run:")
            for nodeid in need.not_run:
                terminalreporter.line(f"  {nodeid}")
            terminalreporter.line(f"{'This machine lacks ' if need.hopeless else ''}{need.reason}")


def _reporter(config: pytest.Config) -> binaries.Report:
    terminal = config.pluginmanager.getplugin("terminalreporter")
    capture = config.pluginmanager.getplugin("capturemanager")

    def report(text: str) -> None:
        with capture.global_and_fixture_disabled():
            terminal.write_line(text)

    return report


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


@pytest.fixture(scope="session")
def real_node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Node]:
    """One node for the whole run, alone on a plane: two NUMA nodes, pods on one of them (single-numa-node, scope pod).

    Use a namespace and resources of your own, and leave its kubelet running with these options.
    """
    options = KubeletOptions(topology_manager_policy="single-numa-node", topology_manager_scope="pod")
    with (
        Plane(work_dir=tmp_path_factory.mktemp("plane-of-node")) as plane,
        Node(plane, kubelet=options, work_dir=tmp_path_factory.mktemp("node")) as node,
    ):
        yield node


@pytest.fixture
def node_factory() -> Iterator[Callable[..., Node]]:
    """Start private nodes (arguments: those of `Node`), which end with the test."""
    with ExitStack() as nodes:
        yield lambda plane, **options: nodes.enter_context(Node(plane, **options))

# SPDX-License-Identifier: Apache-2.0
"""The real control plane, a real node and a real Prometheus as fixtures, for tests with `@pytest.mark.plane` or
`@pytest.mark.node`.

Rules: the binaries are built at the first such test, with progress on the terminal. Where they cannot be had these
tests are skipped with the reason, and the end of the run says so once more and loudly; with `CI=true` they fail. Where
the machine itself cannot carry a node (no root, no namespaces) they are skipped in CI too.
"""

import gc
import logging
import os
import shutil
import sys
from collections.abc import AsyncIterator, Callable, Generator, Iterator
from contextlib import ExitStack, suppress
from importlib import import_module
from pathlib import Path
from typing import Any

import msgspec
import pytest
import yaml
from hypothesis import HealthCheck, settings
from hypothesis.internal.conjecture import junkdrawer, providers
from hypothesis.internal.constants_ast import Constants

from dovetail.core import cycle
from dovetail.core.decisions import Decision
from dovetail.core.pipeline.attempt import Attempt
from dovetail.core.state import State
from dovetail.scheduler.serve import COLLECT_AFTER
from tests.needs import Need, reporter, sum_up_fixtures, unavailable
from tests.order import DEPLOYED, NODE, begin, kept_up_to
from tests.paths import ROOT
from tests.shared_files import shared_file
from tests.skipped_time import skipped_waits
from tools import chromium
from tools.controlplane import binaries
from tools.controlplane.plane import Plane
from tools.helm import programs as helm_programs
from tools.helm.programs import Helm, Kustomize
from tools.images import debian, distributions
from tools.images.build import Built, Parts, build
from tools.node import programs
from tools.node.configuration import KubeletOptions
from tools.node.node import Node
from tools.prometheus import promtool as prometheus_programs
from tools.prometheus.promtool import Promtool
from tools.prometheus.server import Prometheus

# How long an example takes, or takes to be drawn, says more about the machine than about the project.
settings.register_profile(
    "dovetail",
    settings.get_profile(settings.get_current_profile_name()),
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow],
)
settings.load_profile("dovetail")

# Hypothesis mixes in constants that it reads in all modules which the process has imported. In a new clone each process
# parses them all (five seconds), and what a test draws depends on which other tests the process has collected.
_NO_CONSTANTS = Constants()
providers._get_local_constants = lambda: _NO_CONSTANTS
# It would measure each garbage collection of the process, for the deadlines that are not used here.
junkdrawer._gc_initialized = True

# What tests read with `yaml.safe_load` is read by libyaml: manifests and definitions are long, and Python's own reader
# takes ten times as long. The project itself always names its loader.
yaml.SafeLoader = yaml.CSafeLoader  # type: ignore[misc,assignment]

MEMORY = Path("/dev/shm")
IMAGE = "dovetail:0.1.0"


def pytest_configure() -> None:
    """Set what all processes of the tests inherit: `tmp_path` in memory where that has room and runs programs, as a
    container's often does not; how often programs in Go, and this one, collect garbage.

    A simulated machine has 2,700 small files: written to a disk they can take ten times as long."""
    if MEMORY.is_dir() and not os.statvfs(MEMORY).f_flag & os.ST_NOEXEC and shutil.disk_usage(MEMORY).free > 2 << 30:
        os.environ.setdefault("PYTEST_DEBUG_TEMPROOT", str(MEMORY))
    # Control planes, kubelets, referees, kubectl: each collects garbage only near 700 MiB, and runs on one core. They
    # need 30 % less CPU, and kube-apiserver 300 MiB more.
    for name, value in (("GOGC", "off"), ("GOMEMLIMIT", "700MiB"), ("GOMAXPROCS", "1")):
        os.environ.setdefault(name, value)
    # As the scheduler has it. Imports and collection make 800,000 objects that stay.
    gc.set_threshold(COLLECT_AFTER)


Decide = Callable[[Attempt], list[Decision]]


@pytest.fixture
async def no_waits() -> AsyncIterator[None]:
    """The loop of the test does not wait for timers: for tests whose servers and clients all run in it."""
    async with skipped_waits():
        yield


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


def _build_node(report: binaries.Report) -> None:
    binaries.build(report)
    programs.build(report)


NEEDS = (
    Need("plane", "control plane", "a real kube-apiserver", binaries.build, list),
    Need("node", "real node", "a real kubelet", _build_node, programs.missing),
    Need("chromium", "Chromium", "a Chromium", chromium.build, chromium.lacking),
)


@pytest.hookimpl(tryfirst=True)
def pytest_collection(session: pytest.Session) -> None:
    """Let each worker compile a part of the tests, of which the others find the bytecode: in a new clone each of them
    would compile all tests with their assertions, eight seconds."""
    worker = getattr(session.config, "workerinput", None)
    if worker is None or sys.dont_write_bytecode:
        return
    named = [session.config.invocation_params.dir / arg.partition("::")[0] for arg in session.config.args]
    files = sorted({file for path in named for file in ([path] if path.is_file() else path.rglob("test_*.py"))})
    for file in files[int(worker["workerid"].removeprefix("gw")) :: worker["workercount"]]:
        # What fails here fails once more where pytest reports it.
        with suppress(Exception, pytest.skip.Exception):
            import_module(".".join(file.relative_to(ROOT).with_suffix("").parts))


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> object:
    """Give out whole files, in the order of `distribution`, where `--dist loadfile` asks for that."""
    if config.getvalue("dist") != "loadfile":
        return None
    from tests.distribution import ByFile

    return ByFile(config, log)


@pytest.hookimpl(optionalhook=True)
def pytest_configure_node(node: Any) -> None:
    """Tell the process of a worker whether it gets its files in that order."""
    node.workerinput["in_order"] = node.config.getvalue("dist") == "loadfile"


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Refuse a test that takes a plane or a node and does not say so by its mark: others would end it before."""
    for item in items:
        for mark, fixtures in {"plane": {"plane", "plane_factory"}, "node": {"real_node", "node_factory"}}.items():
            taken = fixtures.intersection(getattr(item, "fixturenames", ()))
            if taken and not item.get_closest_marker(mark):
                raise pytest.UsageError(f"{item.nodeid} takes {min(taken)} and needs @pytest.mark.{mark}")


def pytest_collection_finish() -> None:
    """Tell the garbage collector to pass over what was imported and collected, which stays to the end.

    That is final. A scheduler that runs in a test would exempt all that lives then, and 12 MiB stay of each one. A
    benchmark that takes back its own would take back this, too: from then on each full collection of the process looks
    at 800,000 objects, which takes two thirds of a second."""
    gc.freeze()
    gc.freeze = gc.unfreeze = _no_more


def _no_more() -> None:
    """Stands for `gc.freeze` and `gc.unfreeze`."""


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol() -> Generator[None, object, object]:
    """Leave logging as it was: a command that runs in this process sets up its log for good."""
    root, factory, source = logging.getLogger(), logging.getLogRecordFactory(), logging._srcfile
    handlers, level = [*root.handlers], root.level
    try:
        return (yield)
    finally:
        logging.setLogRecordFactory(factory)
        logging._srcfile = source
        if root.level != level:  # It makes all loggers forget what they have worked out.
            root.setLevel(level)
        for handler in set(root.handlers).difference(handlers):
            root.removeHandler(handler)


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    if getattr(item.config, "workerinput", {}).get("in_order"):
        begin(item.nodeid.partition("::")[0])
    for need in NEEDS:
        if item.get_closest_marker(need.mark):
            need.check(item)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    for need in NEEDS:
        need.sum_up(terminalreporter)
    sum_up_fixtures(terminalreporter)


@pytest.fixture(scope="session")
def plane(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Plane]:
    """One plane for all tests of this process, with the workload API and the controllers.

    Use a namespace of your own in it.
    """
    with kept_up_to(DEPLOYED) as kept:
        yield kept.enter_context(Plane(work_dir=tmp_path_factory.mktemp("plane")))


@pytest.fixture
def plane_factory() -> Iterator[Callable[..., Plane]]:
    """Start private planes (arguments: those of `Plane`), which end with the test."""
    with ExitStack() as planes:
        yield lambda **options: planes.enter_context(Plane(**options))


@pytest.fixture(scope="session")
def real_node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Node]:
    """One node for all tests of this process, alone on a plane.

    It has two NUMA nodes, and pods on one of them (single-numa-node, scope pod).
    Use a namespace and resources of your own, and leave its kubelet running with these options.
    """
    options = KubeletOptions(topology_manager_policy="single-numa-node", topology_manager_scope="pod")
    with kept_up_to(NODE) as kept:
        plane = kept.enter_context(Plane(work_dir=tmp_path_factory.mktemp("plane-of-node")))
        yield kept.enter_context(Node(plane, kubelet=options, work_dir=tmp_path_factory.mktemp("node")))


@pytest.fixture
def node_factory() -> Iterator[Callable[..., Node]]:
    """Start private nodes (arguments: those of `Node`), which end with the test."""
    with ExitStack() as nodes:
        yield lambda plane, **options: nodes.enter_context(Node(plane, **options))


@pytest.fixture(scope="session")
def wheel(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The compiled wheel of the working tree, built at its first use (a minute and a half) by one
    process of the tests."""
    with shared_file(request, tmp_path_factory, "wheel") as kept:
        if not kept.exists():
            try:
                kept.write_text(str(distributions.kept_wheel(reporter(request.config))))
            except binaries.PlaneUnavailable as error:
                unavailable(f"no wheel: {error}")
        return Path(kept.read_text())


BuildImage = Callable[[], Built]


@pytest.fixture(scope="session")
def build_image(wheel: Path, pytestconfig: pytest.Config) -> BuildImage:
    """Builds the container image of the working tree, dovetail:0.1.0 (twenty seconds of CPU time)."""

    def built() -> Built:
        try:
            return build(Parts(wheel, epoch_s=0), IMAGE, reporter(pytestconfig))
        except debian.VersionGone as error:
            # Debian's mirrors drop what is replaced: no fault of what is tested.
            unavailable(f"no image: {error}", hopeless=True)
        except binaries.PlaneUnavailable as error:
            unavailable(f"no image: {error}")

    return built


class ImageBytes(msgspec.Struct, frozen=True):
    archive: bytes
    sbom: bytes


@pytest.fixture(scope="session")
def image_bytes(
    build_image: BuildImage, request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> ImageBytes:
    """That image, and what it contains. One process of the tests builds it, and the others read it."""
    with shared_file(request, tmp_path_factory, "image") as kept:
        if not kept.exists():
            built = build_image()
            kept.write_bytes(msgspec.msgpack.encode(ImageBytes(built.archive, built.sbom)))
        return msgspec.msgpack.decode(kept.read_bytes(), type=ImageBytes)


@pytest.fixture(scope="session")
def promtool(pytestconfig: pytest.Config) -> Promtool:
    """promtool of the pinned Prometheus, built at its first use."""
    try:
        return Promtool(prometheus_programs.build(reporter(pytestconfig)))
    except binaries.PlaneUnavailable as error:
        unavailable(f"no Prometheus: {error}")


@pytest.fixture(scope="session")
def helm_folder(pytestconfig: pytest.Config) -> Path:
    """The directory with the pinned Helm 4, Helm 3 and kustomize, built at their first use."""
    try:
        return helm_programs.build(reporter(pytestconfig))
    except binaries.PlaneUnavailable as error:
        unavailable(f"no Helm: {error}")


@pytest.fixture(scope="session")
def kustomize(helm_folder: Path) -> Kustomize:
    """The pinned kustomize."""
    return Kustomize(helm_folder)


@pytest.fixture(params=["helm", "helm3"])
def helm(helm_folder: Path, tmp_path: Path, request: pytest.FixtureRequest) -> Helm:
    """Helm 4, then Helm 3, without a cluster."""
    return Helm(helm_folder, tmp_path / "helm", binary=request.param)


@pytest.fixture
def prometheus_factory(promtool: Promtool) -> Iterator[Callable[..., Prometheus]]:
    """Start real Prometheus servers (arguments: those of `Prometheus`), which end with the test."""
    with ExitStack() as servers:
        yield lambda *arguments, **options: servers.enter_context(Prometheus(*arguments, **options))

# SPDX-License-Identifier: Apache-2.0
"""The native parts, where the package could build them: the kernel of the rows (`core/placing/kernel.c`), and the
modules that decide most and that translate pods for them, compiled by mypyc.

Rules: both are known by the digest of the sources that they were built from. They run only while these sources are what
lies beside them; else, and with DOVETAIL_NATIVE=0 in the environment, Python and numpy do the same work.
`dovetail --version` says what runs.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, MutableMapping, Sequence
from functools import cache
from importlib.machinery import EXTENSION_SUFFIXES, ExtensionFileLoader, ModuleSpec
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType
from typing import Any

KERNEL = "dovetail.core.placing._kernel"
_USES_KERNEL = "dovetail.core.placing.kernel"
KERNEL_SOURCES = "kernel.c", "worth.h", "arrange.h", "layout.py"
PACKAGE = Path(__file__).parent
FOLDER = PACKAGE / "core" / "placing"
COMPILED = (
    "core.bargaining.broker", "core.bargaining.counter_offers", "core.bargaining.leases", "core.bargaining.negotiating",
    "core.bargaining.offers", "core.bargaining.placeholders", "core.bargaining.places", "core.bargaining.reports",
    "core.bargaining.requests", "core.bargaining.terms", "core.bargaining.timers", "core.bargaining.waiting",
    "core.bounded_cache", "core.cluster.audit", "core.cluster.awake_rooms", "core.cluster.by_label",
    "core.cluster.changes", "core.cluster.cluster", "core.cluster.columns", "core.cluster.fabric",
    "core.cluster.gpu_choice", "core.cluster.gpus", "core.cluster.host_ports", "core.cluster.journal",
    "core.cluster.kubelets", "core.cluster.mix", "core.cluster.nodes", "core.cluster.peers", "core.cluster.placement",
    "core.cluster.reallocation", "core.cluster.rejections", "core.cluster.selection", "core.cluster.shapes",
    "core.cluster.shares", "core.cluster.slices", "core.cluster.trials", "core.complexity",
    "core.devices.kubelet.admission", "core.devices.kubelet.cpu_assignment", "core.devices.kubelet.cpu_distributed",
    "core.devices.kubelet.cpu_packed", "core.devices.kubelet.cpu_topology", "core.devices.kubelet.cpus",
    "core.devices.kubelet.devices", "core.devices.kubelet.hints", "core.devices.kubelet.memory",
    "core.devices.kubelet.memory_affinity", "core.devices.kubelet.memory_nodes", "core.devices.kubelet.memory_requests",
    "core.devices.kubelet.shortcut", "core.devices.kubelet.subsets", "core.devices.kubelet.topology",
    "core.event_handlers", "core.headroom.table", "core.pipeline.attempt", "core.pipeline.binding",
    "core.pipeline.equivalence", "core.pipeline.half_starts", "core.pipeline.holds", "core.pipeline.known_refusals",
    "core.pipeline.placement", "core.pipeline.post_filter", "core.pipeline.pre_enqueue", "core.pipeline.queue",
    "core.pipeline.signature", "core.pipeline.spreading", "core.placing.filters", "core.placing.gangs",
    "core.placing.links", "core.placing.pods", "core.placing.refusals", "core.placing.score_cache",
    "core.placing.scores", "core.preemption.candidates", "core.preemption.cascades", "core.preemption.dry_run",
    "core.preemption.nominated_room", "core.preemption.search", "core.preemption.smallest_part",
    "core.preemption.victims", "core.preemption.within_limit", "core.quantities", "core.queues.accounting",
    "core.queues.accounts", "core.queues.attained", "core.queues.calendars", "core.queues.claim_users",
    "core.queues.demand", "core.queues.device_units", "core.queues.division", "core.queues.eviction_counts",
    "core.queues.fair_share", "core.queues.guarantees", "core.queues.pending", "core.queues.pod_queues",
    "core.queues.queue_order", "core.queues.quota", "core.queues.rates", "core.queues.reclaim", "core.queues.shares",
    "core.queues.totals", "core.queues.tree", "core.queues.usage", "core.reservations.expected_ends",
    "core.reservations.planner", "core.reservations.pledges", "core.reservations.precedence",
    "core.reservations.reservation", "core.reservations.table", "core.state", "core.workloads.index",
    "core.workloads.lifecycle", "core.workloads.members", "kube.gangs.owners", "kube.nodes.admissions",
    "kube.translate.fractions", "kube.translate.limits", "kube.translate.managed", "kube.translate.nodes",
    "kube.translate.pod_status", "kube.translate.pods", "kube.translate.problems", "kube.translate.requests",
    "kube.translate.selectors", "kube.translate.work",
)  # fmt: skip
"""Modules of this package. They call each other's C functions, so all of them are compiled or none is."""


def digest(sources: Iterable[Path]) -> str:
    """What the text of these files comes to."""
    # It takes a tenth of the start of a command that needs no native part.
    from hashlib import sha256

    found = sha256()
    for source in sources:
        found.update(source.read_bytes())
    return found.hexdigest()


def group(package: Path = PACKAGE) -> str:
    """What the library of the compiled modules is called when it is built from the sources that are there now."""
    return f"dovetail_{digest(_sources(package))[:16]}"


def _sources(package: Path) -> list[Path]:
    return [package / f"{name.replace('.', '/')}.py" for name in COMPILED]


class _Finder:
    """Finds out what runs when the first module is imported for which it matters. Where the compiled modules do not, it
    imports them from their sources, whatever was built of them."""

    def __init__(self, package: Path) -> None:
        self._files = {f"dovetail.{n}": s for n, s in zip(COMPILED, _sources(package), strict=True)}

    def find_spec(
        self, fullname: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        file = self._files.get(fullname)
        if file is None:
            if fullname == _USES_KERNEL:
                _found()
            return None
        return spec_from_file_location(fullname, file) if _found()[0] else None


def install() -> None:
    """Let the native parts be imported that were built from the sources that are there."""
    sys.meta_path.insert(0, _Finder(PACKAGE))


def runs() -> str:
    """Which native parts run, and if not all, why, in words."""
    lacking, kernel = _found()
    if not lacking:
        return f"compiled core, {kernel}"
    return kernel if lacking in kernel else f"{kernel}; the core as it is written: {lacking}"


@cache
def _found() -> tuple[str, str]:
    """Why the compiled modules do not run, "" where they do, and in words which kernel does."""
    lacking = "DOVETAIL_NATIVE=0" if os.environ.get("DOVETAIL_NATIVE") == "0" else not_compiled(PACKAGE)
    return lacking, install_kernel()


def not_compiled(package: Path) -> str:
    """Why the compiled modules cannot run; "" where they can."""
    suffix, libraries = EXTENSION_SUFFIXES[0], list(package.parent.glob("dovetail_*__mypyc*"))
    if not libraries:
        return "it was not compiled"
    built = [package.parent / f"{group(package)}__mypyc{suffix}"]
    built += [source.with_suffix(suffix) for source in _sources(package)]
    if all(file.is_file() for file in built):
        return ""
    return "it was compiled from other sources than what is there, or for another Python; install the package anew"


def install_kernel(modules: MutableMapping[str, Any] = sys.modules, folder: Path = FOLDER) -> str:
    """Let the kernel be imported if it is of the source in this folder. Returns in words what runs."""
    found = _load(folder) if os.environ.get("DOVETAIL_NATIVE") != "0" else "DOVETAIL_NATIVE=0"
    if isinstance(found, ModuleType):
        modules[KERNEL] = found
        return "native kernel"
    modules[KERNEL] = None
    return f"pure Python: {found}"


def _load(folder: Path) -> ModuleType | str:
    """The kernel, or why there is none."""
    file = next((file for suffix in EXTENSION_SUFFIXES if (file := folder / f"_kernel{suffix}").is_file()), None)
    if file is None:
        return "the kernel was not built"
    loader = ExtensionFileLoader(KERNEL, str(file))
    spec = spec_from_file_location(KERNEL, file, loader=loader)
    assert spec is not None, "a loader was given"
    try:
        kernel = module_from_spec(spec)
        loader.exec_module(kernel)
        current = digest(folder / source for source in KERNEL_SOURCES) == kernel.SOURCE
    except (ImportError, AttributeError, OSError) as error:
        return f"{file} cannot be used: {error}"
    return kernel if current else f"{file} was built from another source than what is there; install the package anew"

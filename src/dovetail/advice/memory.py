# SPDX-License-Identifier: Apache-2.0
"""The GPU memory of a model, the GPUs that it fits on, the number of GPUs, and the largest context and batch that fit.

Rules
- A model fits on a GPU if its parts plus the headroom are at most the usable memory.
- Without a layout in the options, sharded training adds replicas (1, 2, 4 ...); any other job adds tensor-parallel
  ranks up to the size of a node and as the heads allow, then pipeline stages. The first layout that fits is used.
- A MIG instance holds only jobs of one GPU: NCCL does not connect two of them.
- All amounts are integers; memory is in MiB (2**20 bytes), parts are in bytes."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping

from msgspec import Struct
from msgspec.structs import replace

from dovetail.advice.architecture import Architecture
from dovetail.advice.formats import MIB
from dovetail.advice.gpus import GPUS, GpuProduct
from dovetail.advice.host import HostNeed, host_need
from dovetail.advice.layout import ModelParts, ParallelLayout, PlanError
from dovetail.advice.serving import Serving
from dovetail.advice.training import Training
from dovetail.core.devices.products import BRIDGE

Plan = Training | Serving
MOST_REPLICAS = 1024
_MOST_STAGES = 64
_MOST_TOKENS, _MOST_SEQUENCES = 1 << 24, 1 << 20


class Need(Struct, frozen=True):
    """The hardware that a layout needs: GPUs, usable memory per GPU, nodes, memory of the host on each node. `nvlink`:
    there are tensor-parallel ranks, which exchange activations in each layer, and the GPU model has NVLink for them
    without a bridge. On other models they use PCIe: the plan is slower, but holds."""

    gpus: int
    memory_per_gpu_mib: int
    nvlink: bool
    nodes: int
    host_memory_mib: int = 0


class MemoryQuestion(Struct, frozen=True):
    """A job. The parts of the layout that are None are free. `runtime_mib` is the memory of CUDA and the framework on
    each GPU, `headroom_percent` the part of each GPU to keep free."""

    model: Architecture
    plan: Plan
    name: str = ""
    gpus: int | None = None
    tp: int | None = None
    pp: int | None = None
    gpus_per_node: int = 8
    runtime_mib: int = 1024
    headroom_percent: int = 10

    def parts(self, layout: ParallelLayout, plan: Plan | None = None) -> ModelParts:
        return (plan or self.plan).parts(self.model, layout, self.runtime_mib * MIB)

    def needed_mib(self, parts: ModelParts) -> int:
        """The usable memory that a GPU needs: the parts and the headroom, rounded up."""
        return -(-parts.total * 100 // ((100 - self.headroom_percent) * MIB))

    def need(self, layout: ParallelLayout) -> Need:
        """The need on GPUs with NVLink."""
        nodes = -(-layout.gpus // self.gpus_per_node)
        parts = self.parts(layout)
        host = -(-self.host(layout, parts).total // MIB)
        return Need(layout.gpus, self.needed_mib(parts), layout.tp > 1, nodes, host)

    def host(self, layout: ParallelLayout, parts: ModelParts) -> HostNeed:
        return host_need(self.model, self.plan, layout, parts, self.gpus_per_node)


def _need_on(need: Need, layout: ParallelLayout, gpu: GpuProduct) -> Need:
    return replace(need, nvlink=need.nvlink and gpu.linked(layout.tp) and gpu.product.reach != BRIDGE)


class MigSliceFit(Struct, frozen=True):
    """A MIG profile. `most` is the number of its instances per GPU. A negative `headroom_mib` is the missing memory."""

    profile: str
    memory_mib: int
    most: int
    fits: bool
    headroom_mib: int


class MemoryRoom(Struct, frozen=True):
    """The fit of a job on one GPU model.

    `fits` and `headroom_mib` are for the layout of the estimate. `fewest` is the layout with the fewest GPUs that fits,
    None if there is none, and `need` its needs. `largest_context` and `largest_batch` fit in it, each with the other as
    requested. `nvlink`: NVLink can connect its tensor-parallel ranks."""

    gpu: str
    product: str
    memory_mib: int
    usable_mib: int
    fits: bool
    headroom_mib: int
    fewest: ParallelLayout | None
    need: Need | None
    nvlink: bool
    largest_context: int
    largest_batch: int
    mig: tuple[MigSliceFit, ...]


class Model(Struct, frozen=True):
    """`active` is the number of parameters used for a token; `by_kind` has the parameters by kind. `max_context` 0:
    unknown."""

    name: str
    family: str
    parameters: int
    active: int
    by_kind: dict[str, int]
    trained: int
    layers: int
    max_context: int


class MemoryEstimate(Struct, frozen=True):
    """The estimate. `parts` are those of the fullest GPU in this `layout`, which needs `need`; `host` are the parts
    of its memory on each node. `notes` list assumptions and options without effect."""

    model: Model
    job: str
    plan: Plan
    layout: ParallelLayout
    parts: ModelParts
    total_bytes: int
    headroom_percent: int
    need: Need
    host: HostNeed
    gpus: tuple[MemoryRoom, ...]
    notes: tuple[str, ...]


def memory(
    asked: MemoryQuestion, sized_for: GpuProduct | None = None, gpus: tuple[GpuProduct, ...] = GPUS
) -> MemoryEstimate:
    """The estimate for a job. The layout is the first that fits on `sized_for`; without that, or if none fits, it is
    the smallest. Raises PlanError if the options contradict each other or the model."""
    needs = {layout: asked.need(layout) for layout in layouts(asked)}
    chosen = _fewest(needs, sized_for.usable_mib) if sized_for else None
    layout = chosen or next(iter(needs))
    parts = asked.parts(layout)
    # GPUs with the same usable memory have the same results.
    fewest = {gpu.usable_mib: _fewest(needs, gpu.usable_mib) for gpu in gpus}
    largest = {mib: _largest(asked, found, mib) for mib, found in fewest.items()}
    rooms = []
    for gpu in gpus:
        found = fewest[gpu.usable_mib]
        room = MemoryRoom(
            gpu=gpu.model,
            product=gpu.name,
            memory_mib=gpu.memory_mib,
            usable_mib=gpu.usable_mib,
            fits=needs[layout].memory_per_gpu_mib <= gpu.usable_mib,
            headroom_mib=gpu.usable_mib - -(-parts.total // MIB),
            fewest=found,
            need=None if found is None else _need_on(needs[found], found, gpu),
            nvlink=found is not None and (found.tp == 1 or gpu.linked(found.tp)),
            largest_context=largest[gpu.usable_mib][0],
            largest_batch=largest[gpu.usable_mib][1],
            mig=tuple(_slices(asked, gpu)) if ParallelLayout() in (layout, found) else (),
        )
        rooms.append(room)
    model, plan = asked.model, asked.plan
    trained = plan.trainable(model) if isinstance(plan, Training) else 0
    described = Model(
        asked.name, model.family, model.parameters, model.active, model.by_kind(), trained, len(model.layers),
        model.max_context,
    )  # fmt: skip
    notes = [*model.notes, *_notes(asked, layout)]
    if sized_for and chosen is None:
        notes.append(f"no possible layout fits {sized_for.model}; the smallest is shown")
    job = plan.method if isinstance(plan, Training) else "serve"
    return MemoryEstimate(
        described,
        job,
        plan,
        layout,
        parts,
        parts.total,
        asked.headroom_percent,
        _need_on(needs[layout], layout, sized_for) if sized_for else needs[layout],
        asked.host(layout, parts),
        tuple(rooms),
        tuple(notes),
    )


def _notes(asked: MemoryQuestion, layout: ParallelLayout) -> Iterator[str]:
    model, plan = asked.model, asked.plan
    if model.max_context and plan.context > model.max_context:
        yield f"{plan.context} tokens exceed the {model.max_context} of the configuration"
    if isinstance(plan, Serving):
        return
    if plan.sharded and layout.dp == 1:
        yield f"one replica: {'FSDP' if plan.fsdp else f'ZeRO-{plan.zero}'} divides nothing; set a larger --gpus"
    if plan.method == "qlora" and plan.level == 3 and layout.dp > 1:
        yield "4-bit weights are divided only where they are stored as floats (bnb_4bit_quant_storage)"
    if layout.pp > 1:
        yield f"a step has at least {layout.pp} micro-batches, so that all {layout.pp} stages have work"


def layouts(asked: MemoryQuestion) -> Iterator[ParallelLayout]:
    """The possible layouts, fewest GPUs first. If there is none, raises the PlanError of the first candidate."""
    refused: list[PlanError] = []
    found = False
    for layout in _candidates(asked):
        try:
            asked.plan.check(asked.model, layout)
        except PlanError as error:
            refused.append(error)
        else:
            found = True
            yield layout
    if not found:
        raise refused[0]


def _candidates(asked: MemoryQuestion) -> Iterator[ParallelLayout]:
    tp, pp, gpus = asked.tp, asked.pp, asked.gpus
    if gpus is not None:
        yield from _of_so_many(asked, gpus)
    elif asked.plan.sharded:
        replicas = 1
        while replicas <= MOST_REPLICAS:
            yield ParallelLayout(tp or 1, pp or 1, replicas)
            replicas *= 2
    else:
        ranks = [tp] if tp else [n for n in _doubling(asked.gpus_per_node) if asked.model.heads % n == 0]
        for n in ranks:
            yield ParallelLayout(n, pp or 1)
        if pp is None:
            for stages in range(2, min(_MOST_STAGES, len(asked.model.layers)) + 1):
                yield ParallelLayout(ranks[-1], stages)


def _of_so_many(asked: MemoryQuestion, gpus: int) -> Iterator[ParallelLayout]:
    """The layouts of this many GPUs: serving divides one replica among them, training adds replicas."""
    fixed = (asked.tp or 1) * (asked.pp or 1)
    if gpus % fixed:
        raise PlanError(
            f"{gpus} GPUs are not a multiple of {asked.tp or 1} tensor-parallel ranks x {asked.pp or 1} stages"
        )
    free = gpus // fixed
    if isinstance(asked.plan, Training):
        if asked.plan.sharded and free == 1:
            how = "FSDP" if asked.plan.fsdp else f"ZeRO-{asked.plan.zero}"
            raise PlanError(
                f"{how} divides among replicas, and {gpus} GPUs are one replica: more GPUs, or less --tp and --pp"
            )
        yield ParallelLayout(asked.tp or 1, asked.pp or 1, free)
    elif asked.tp and asked.pp:
        if free > 1:
            raise PlanError(f"{gpus} GPUs are {free} replicas of {fixed}: ask about one, each has its own memory")
        yield ParallelLayout(asked.tp, asked.pp)
    elif asked.tp:
        yield ParallelLayout(asked.tp, free)
    elif asked.pp:
        yield ParallelLayout(free, asked.pp)
    else:
        for ranks in sorted((n for n in range(1, min(free, asked.gpus_per_node) + 1) if free % n == 0), reverse=True):
            yield ParallelLayout(ranks, free // ranks)


def _doubling(most: int) -> Iterator[int]:
    n = 1
    while n <= most:
        yield n
        n *= 2


def _fewest(needs: Mapping[ParallelLayout, Need], usable_mib: int) -> ParallelLayout | None:
    return next((layout for layout, need in needs.items() if need.memory_per_gpu_mib <= usable_mib), None)


def _largest(asked: MemoryQuestion, layout: ParallelLayout | None, usable_mib: int) -> tuple[int, int]:
    """The largest context and the largest batch that fit; 0 without a layout."""
    if layout is None:
        return 0, 0
    plan = asked.plan

    def fits(context: int, batch: int) -> bool:
        return asked.needed_mib(asked.parts(layout, plan.sized(context, batch))) <= usable_mib

    most = max(asked.model.max_context or _MOST_TOKENS, plan.context)
    context = largest(lambda n: fits(n, plan.batch), plan.context, most)
    return context, largest(lambda n: fits(plan.context, n), plan.batch, _MOST_SEQUENCES)


def largest(fits: Callable[[int], bool], known: int, most: int) -> int:
    """The largest number up to `most` that fits. `known` fits, and larger numbers need no less memory."""
    low, high = known, min(known * 2, most)
    while high < most and fits(high):
        low, high = high, min(high * 2, most)
    if fits(high):
        return high
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if fits(middle) else (low, middle)
    return low


def _slices(asked: MemoryQuestion, gpu: GpuProduct) -> Iterator[MigSliceFit]:
    parts = asked.parts(ParallelLayout())
    for profile in gpu.profiles():
        # The memory in the table of profiles can exceed the usable memory that was measured.
        own = min(profile.memory_mib, gpu.usable_mib)
        fits = asked.needed_mib(parts) <= own
        yield MigSliceFit(profile.name, own, profile.most, fits, own - -(-parts.total // MIB))

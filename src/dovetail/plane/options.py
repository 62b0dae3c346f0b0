# SPDX-License-Identifier: Apache-2.0
"""What an agent asks for, in its own units: minutes, whole GPUs, fractions."""

from __future__ import annotations

import re
from collections.abc import Sequence

from msgspec import Struct

from dovetail.core.bargaining.types import MOST_ALTERNATIVES, LeaseAlternative, LeaseRequest, ServiceClass
from dovetail.core.model import GPU

_MINUTE_MS = 60_000
_MIG_PREFIX = "nvidia.com/mig-"
_MOST_NAME = 63
"""Of a LeaseRequest (deploy/crds/leaserequest.yaml)."""
_UNNAMED = re.compile("[^a-z0-9-]+")


class Option(Struct, frozen=True, kw_only=True):
    """One thing that would do.

    `gpus` devices, but at least `least` (0: all). A device is a whole GPU, with `fraction` (of 1) or `memory_gib` a
    share of one, with `mig` an instance of that profile ("1g.10gb"). `model` is the product that will do, or several
    (`nvidia.com/gpu.product`). `same_node`: all of them on one node; a number: so many together on one node each time.
    `nvlink`: those on one node are connected by NVLinks. `within`: a node label key; all lie in one value of it.

    `minutes` is the term; a scavenger takes one of `least_minutes`, too. It starts no earlier than `start_in` minutes
    from now, and no later than `latest_in` (0: any time). `service`: see `ServiceClass`.

    Raises ValueError where that contradicts itself."""

    gpus: int = 1
    least: int = 0
    model: str | tuple[str, ...] = ()
    fraction: float = 0.0
    memory_gib: float = 0.0
    mig: str = ""
    same_node: bool | int = False
    nvlink: bool = False
    within: str = ""
    minutes: float = 10.0
    least_minutes: float = 0.0
    start_in: float = 0.0
    latest_in: float = 0.0
    service: ServiceClass = ServiceClass.BURST
    cpu: float = 0.0
    host_memory_gib: float = 0.0

    def __post_init__(self) -> None:
        if self.gpus < 1 or not 0 <= self.least <= self.gpus:
            raise ValueError(f"gpus={self.gpus}, least={self.least}: at least 1, and no more than gpus")
        if self.minutes <= 0 or not 0 <= self.least_minutes <= self.minutes:
            raise ValueError(f"minutes={self.minutes}: must be positive, and least_minutes no more")
        if not 0 <= self.fraction < 1:
            raise ValueError(f"fraction={self.fraction}: a part of one GPU is below 1; use gpus for whole ones")
        if sum([bool(self.fraction), bool(self.memory_gib), bool(self.mig)]) > 1:
            raise ValueError("fraction, memory_gib and mig: a device is one of these")
        if self.per_node < 1 or self.gpus % self.per_node or self.least % self.per_node:
            raise ValueError(f"same_node={self.same_node}: gpus and least must be multiples of it")
        if min(self.start_in, self.latest_in, self.memory_gib, self.cpu, self.host_memory_gib) < 0:
            raise ValueError("no time and no amount is negative")
        if self.latest_in and self.latest_in < self.start_in:
            raise ValueError(f"latest_in={self.latest_in} is before start_in={self.start_in}")

    @property
    def per_node(self) -> int:
        if self.same_node is True:
            return self.gpus
        return int(self.same_node) or 1

    def alternative(self, now_ms: int) -> LeaseAlternative:
        """The same as the broker reads it; `now_ms` is its time."""
        return LeaseAlternative(
            count=self.gpus,
            least=self.least,
            per_node=self.per_node,
            resource=f"{_MIG_PREFIX}{self.mig}" if self.mig else GPU,
            gpu_milli=round(1000 * self.fraction),
            gpu_memory_mib=round(1024 * self.memory_gib),
            models=(self.model,) if isinstance(self.model, str) else tuple(self.model),
            nvlink=self.nvlink,
            within=(self.within,) if self.within else (),
            cpu_milli=round(1000 * self.cpu),
            memory_bytes=round(2**30 * self.host_memory_gib),
            duration_ms=round(_MINUTE_MS * self.minutes),
            least_duration_ms=round(_MINUTE_MS * self.least_minutes),
            earliest_ms=now_ms + round(_MINUTE_MS * self.start_in) if self.start_in else 0,
            latest_ms=now_ms + round(_MINUTE_MS * self.latest_in) if self.latest_in else 0,
            service=self.service,
        )


class AgentRequest(Struct, frozen=True, kw_only=True):
    """A request for one of the `options`, the most wanted first. `name` is how it is shown, and asked about, and is
    unique among the plane's open requests ("": a number). `firm`: the first option that can be had is granted at once,
    without offers. `grace_minutes` is wanted between a revocation and its deadline, `checkpoint_minutes` is how often
    the work saves itself, `startup_seconds` how long it takes to be of use. After `within_minutes` without a lease it
    is withdrawn (0: never)."""

    options: tuple[Option, ...]
    name: str = ""
    firm: bool = False
    grace_minutes: float = 0.0
    checkpoint_minutes: float = 0.0
    startup_seconds: float = 0.0
    within_minutes: float = 0.0

    def __post_init__(self) -> None:
        if not 1 <= len(self.options) <= MOST_ALTERNATIVES:
            raise ValueError(f"{len(self.options)} options: a request has 1 to {MOST_ALTERNATIVES}")


def request_of(options: Option | Sequence[Option] | AgentRequest) -> AgentRequest:
    """A request in any of the forms in which it can be written."""
    if isinstance(options, AgentRequest):
        return options
    return AgentRequest(options=(options,) if isinstance(options, Option) else tuple(options))


def record_of(asked: AgentRequest, plane: str, number: str, now_ms: int) -> LeaseRequest:
    """The request as the broker reads it. `number` makes its name unique in the namespace; `now_ms` is the broker's
    time. The name is one that an object can have, and begins with that of the AgentRequest."""
    namespace, _, agent = plane.partition("/")
    number = _UNNAMED.sub("-", number.lower()).strip("-")[:_MOST_NAME]
    begin = _UNNAMED.sub("-", (asked.name or agent).lower())[: max(0, _MOST_NAME - 1 - len(number))].strip("-")
    name = f"{begin}-{number}" if begin else number
    return LeaseRequest(
        f"{namespace}/{name}", plane, name,
        tuple([option.alternative(now_ms) for option in asked.options]), asked.firm, now_ms,
        round(_MINUTE_MS * asked.grace_minutes), round(_MINUTE_MS * asked.checkpoint_minutes),
        round(1000 * asked.startup_seconds),
    )  # fmt: skip

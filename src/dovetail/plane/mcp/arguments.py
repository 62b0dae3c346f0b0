# SPDX-License-Identifier: Apache-2.0
"""The arguments of each tool: types and bounds, from which the JSON schemas are made.

Rules: unknown fields, wrong types and values beyond the bounds are errors that name the field. Units are in the names.
What options may not contradict is checked by `plane.options`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, TypeVar

from msgspec import Meta, Struct, ValidationError, convert
from msgspec.json import schema_components

from dovetail.core.bargaining.types import MOST_ALTERNATIVES, ServiceClass
from dovetail.plane.mcp.answers import ToolError, ToolErrorCode
from dovetail.plane.mcp.quoting import clean
from dovetail.plane.options import AgentRequest, Option

T = TypeVar("T", bound=Struct)
MOST_WAIT_SECONDS = 50
"""Less than the minute after which many clients end a call."""
_MONTH_MINUTES = 43_200
_DAY_MINUTES = 1_440
_END = r"$(?!\n)"
"""The end of a text: a dollar sign alone would let a line end follow."""
_LABEL = r"[A-Za-z0-9]([A-Za-z0-9_.-]{0,61}[A-Za-z0-9])?"
_LABEL_KEY = rf"([a-z0-9]([a-z0-9.-]{{0,251}}[a-z0-9])?/)?{_LABEL}"
_MIG = r"[1-9]g\.[1-9][0-9]{0,3}gb(\.me|\+me|\+gfx)?"
_NUMBER = "[1-9][0-9]{0,8}"

RequestId = Annotated[str, Meta(pattern=f"^r{_NUMBER}{_END}", description="Id of a request, such as r1.")]
LeaseId = Annotated[str, Meta(pattern=f"^r{_NUMBER}{_END}", description="Id of a lease: that of its request.")]
OfferId = Annotated[str, Meta(pattern=rf"^r{_NUMBER}\.{_NUMBER}{_END}", description="Id of an offer, such as r1.2.")]
Wait = Annotated[
    float, Meta(ge=0, le=MOST_WAIT_SECONDS, description="How many seconds to wait for news at most; 0: answer at once.")
]


class OptionArguments(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One thing that would do."""

    gpus: Annotated[int, Meta(ge=1, le=1024, description="Devices.")] = 1
    least: Annotated[int, Meta(ge=0, le=1024, description="How few will do; 0: all of them.")] = 0
    minutes: Annotated[float, Meta(ge=0.05, le=_MONTH_MINUTES, description="Term of the lease.")] = 10.0
    least_minutes: Annotated[
        float,
        Meta(ge=0, le=_MONTH_MINUTES, description="Shortest term that will do; Scavenger only. 0: no shorter one."),
    ] = 0.0
    models: Annotated[
        list[Annotated[str, Meta(pattern=f"^{_LABEL}{_END}")]],
        Meta(max_length=16, description="GPU products that will do (label nvidia.com/gpu.product); none: any."),
    ] = []
    fraction: Annotated[float, Meta(ge=0, lt=1, description="Each device is this part of one GPU; 0: a whole one.")] = (
        0.0
    )
    memory_gib: Annotated[
        float, Meta(ge=0, le=1024, description="Each device is so much memory of one GPU; 0: a whole one.")
    ] = 0.0
    mig: Annotated[
        str, Meta(pattern=f"^({_MIG})?{_END}", description="Each device is a MIG instance, such as 1g.10gb.")
    ] = ""
    per_node: Annotated[
        int, Meta(ge=1, le=64, description="So many devices together on one node each time; gpus is a multiple of it.")
    ] = 1
    nvlink: Annotated[bool, Meta(description="Devices on one node are connected by NVLinks.")] = False
    within: Annotated[
        str, Meta(pattern=f"^({_LABEL_KEY})?{_END}", description="Node label key: all devices in one value of it.")
    ] = ""
    start_in_minutes: Annotated[float, Meta(ge=0, le=_MONTH_MINUTES, description="No start before; from now.")] = 0.0
    latest_in_minutes: Annotated[
        float, Meta(ge=0, le=_MONTH_MINUTES, description="No start after; from now. 0: any time.")
    ] = 0.0
    service: Annotated[
        ServiceClass,
        Meta(
            description="Guaranteed: within the plane's guarantee, never reclaimed. Burst: beyond it. "
            "Scavenger: idle GPUs, taken back first."
        ),
    ] = ServiceClass.BURST
    cpu: Annotated[float, Meta(ge=0, le=1024, description="CPUs for each device.")] = 0.0
    host_memory_gib: Annotated[float, Meta(ge=0, le=16_384, description="Memory of the node for each device.")] = 0.0


class AskArguments(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    options: Annotated[
        list[OptionArguments],
        Meta(min_length=1, max_length=MOST_ALTERNATIVES, description="What would do, the most wanted first."),
    ]
    name: Annotated[str, Meta(max_length=80, description="Your own note, shown back to you as data.")] = ""
    firm: Annotated[bool, Meta(description="Grant the first option that can be had at once, without offers.")] = False
    grace_minutes: Annotated[
        float, Meta(ge=0, le=_DAY_MINUTES, description="Time to save work after a revocation; 0: the plane's.")
    ] = 0.0
    checkpoint_minutes: Annotated[
        float, Meta(ge=0, le=_MONTH_MINUTES, description="How often the work saves itself; 0: not known.")
    ] = 0.0
    startup_seconds: Annotated[
        float, Meta(ge=0, le=86_400, description="How long the work takes to be of use; 0: not known.")
    ] = 0.0
    keep_minutes: Annotated[
        float, Meta(gt=0, le=_DAY_MINUTES, description="The request is withdrawn after so long without a lease.")
    ] = 60.0
    wait_seconds: Wait = 10.0


class OffersArguments(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    request: RequestId
    wait_seconds: Wait = 10.0


class AcceptArguments(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    offer: OfferId
    wait_seconds: Wait = 10.0


class CounterArguments(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    request: RequestId
    option: OptionArguments
    wait_seconds: Wait = 10.0


class DeclineArguments(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    request: RequestId
    wait_seconds: Wait = 10.0


class LeasesArguments(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    lease: Annotated[str, Meta(pattern=f"^(r{_NUMBER})?{_END}", description="One lease with all its devices.")] = ""
    acknowledge: Annotated[
        list[LeaseId], Meta(max_length=32, description="Leases whose notices need not be repeated.")
    ] = []


class RenewArguments(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    lease: LeaseId
    minutes: Annotated[
        float,
        Meta(ge=0.05, le=_MONTH_MINUTES, description="New end, from now; at most one term. In its last third only."),
    ]


class GiveBackArguments(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    lease: LeaseId


class WhyArguments(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    request: RequestId


class WithdrawArguments(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    request: RequestId


def read(tool: str, arguments: Mapping[str, object], kind: type[T]) -> T:
    """The arguments of a call as they are typed. Raises ToolError."""
    try:
        return convert(arguments, kind)
    except ValidationError as error:
        what, _, place = str(error).partition(" - at `$")
        field = clean(place.removesuffix("`").removeprefix("."))
        raise ToolError(
            ToolErrorCode.INVALID_ARGUMENTS, clean(what), f"correct it; {tool} takes: {_names(kind)}", field
        ) from error


def _names(kind: type[Struct]) -> str:
    return ", ".join(kind.__struct_fields__)


def option_of(arguments: OptionArguments, field: str) -> Option:
    """The option of an agent. Raises ToolError, for this field."""
    try:
        return Option(
            gpus=arguments.gpus,
            least=arguments.least,
            model=tuple(arguments.models),
            fraction=arguments.fraction,
            memory_gib=arguments.memory_gib,
            mig=arguments.mig,
            same_node=arguments.per_node,
            nvlink=arguments.nvlink,
            within=arguments.within,
            minutes=arguments.minutes,
            least_minutes=arguments.least_minutes,
            start_in=arguments.start_in_minutes,
            latest_in=arguments.latest_in_minutes,
            service=arguments.service,
            cpu=arguments.cpu,
            host_memory_gib=arguments.host_memory_gib,
        )
    except ValueError as error:
        what = clean(str(error).replace("same_node", "per_node").replace("start_in", "start_in_minutes"))
        what = what.replace("latest_in=", "latest_in_minutes=")
        raise ToolError(ToolErrorCode.INVALID_ARGUMENTS, what, "correct the option, and call again", field) from error


def request_of(arguments: AskArguments, name: str) -> AgentRequest:
    """The request of an agent, by this name. Raises ToolError."""
    options = [option_of(option, f"options[{number}]") for number, option in enumerate(arguments.options)]
    return AgentRequest(
        options=tuple(options),
        name=name,
        firm=arguments.firm,
        grace_minutes=arguments.grace_minutes,
        checkpoint_minutes=arguments.checkpoint_minutes,
        startup_seconds=arguments.startup_seconds,
    )


def schema_of(kind: type[Struct]) -> dict[str, Any]:
    """The JSON schema of the arguments, without references: some clients do not follow them."""
    (root,), components = schema_components([kind], ref_template="{name}")
    found = _inlined(root, components)
    assert isinstance(found, dict)
    return found


def _inlined(schema: object, components: Mapping[str, object]) -> object:
    if isinstance(schema, list):
        return [_inlined(one, components) for one in schema]
    if not isinstance(schema, dict):
        return schema
    if "$ref" in schema:
        rest = {key: value for key, value in schema.items() if key != "$ref"}
        found = _inlined(components[schema["$ref"]], components)
        assert isinstance(found, dict)
        return {**found, **rest}
    return {
        key: _inlined(value, components)
        for key, value in schema.items()
        if key != "title" or not isinstance(value, str)
    }

# SPDX-License-Identifier: Apache-2.0
"""The options of commands that ask about hypothetical pods, or make pods: their shape, and CPU and memory for each
GPU."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar

import click

if TYPE_CHECKING:
    from dovetail.jobs.gpu_request import GpuRequest
    from dovetail.views.shape_types import ShapeView

F = TypeVar("F", bound=Callable[..., Any])


def shape_option(text: str) -> Callable[[F], F]:
    """The option `--shape`; its value is a ShapeView, or None."""
    return click.option(
        "--shape", metavar="[PODSx]GPUS[xMODEL]", default=None, callback=lambda _ctx, _param, value: _shape(value),
        help=text,
    )  # fmt: skip


def gpus_option(text: str) -> Callable[[F], F]:
    """The option `--gpus`; its value is a GpuRequest."""
    return click.option(
        "--gpus", metavar="[N][xMODEL]", default="1", show_default=True,
        callback=lambda _ctx, _param, value: _gpus(value), help=text,
    )  # fmt: skip


def beside_options(command: F) -> F:
    """The options `--cpu` and `--memory`; their values are `cpu_milli` and `memory_bytes`."""
    cpu = click.option(
        "--cpu", "cpu_milli", default="0", show_default=True, metavar="CPU", callback=_quantity("cpu"),
        help="CPU that a pod requests for each of its GPUs, instances, shares or devices.",
    )  # fmt: skip
    memory = click.option(
        "--memory", "memory_bytes", default="0", show_default=True, metavar="MEMORY", callback=_quantity("memory"),
        help="Memory that a pod requests for each of them.",
    )  # fmt: skip
    return cpu(memory(command))


def _shape(value: str | None) -> ShapeView | None:
    if value is None:
        return None
    from dovetail.views.shape_types import ShapeError, parse

    try:
        return parse(value)
    except ShapeError as error:
        raise click.BadParameter(str(error)) from error


def _gpus(value: str) -> GpuRequest:
    from dovetail.jobs.gpu_request import gpu_request
    from dovetail.views.shape_types import ShapeError

    try:
        return gpu_request(value)
    except ShapeError as error:
        raise click.BadParameter(str(error)) from error


def _quantity(resource: str) -> Callable[[click.Context, click.Parameter, str], int]:
    def read(_ctx: click.Context, _param: click.Parameter, value: str) -> int:
        if value == "0":
            return 0
        # Imported for other amounts alone: most are asked without one.
        from dovetail.core.quantities import QuantityError, amount

        try:
            found = amount(resource, value)
        except QuantityError as error:
            raise click.BadParameter(str(error)) from error
        if found < 0:
            raise click.BadParameter(f"{value!r} is negative")
        return found

    return read

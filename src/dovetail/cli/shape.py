# SPDX-License-Identifier: Apache-2.0
"""The options of commands that ask about pods that do not exist: their shape, and what goes with each GPU."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import click

from dovetail.core.quantities import QuantityError, amount
from dovetail.views.shape import ShapeError, ShapeView, parse

F = TypeVar("F", bound=Callable[..., Any])


def shape_option(text: str) -> Callable[[F], F]:
    """`--shape`, given as a Shape, or None."""
    return click.option(
        "--shape", metavar="[PODSx]GPUS[xMODEL]", default=None, callback=lambda _ctx, _param, value: _shape(value),
        help=text,
    )  # fmt: skip


def beside_options(command: F) -> F:
    """`--cpu` and `--memory`, given as `cpu_milli` and `memory_bytes`."""
    cpu = click.option(
        "--cpu", "cpu_milli", default="0", show_default=True, metavar="CPU", callback=_quantity("cpu"),
        help="CPU that each GPU, instance, share or device of a pod comes with.",
    )  # fmt: skip
    memory = click.option(
        "--memory", "memory_bytes", default="0", show_default=True, metavar="MEMORY", callback=_quantity("memory"),
        help="Memory that each of them comes with.",
    )  # fmt: skip
    return cpu(memory(command))


def _shape(value: str | None) -> ShapeView | None:
    try:
        return None if value is None else parse(value)
    except ShapeError as error:
        raise click.BadParameter(str(error)) from error


def _quantity(resource: str) -> Callable[[click.Context, click.Parameter, str], int]:
    def read(_ctx: click.Context, _param: click.Parameter, value: str) -> int:
        try:
            found = amount(resource, value)
        except QuantityError as error:
            raise click.BadParameter(str(error)) from error
        if found < 0:
            raise click.BadParameter(f"{value!r} is less than nothing")
        return found

    return read

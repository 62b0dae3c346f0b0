# SPDX-License-Identifier: Apache-2.0
"""Amounts of resource classes: from the quantities of a queue or a control plane to the core's, and back.

Rules: amounts are rounded up, `gpu` to thousandths of a GPU, `gpuMemory` to MiB. GPU slices are whole. What is invalid
is a Problem with its field and the nearest valid value.
"""

from __future__ import annotations

from decimal import Decimal
from fractions import Fraction
from math import ceil
from typing import Any

from msgspec import Struct

from dovetail.core.model import Problem
from dovetail.core.quantities import QuantityError, display, parse
from dovetail.core.queues.types import (
    CPU,
    GPU,
    GPU_HOUR,
    GPU_MEMORY,
    GPU_SLICES,
    MEMORY,
    MODEL_PREFIX,
    Amounts,
)
from dovetail.kube.objects import queues as wire
from dovetail.kube.objects.base import Quantities, Quantity
from dovetail.kube.translate.annotation_values import NAME
from dovetail.kube.translate.problems import nearest

_MIB = 2**20


class _Class(Struct, frozen=True):
    """A resource class of the Queue object: its name in the core, the number of core units per unit, and valid
    quantities."""

    name: str
    units: Fraction
    examples: tuple[str, ...]
    whole: bool = False


_GPUS = _Class(GPU, Fraction(1000), ("8", "0.5", "64"))
_CLASSES = {
    "cpu": _Class(CPU, Fraction(1000), ("64", "500m", "1.5")),
    "memory": _Class(MEMORY, Fraction(1), ("64Gi", "512Mi", "1Ti")),
    "gpu": _GPUS,
    "gpuSlices": _Class(GPU_SLICES, Fraction(1), ("7", "14"), whole=True),
    "gpuMemory": _Class(GPU_MEMORY, Fraction(1, _MIB), ("80Gi", "640Gi", "1Ti")),
}
_GPU_HOURS = _Class("gpu-hours", Fraction(GPU_HOUR), ("1000", "250", "0.5"))
_MODELS = "models"
_SHOWN = {found.name: field for field, found in _CLASSES.items()}


def amounts(quantities: wire.Resources, path: str, problems: list[Problem]) -> Amounts:
    """Amounts by resource class; those that are invalid are in `problems` and left out."""
    found: dict[str, int] = {}
    for field, value in quantities.items():
        at = f"{path}.{field}"
        if field == _MODELS and isinstance(value, dict):
            found |= _models(value, at, problems)
        elif field in _CLASSES and not isinstance(value, dict):
            amount = _amount(_CLASSES[field], value, at, problems)
            if amount is not None:
                found[_CLASSES[field].name] = amount
        elif field in (_MODELS, *_CLASSES):
            rule = "must be quantities by GPU model" if field == _MODELS else "must be a quantity"
            problems.append(Problem(at, str(value), rule))
        else:
            known = [*_CLASSES, _MODELS]
            rule = f"is no class of resources; it must be one of {', '.join(known)}; nearest: {nearest(field, known)}"
            problems.append(Problem(at, str(value), rule))
    return tuple(sorted(found.items()))


def _models(quantities: Quantities, path: str, problems: list[Problem]) -> dict[str, int]:
    found = {}
    for model, value in quantities.items():
        at = f"{path}[{model}]"
        if NAME.fullmatch(model) is None:
            problems.append(Problem(at, model, "must be a value that the node label nvidia.com/gpu.product can have"))
            continue
        amount = _amount(_GPUS, value, at, problems)
        if amount is not None:
            found[MODEL_PREFIX + model] = amount
    return found


def gpu_hours_of(value: Quantity, path: str, problems: list[Problem]) -> int | None:
    """A number of GPU-hours in milli-GPU times ms; None, with a Problem, where it is invalid."""
    return _amount(_GPU_HOURS, value, path, problems)


def _amount(of: _Class, value: Quantity, path: str, problems: list[Problem]) -> int | None:
    text, rule, instead = str(value), "must be a quantity of at least 0", ""
    try:
        exact = parse(text)
    except QuantityError:
        instead = nearest(text, of.examples)
    else:
        amount = exact * of.units
        if exact < 0:
            instead = "0"
        elif of.whole and amount.denominator != 1:
            rule, instead = "must be a whole number", str(ceil(amount))
        elif of.name == GPU_MEMORY and 0 < amount < 1:
            # An amount in bytes is a forgotten unit.
            rule, instead = "must be a quantity of memory of at least 1Mi, or 0", f"{ceil(exact)}Mi"
        else:
            return ceil(amount)
    problems.append(Problem(path, text, f"{rule}; nearest valid value: {instead}"))
    return None


def check_guarantee(
    guarantee: dict[str, int], limit: dict[str, int], problems: list[Problem], path: str = "spec.guarantee"
) -> None:
    """Check that no guarantee is above the queue's own limit."""
    of_models = sum(amount for name, amount in guarantee.items() if name.startswith(MODEL_PREFIX))
    for name, amount in guarantee.items():
        if amount > limit.get(name, amount):
            most = _shown(name, limit[name])
            rule = f"is above the queue's own limit, which is {most}; nearest valid value: {most}"
            problems.append(Problem(_path(path, name), _shown(name, amount), rule))
    if of_models > limit.get(GPU, of_models):
        rule = f"are together above the queue's own limit of GPUs, which is {_shown(GPU, limit[GPU])}"
        problems.append(Problem(f"{path}.models", _shown(GPU, of_models), rule))


def _path(path: str, name: str) -> str:
    model = name.removeprefix(MODEL_PREFIX)
    return f"{path}.{_MODELS}[{model}]" if model != name else f"{path}.{_SHOWN[name]}"


def amounts_document(exact: Amounts) -> dict[str, Any]:
    """The exact amounts in the format of the object."""
    document: dict[str, Any] = {}
    models: dict[str, str] = {}
    for name, amount in exact:
        if name.startswith(MODEL_PREFIX):
            models[name.removeprefix(MODEL_PREFIX)] = _shown(name, amount)
        else:
            document[_SHOWN[name]] = _shown(name, amount)
    return document | ({_MODELS: models} if models else {})


def _shown(name: str, amount: int) -> str:
    if name == CPU:
        return display("cpu", amount)
    if name == GPU_MEMORY:
        return _in_bytes(amount * _MIB)
    if name == MEMORY:
        return _in_bytes(amount)
    if name == GPU_SLICES:
        return str(amount)
    return f"{Decimal(amount) / 1000:f}"


def _in_bytes(amount: int) -> str:
    for power, suffix in ((4, "Ti"), (3, "Gi"), (2, "Mi"), (1, "Ki")):
        if amount and amount % 1024**power == 0:
            return f"{amount // 1024**power}{suffix}"
    return str(amount)


def gpu_hours(milli_ms: int) -> str:
    """A number of milli-GPU times ms as decimal GPU-hours, to the thousandth."""
    return f"{Decimal(milli_ms) / GPU_HOUR:.3f}"

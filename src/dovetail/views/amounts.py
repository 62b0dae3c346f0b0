# SPDX-License-Identifier: Apache-2.0
"""Amounts by resource class for people: `gpu=40`, as one writes them and as one reads them.

Rules: classes and units are those of `core.queues.types`. GPUs are written as numbers (0.5 is half of one), memory
and CPUs as quantities, slices as whole numbers. `none` takes a class away.
"""

from __future__ import annotations

from collections.abc import Iterable

from dovetail.core import quantities
from dovetail.core.quantities import QuantityError
from dovetail.core.queues.types import CPU, GPU, GPU_MEMORY, GPU_SLICES, MEMORY, MODEL_PREFIX, Amounts
from dovetail.views.jobs import nearest

CLASSES = (CPU, MEMORY, GPU, GPU_SLICES, GPU_MEMORY)
_MIB = 2**20
_NONE = "none"


class AmountError(ValueError):
    """The text is no amount of a class; the message says what is wrong with it."""


def changed(amounts: Amounts, texts: Iterable[str]) -> Amounts:
    """The amounts with those of `CLASS=AMOUNT` instead. Raises AmountError."""
    found = dict(amounts)
    for text in texts:
        name, given, value = text.partition("=")
        if not given:
            raise AmountError(f"{text!r} needs CLASS=AMOUNT, as in gpu=40")
        if name not in CLASSES and (not name.startswith(MODEL_PREFIX) or name == MODEL_PREFIX):
            known = (*CLASSES, f"{MODEL_PREFIX}MODEL")
            raise AmountError(f"{name!r} is no class of resources{nearest(name, known)}: there are {', '.join(known)}")
        if value == _NONE:
            found.pop(name, None)
        else:
            found[name] = _read(name, value)
    return tuple(sorted(found.items()))


def _read(name: str, text: str) -> int:
    try:
        if name in (MEMORY, GPU_SLICES):
            amount = quantities.units(text)
        elif name == GPU_MEMORY:
            amount = -(-quantities.units(text) // _MIB)
        else:
            amount = quantities.milli(text)
    except QuantityError as error:
        raise AmountError(f"{name}: {error}") from error
    if amount < 0:
        raise AmountError(f"{name}: {text!r} is less than nothing")
    return amount


def shown(name: str, amount: int) -> str:
    """One amount, without its class: `40`, `1.5Ti`."""
    if name == MEMORY:
        return quantities.display(MEMORY, amount)
    if name == GPU_MEMORY:
        return quantities.display(MEMORY, amount * _MIB)
    return str(amount) if name == GPU_SLICES else f"{amount / 1000:g}"


def listed(amounts: Amounts) -> str:
    """`40 gpu, 1Ti memory`; GPUs first, "nothing" for none."""
    order = sorted(amounts, key=lambda item: (not item[0].startswith(GPU), item[0]))
    return ", ".join(f"{shown(name, amount)} {name}" for name, amount in order) or "nothing"

# SPDX-License-Identifier: Apache-2.0
"""Amounts by resource class as text: `gpu=40` in options, `40 gpu` in answers.

Rules: classes and units are those of `core.queues.types`. GPUs are numbers (0.5 is half of one), memory and CPUs are
quantities, slices are whole numbers. `none` removes a class.
"""

from __future__ import annotations

from collections.abc import Iterable

from dovetail.core import quantities
from dovetail.core.quantities import QuantityError
from dovetail.core.queues.amounts import CPU, GPU, GPU_MEMORY, GPU_SLICES, MEMORY, MODEL_PREFIX, Amounts
from dovetail.views.names import nearest

CLASSES = (CPU, MEMORY, GPU, GPU_SLICES, GPU_MEMORY)
_MIB = 2**20
_NONE = "none"


class AmountError(ValueError):
    """The text is not an amount of a class; the message has the reason."""


def changed(amounts: Amounts, texts: Iterable[str]) -> Amounts:
    """The amounts after the changes `CLASS=AMOUNT`. Raises AmountError."""
    found = dict(amounts)
    for text in texts:
        name, equals, value = text.partition("=")
        if not equals:
            raise AmountError(f"{text!r} must be CLASS=AMOUNT, such as gpu=40")
        if name not in CLASSES and (not name.startswith(MODEL_PREFIX) or name == MODEL_PREFIX):
            known = (*CLASSES, f"{MODEL_PREFIX}MODEL")
            raise AmountError(f"{name!r} is not a resource class{nearest(name, known)}: there are {', '.join(known)}")
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
        raise AmountError(f"{name}: {text!r} is negative")
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

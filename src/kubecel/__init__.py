# SPDX-License-Identifier: Apache-2.0
"""CEL, the language of device selectors, as Kubernetes 1.37 evaluates it. The only dependency is msgspec.

A selector is compiled once and evaluated on any device, which is an object of any class with the fields of `Device`.
This expression tests the model, the driver version and the memory of a GPU of 80 GiB:

>>> from types import SimpleNamespace as Record
>>> import kubecel
>>> device = Record(
...     attributes=(("gpu.example.com/model", "H100"), ("gpu.example.com/driver", Record(text="550.54.15"))),
...     capacity=(("gpu.example.com/memory", Record(milli=80 * 2**30 * 1000)),),
...     shareable=False,
... )
>>> selector = kubecel.compile(
...     "device.attributes['gpu.example.com'].model == 'H100'"
...     " && device.attributes['gpu.example.com'].driver.isGreaterThan(semver('550.0.0'))"
...     " && device.capacity['gpu.example.com'].memory.compareTo(quantity('40Gi')) > 0"
... )
>>> selector.matches(device, "gpu.example.com")
True

`compile` raises SelectorError for an invalid expression, and `matches` for one that fails on a device. The message and
the cost, which `evaluate` returns too, are those of upstream:

>>> kubecel.compile("device.drivers == 'gpu.example.com'")
Traceback (most recent call last):
kubecel.errors.SelectorError: compilation failed: ERROR: <input>:1:7: undefined field 'drivers'
>>> kubecel.compile("device.driver == 'gpu.example.com'").evaluate(device, "gpu.example.com")
(True, 4)

No library on PyPI is suitable. cel-expr-python 0.1.3 (Google's C++) cannot pass values of custom
types, such as quantities, to functions ("Unimplemented type: 13"), rejects `1 < 1.5` and counts no cost.
common-expression-language 0.10.0 (Rust) and cel-python 0.5.0 compile `1 + "a"` and have neither optionals nor cel.bind.
This package agrees with upstream on random expressions in compilation, result, error and cost (tests/referee). It takes
8 to 13 microseconds per selector and device (benchmarks/cel_speed.py).

Differences to upstream: an expression may nest NESTING and DEPTH deep instead of about 250. A value may have a million
characters or elements, a quantity or version LONGEST_NUMBER characters. Operations that are cheap in upstream's cost
model may visit WORK elements in total, counting repeated visits. Time zones have no names, regular expressions no
Unicode scripts, and there are no protobuf messages. Maps are iterated in a fixed order; upstream's order is random.
"""

from kubecel.errors import SelectorError
from kubecel.selector import MAX_LENGTH, Attribute, Capacity, Device, Selector, SelectorReads, Version, compile

__all__ = [
    "MAX_LENGTH",
    "Attribute",
    "Capacity",
    "Device",
    "Selector",
    "SelectorError",
    "SelectorReads",
    "Version",
    "compile",
]

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

Errors
------
`compile` raises SelectorError for an invalid expression, and `matches` and `evaluate` for one that fails on a device.
Message and cost are those of upstream:

>>> kubecel.compile("device.drivers == 'gpu.example.com'")
Traceback (most recent call last):
kubecel.errors.SelectorError: compilation failed: ERROR: <input>:1:7: undefined field 'drivers'
>>> kubecel.compile("device.attributes['gpu.example.com'].color == 'red'").matches(device, "gpu.example.com")
Traceback (most recent call last):
kubecel.errors.SelectorError: no such key: color
>>> kubecel.compile("device.driver == 'gpu.example.com'").evaluate(device, "gpu.example.com")
(True, 4)

What a selector reads
---------------------
`Selector.reads` lists the parts of a device on which the result can depend, so that a caller can evaluate a selector
once for all devices that are equal in these parts. It is None where the parts are not known before the evaluation:

>>> for part in sorted(selector.reads):
...     print(part.kind, part.domain, part.name)
attributes gpu.example.com driver
attributes gpu.example.com model
capacity gpu.example.com memory
>>> kubecel.compile("device.attributes[device.driver].model == 'H100'").reads is None
True

Limits
------
An expression has at most MAX_LENGTH bytes and an evaluation costs at most 1,000,000, as upstream. An expression has at
most 60 levels of syntax, and 120 levels once macros are expanded (upstream: about 250). A value has at most a million
characters or elements, a quantity or version 256 characters. Operations that are cheap in upstream's cost model visit
at most a million elements in total, counting repeated visits. An expression beyond a limit raises SelectorError:

>>> kubecel.compile("(" * 60 + "true" + ")" * 60)
Traceback (most recent call last):
kubecel.errors.SelectorError: compilation failed: ERROR: <input>:1:61: expression recursion limit exceeded: 60
>>> kubecel.compile("lists.range(1000000).all(x, x >= 0)").matches(device, "gpu.example.com")
Traceback (most recent call last):
kubecel.errors.SelectorError: operation cancelled: actual cost limit exceeded

Differences to upstream
-----------------------
Beside the limits: time zones have no names, regular expressions have no Unicode scripts, and there are no protobuf
messages. Maps are iterated in a fixed order; upstream's order is random. README.md lists all functions and macros, by
the library of Kubernetes or cel-go that defines them.

No library on PyPI is suitable. cel-expr-python 0.1.3 (Google's C++) cannot pass values of custom
types, such as quantities, to functions ("Unimplemented type: 13"), rejects `1 < 1.5` and counts no cost.
common-expression-language 0.10.0 (Rust) and cel-python 0.5.0 compile `1 + "a"` and have neither optionals nor cel.bind.
This package agrees with upstream on random expressions in compilation, result, error and cost (tests/referee). It takes
8 to 13 microseconds per selector and device (benchmarks/cel_speed.py).
"""

from kubecel.errors import SelectorError
from kubecel.selector import MAX_LENGTH, Attribute, Capacity, Device, Selector, SelectorReads, Version, compile

__version__ = "0.1.0"
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

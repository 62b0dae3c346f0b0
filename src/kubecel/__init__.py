# SPDX-License-Identifier: Apache-2.0
"""CEL, the language of device selectors, as Kubernetes 1.37 evaluates it. It needs msgspec alone.

A selector is compiled once, and asked about any device: an object with the fields of `Device`, of whatever class. Here
a GPU of 80 GiB, of which an expression asks the model, the driver's version and the memory:

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

An expression that is none raises SelectorError when it is compiled, one that errs on a device when it is asked; the
text is upstream's, as is the cost, which `evaluate` returns as well:

>>> kubecel.compile("device.drivers == 'gpu.example.com'")
Traceback (most recent call last):
kubecel.errors.SelectorError: compilation failed: ERROR: <input>:1:7: undefined field 'drivers'
>>> kubecel.compile("device.driver == 'gpu.example.com'").evaluate(device, "gpu.example.com")
(True, 4)

Own code, as no library on PyPI can be right: cel-expr-python 0.1.3 (Google's C++) cannot hand values of a type of its
own, such as quantities, to functions ("Unimplemented type: 13"), refuses `1 < 1.5` and counts no cost, and
common-expression-language 0.10.0 (Rust) and cel-python 0.5.0 compile `1 + "a"` and have neither optionals nor cel.bind.
Here what compiles, matches, errs and costs agrees with upstream on random expressions (tests/referee), at 8 to 13
microseconds a selector and device (benchmarks/cel_speed.py).

What differs: an expression may nest NESTING and DEPTH deep instead of about 250, a value have a million characters or
elements, a quantity or version LONGEST_NUMBER, and what upstream charges little for may go through WORK elements in
all, counted anew each time and wherever they stand; time zones have no names, regular expressions no Unicode scripts,
and there are no protobuf messages. Maps are looked through in a fixed order, upstream in any.
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

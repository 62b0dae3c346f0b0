# SPDX-License-Identifier: Apache-2.0
"""CEL, the language of device selectors, as Kubernetes 1.37 evaluates it.

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

from dovetail.core.dra.cel.selector import MAX_LENGTH, Selector, compile

__all__ = ["MAX_LENGTH", "Selector", "compile"]

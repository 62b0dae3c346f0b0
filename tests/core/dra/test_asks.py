# SPDX-License-Identifier: Apache-2.0
"""Selectors that are compiled are remembered as long as there are few of them: users write what they like."""

from dovetail.core.dra import asks
from dovetail.core.dra.asks import Asks
from dovetail.core.dra.kinds import Kinds
from dovetail.core.dra.selectors import CompiledSelector
from dovetail.core.dra.types import ClaimSpec, DeviceClass, DeviceRequest
from kubecel import SelectorError


def test_of_many_expressions_the_last_ones_are_remembered() -> None:
    compiled: list[str] = []

    def compile(expression: str) -> CompiledSelector:
        compiled.append(expression)
        raise SelectorError("no language")

    made = Asks(Kinds(), {"gpu": DeviceClass("gpu", ("of the class",))}, compile)
    for n in range(500):
        expression = f"{n:05}" * 800
        spec = ClaimSpec(((DeviceRequest("r", "gpu", (expression,)),),))
        assert made.of((spec,)) is made.of((spec,))
        assert made._characters <= asks._MOST_CHARACTERS + len(expression)
        assert len(made._tests) <= 2 + asks._MOST_CHARACTERS // len(expression)
        assert len(made._asks) <= len(made._tests)
    assert len(compiled) <= 500 + 500 // 50

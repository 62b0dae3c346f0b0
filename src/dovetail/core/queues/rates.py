# SPDX-License-Identifier: Apache-2.0
"""What pods are charged: their dominant share, the largest of their parts of the cluster's CPU, memory and GPUs.

Rules: in milli-GPU of the cluster (milli-CPU where there are no GPUs), rounded up, so that nothing is for nothing; a
GPU of a model for which a factor is told counts so much more or less.
Source of the dominant share: Ghodsi et al., Dominant Resource Fairness, NSDI 2011.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from dovetail.core.queues.types import CPU, DIVIDED, GPU, Amounts

_MILLI = 1000


class ChargeRates:
    def __init__(self, model_milli: Iterable[tuple[str, int]]) -> None:
        """model_milli: by GPU model, what one of it counts in thousandths."""
        self._model_milli = dict(model_milli)
        self._capacity: dict[str, int] = {}
        self._known: dict[Amounts, int] = {}

    def follow(self, capacity: Mapping[str, int]) -> bool:
        """Count with what there is in the cluster now; whether that is something else than before."""
        divided = {name: capacity.get(name, 0) for name in DIVIDED}
        if divided == self._capacity:
            return False
        self._capacity = divided
        self._known.clear()
        return True

    @property
    def whole(self) -> int:
        """What the whole cluster would be charged."""
        return self._capacity.get(GPU) or self._capacity.get(CPU, 0)

    def of(self, amounts: Amounts) -> int:
        """What a pod is charged that is counted with these."""
        rate = self._known.get(amounts)
        if rate is None:
            parts = [(amount, self._capacity.get(name, 0)) for name, amount in amounts]
            dominant = max([-(-amount * self.whole // there) for amount, there in parts if there], default=0)
            rate = self._known[amounts] = dominant * self._model_factor(amounts) // _MILLI
        return rate

    def _model_factor(self, amounts: Amounts) -> int:
        models = (self._model_milli.get(name.partition("/")[2]) for name, _ in amounts if "/" in name)
        return next((milli for milli in models if milli is not None), _MILLI)

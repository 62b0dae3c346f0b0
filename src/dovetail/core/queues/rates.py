# SPDX-License-Identifier: Apache-2.0
"""The rate at which pods are charged: their dominant share, the largest of their parts of the cluster's CPU, memory and
GPUs.

Rules: the unit is milli-GPU of the cluster (milli-CPU where it has no GPUs), rounded up, so that nothing is free. The
rate is multiplied by the factor of the node's GPU model, if one is configured.
Source of the dominant share: Ghodsi et al., Dominant Resource Fairness, NSDI 2011.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from dovetail.core.queues.types import CPU, DIVIDED, GPU, Amounts

_MILLI = 1000


class ChargeRates:
    def __init__(self, model_milli: Iterable[tuple[str, int]]) -> None:
        """model_milli: by GPU model, its factor in thousandths."""
        self._model_milli = dict(model_milli)
        self._capacity: dict[str, int] = {}
        self._known: dict[Amounts, int] = {}

    def follow(self, capacity: Mapping[str, int]) -> bool:
        """Set the capacity of the cluster. Returns whether it differs from before."""
        divided = {name: capacity.get(name, 0) for name in DIVIDED}
        if divided == self._capacity:
            return False
        self._capacity = divided
        self._known.clear()
        return True

    @property
    def whole(self) -> int:
        """The rate of the whole cluster."""
        return self._capacity.get(GPU) or self._capacity.get(CPU, 0)

    def of(self, amounts: Amounts) -> int:
        """The rate of a pod that counts these amounts."""
        rate = self._known.get(amounts)
        if rate is None:
            parts = [(amount, self._capacity.get(name, 0)) for name, amount in amounts]
            dominant = max([-(-amount * self.whole // there) for amount, there in parts if there], default=0)
            rate = self._known[amounts] = dominant * self._model_factor(amounts) // _MILLI
        return rate

    def _model_factor(self, amounts: Amounts) -> int:
        models = (self._model_milli.get(name.partition("/")[2]) for name, _ in amounts if "/" in name)
        return next((milli for milli in models if milli is not None), _MILLI)

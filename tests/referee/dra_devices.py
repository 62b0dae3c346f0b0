# SPDX-License-Identifier: Apache-2.0
"""Small random pools of devices as ResourceSlices: complete, incomplete, invalid, replaced, shared and partitioned.

Rules: a slice alone is what the API server would store; what is wrong with a pool lies between its slices, as while a
driver is writing them. A case has few devices, so that looking through all of what can be chosen is cheap.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any, Literal, TypeVar

Manifest = dict[str, Any]
T = TypeVar("T")

GPU, NIC = "gpu.example.com", "nic.example.com"
SOME_TIME = "2026-01-01T00:00:00Z"
MOST_DEVICES = 12
NODES = {"n0": {"zone": "a", "size": "7"}, "n1": {"zone": "b"}}
"""Labels by name; the claims are for a pod on the first one."""
Features = Literal["default", "all"]


def _nodes(kind: str, key: str, operator: str, *values: str) -> Manifest:
    requirement = {"key": key, "operator": operator} | ({"values": list(values)} if values else {})
    return {"nodeSelector": {"nodeSelectorTerms": [{kind: [requirement]}]}}


HERE: tuple[Manifest, ...] = (
    {"nodeName": "n0"},
    {"allNodes": True},
    _nodes("matchExpressions", "zone", "In", "a"),
    _nodes("matchExpressions", "size", "Gt", "5"),
    _nodes("matchFields", "metadata.name", "In", "n0"),
)
ELSEWHERE: tuple[Manifest, ...] = (
    {"nodeName": "n1"},
    _nodes("matchExpressions", "zone", "In", "b"),
    _nodes("matchExpressions", "gone", "Exists"),
)

WHOLE = ("40Gi", "80Gi", "42949672960", "1500m")
SHARED: tuple[tuple[str, Manifest | None], ...] = (
    ("40Gi", None),
    ("40Gi", {"default": "16Gi"}),
    ("40Gi", {"default": "10Gi", "validValues": ["5Gi", "10Gi", "20Gi"]}),
    ("80Gi", {"default": "1Gi", "validRange": {"min": "1Gi"}}),
    ("80Gi", {"default": "8Gi", "validRange": {"min": "4Gi", "max": "40Gi", "step": "4Gi"}}),
    ("64Gi", {"default": "8Gi", "validRange": {"min": "8Gi", "step": "8Gi"}}),
    ("2", {"default": "500m", "validValues": ["500m", "1500m"]}),
)
"""A capacity of a device that many can share, and what may be asked of it."""
FRACTIONAL: tuple[tuple[str, Manifest | None], ...] = (
    ("1", {"default": "250m", "validRange": {"min": "100m", "max": "900m", "step": "50m"}}),
    ("2500m", {"default": "500m", "validRange": {"min": "500m", "step": "250m"}}),
)
"""Only of use with the gate DRAFractionalCapacityRange, which is off while older components are to be lived with."""

ATTRIBUTES: tuple[tuple[str, list[Manifest], float], ...] = (
    ("model", [{"string": "a"}, {"string": "a"}, {"string": "b"}], 0.95),
    ("numa", [{"int": 0}, {"int": 1}, {"int": 0}, {"int": -1}], 0.85),
    ("ecc", [{"bool": True}, {"bool": False}], 0.6),
    ("firmware", [{"version": "1.2.3"}, {"version": "1.10.0"}, {"version": "1.2.3-rc.1"}], 0.6),
    ("example.com/group", [{"string": "x"}, {"string": "x"}, {"string": "y"}, {"int": 1}], 0.7),
    ("example.com/rank", [{"int": 0}, {"int": 1}, {"int": 2}, {"int": 3}], 0.7),
)
"""Name, values, and how often a device has it."""


class Dice:
    """Random values, the same ones for the same seed."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)

    def chance(self, probability: float) -> bool:
        return self.random.random() < probability

    def pick(self, values: Sequence[T]) -> T:
        return self.random.choice(values)

    def sample(self, values: Sequence[T], count: int) -> list[T]:
        return self.random.sample(values, min(count, len(values)))


class Pools:
    """The ResourceSlices of a case, and the drivers that they are of. Lists and fractions of capacities that are asked
    for by range are there only with all features."""

    def __init__(self, dice: Dice, features: Features) -> None:
        self._dice, self._all = dice, features == "all"
        self._left = MOST_DEVICES
        self.slices: list[Manifest] = []
        drivers = [GPU, *dice.pick([[], [GPU], [NIC], [NIC], [NIC, GPU]])]
        for number, driver in enumerate(drivers):
            self._pool(driver, dice.pick(["n0", "p"]) + str(number))
        dice.random.shuffle(self.slices)

    def _pool(self, driver: str, pool: str) -> None:
        dice = self._dice
        generation = dice.pick([0, 1, 2, 9])
        partitioned = dice.chance(0.3)
        self._shares = dice.chance(0.4)
        usual = {"perDeviceNodeSelection": True} if dice.chance(0.2) else dice.pick(HERE)
        parts = [usual | {"sharedCounters": self._counter_sets()}] if partitioned else []
        named = 0
        for _ in range(dice.pick([1, 2, 2, 3])):
            scope = dice.pick([*HERE, *ELSEWHERE]) if dice.chance(0.15) else usual
            count = min(dice.pick([1, 2, 3, 4, 5]), self._left)
            parts.append(
                scope | {"devices": [self._device(driver, f"d{named + i}", scope, partitioned) for i in range(count)]}
            )
            named += count
            self._left -= count
        if partitioned and dice.chance(0.02):
            parts.append(usual | {"sharedCounters": self._counter_sets()[:1]})
        if dice.chance(0.02):
            self._double(parts)
        count = max(1, len(parts) + dice.pick([0] * 80 + [1, -1]))
        for number, part in enumerate(parts):
            self._slice(driver, pool, number, generation, count, part)
        if dice.chance(0.15):
            self._leftovers(driver, pool, generation, usual)

    def _double(self, parts: list[Manifest]) -> None:
        """The same device in two slices."""
        for part in parts[:-1]:
            if part.get("devices") and parts[-1].get("devices"):
                parts[-1]["devices"][-1]["name"] = part["devices"][0]["name"]

    def _leftovers(self, driver: str, pool: str, generation: int, scope: Manifest) -> None:
        """Slices of another generation: the older ones are on their way out, the newer ones have just begun to come."""
        dice = self._dice
        newer = generation == 0 or dice.chance(0.25)
        where = dice.pick([*ELSEWHERE, *HERE]) if newer else dice.pick([scope, *HERE])
        devices = [self._device(driver, f"d{i}", where, False) for i in range(dice.pick([0, 1, 2]))]
        other = generation + 1 if newer else generation - 1
        self._slice(driver, pool, 7, other, dice.pick([1, 2, 3]), where | {"devices": devices})

    def _slice(self, driver: str, pool: str, number: int, generation: int, count: int, part: Manifest) -> None:
        head = {"driver": driver, "pool": {"name": pool, "generation": generation, "resourceSliceCount": count}}
        spec = head | {name: value for name, value in part.items() if value}
        name = f"{driver}-{pool}-{number}"
        self.slices.append({"metadata": {"name": name, "uid": f"uid-{name}"}, "spec": spec})

    def _counter_sets(self) -> list[Manifest]:
        dice = self._dice
        return [
            {
                "name": name,
                "counters": {
                    "slices": {"value": dice.pick(["4", "7"])},
                    "memory": {"value": dice.pick(["40Gi", "80Gi"])},
                },
            }
            for name in ("card0", "card1")[: dice.pick([1, 2, 2])]
        ]

    def _device(self, driver: str, name: str, scope: Manifest, partitioned: bool) -> Manifest:
        dice = self._dice
        device: Manifest = {"name": name, "attributes": self._attributes(driver)}
        shared = dice.chance(0.6 if self._shares else 0.04)
        if shared:
            device["allowMultipleAllocations"] = True
        capacity = self._capacity(driver, shared)
        if capacity:
            device["capacity"] = capacity
        if partitioned and dice.chance(0.85):
            device["consumesCounters"] = self._consumption()
        if dice.chance(0.08):
            device["taints"] = [self._taint() for _ in range(dice.pick([1, 1, 2]))]
        if scope.get("perDeviceNodeSelection"):
            device |= dice.pick([*HERE, *HERE, *HERE, *ELSEWHERE])
        if dice.chance(0.06):
            device["bindsToNode"] = True
        if dice.chance(0.06):
            device["bindingConditions"] = ["example.com/attached"]
            device["bindingFailureConditions"] = ["example.com/failed"]
        return device

    def _attributes(self, driver: str) -> Manifest:
        dice = self._dice
        found: Manifest = {}
        for name, values, often in ATTRIBUTES:
            if dice.chance(often):
                written = name if "/" in name or dice.chance(0.85) else f"{driver}/{name}"
                found[written] = dict(dice.pick(values))
        if self._all and dice.chance(0.8):
            found["example.com/links"] = self._list()
        if self._all and "example.com/group" in found and dice.chance(0.3):
            found["example.com/group"] = {"strings": dice.sample(["x", "y", "z"], dice.pick([1, 2, 3]))}
        return found

    def _list(self) -> Manifest:
        dice = self._dice
        count = dice.pick([1, 2, 2, 3])
        return dice.pick(
            [
                {"strings": dice.sample(["s", "t", "u", "v"], count)},
                {"strings": dice.sample(["s", "t", "u", "v"], count)},
                {"string": dice.pick("st")},
                {"ints": dice.sample([1, 2, 3, 4], count)},
                {"bools": dice.sample([True, False], count)},
                {"versions": dice.sample(["1.0.0", "2.0.0", "3.0.0"], count)},
            ]
        )

    def _capacity(self, driver: str, shared: bool) -> Manifest:
        dice = self._dice
        shares = (*SHARED, *FRACTIONAL) if self._all else SHARED
        found: Manifest = {}
        for name, often in (("memory", 0.9), ("share", 0.3)):
            if dice.chance(often):
                value, policy = dice.pick(shares) if shared else (dice.pick(WHOLE), None)
                written = name if dice.chance(0.9) else f"{driver}/{name}"
                found[written] = {"value": value} | ({"requestPolicy": policy} if policy else {})
        return found

    def _consumption(self) -> list[Manifest]:
        dice = self._dice
        sets = dice.pick([["card0"]] * 60 + [["card1"], ["card0", "card1"]])
        return [{"counterSet": name, "counters": self._counters()} for name in sets]

    def _counters(self) -> Manifest:
        dice = self._dice
        found = {"slices": {"value": dice.pick(["1", "1", "2", "3", "4"])}}
        if dice.chance(0.5):
            found["memory"] = {"value": dice.pick(["10Gi", "20Gi", "40Gi"])}
        if dice.chance(0.003):
            found["engines"] = {"value": "1"}
        return found

    def _taint(self) -> Manifest:
        dice = self._dice
        effect = dice.pick(["NoSchedule", "NoSchedule", "NoExecute", "None"])
        return {"key": dice.pick("kl"), "value": dice.pick("vw"), "effect": effect, "timeAdded": SOME_TIME}

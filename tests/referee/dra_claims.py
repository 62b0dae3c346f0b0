# SPDX-License-Identifier: Apache-2.0
"""Small random claims of a pod on the pools of `dra_devices`, beside claims that are allocated already.

Rules: an object is what the API server would store, defaults filled in, apart from selectors that are broken, which it
would refuse; the referee's question "admit-claims" holds them to that. What is allocated need not be possible: devices
may have gone, or hold more than they have now.
"""

from __future__ import annotations

from typing import Any

from tests.referee.dra_devices import GPU, NIC, NODES, Dice, Features, Manifest, Pools

BROKEN = "device.attributes["
"""No API server stores it; a scheduler that is older than its API server can find what it cannot read."""

SELECTORS = (
    f'device.driver == "{GPU}"',
    f'device.driver == "{GPU}"',
    f'device.driver == "{GPU}" && device.attributes["{GPU}"].?model.orValue("") == "a"',
    f'device.attributes["{GPU}"].?model.orValue("none") in ["a", "b"]',
    f'"numa" in device.attributes["{GPU}"] && device.attributes["{GPU}"].numa < 1',
    f'has(device.capacity["{GPU}"].memory) && device.capacity["{GPU}"].memory.isGreaterThan(quantity("50Gi"))',
    f'cel.bind(all, device.attributes["{GPU}"], !has(all.ecc) || all.ecc)',
    f'device.attributes["{GPU}"].?firmware.orValue(semver("0.1.0")).compareTo(semver("1.2.3")) >= 0',
    'device.attributes["example.com"].?group.orValue("x") == "x"',
    "device.allowMultipleAllocations",
    "!device.allowMultipleAllocations",
    "true",
)
RISKY_SELECTORS = (
    f'device.attributes["{GPU}"].model == "a"',
    f'device.capacity["{GPU}"].memory.compareTo(quantity("40Gi")) >= 0',
    f'device.attributes["{GPU}"].ecc',
    f'device.attributes["{GPU}"].model.startsWith("a")',
    f'device.attributes["{GPU}"].numa.matches("a")',
    f'device.attributes["{GPU}"].model',
)
"""They err on a device that lacks what they read, and the last two on every one that has it."""
LIST_SELECTORS = (
    'device.attributes["example.com"].?links.orValue([]).includes("s")',
    '!("links" in device.attributes["example.com"]) || device.attributes["example.com"].links.includes(1)',
)
FALSE_SELECTORS = ("false", f'device.driver == "other.{GPU}"')

CLASSES: dict[str, list[str]] = {
    "any": [],
    "gpu": [f'device.driver == "{GPU}"'],
    "nic": [f'device.driver == "{NIC}"'],
}
ATTRIBUTES = (f"{GPU}/model", f"{GPU}/numa", f"{GPU}/ecc", f"{GPU}/firmware", "example.com/group", "example.com/rank")
LIST_ATTRIBUTES = ("example.com/links", "example.com/links", "example.com/group")
AMOUNTS = {
    "memory": ("1Gi", "4Gi", "6Gi", "10Gi", "16Gi", "30Gi", "48Gi", "5", "300m"),
    "share": ("100m", "260m", "0.5", "1", "1200m", "2Gi"),
}
MOST_REQUESTS, MOST_COUNTED = 4, 6
"""For all claims of a case, and for all their requests with a number of devices, but one for each: an allocator that
looks through everything needs a while for more."""
HUGE = (33, 2**62)
"""More than a claim may have, and more than can be counted with."""


def asked(seed: int, features: Features) -> Manifest:
    """One element of `asked` of the questions "allocate" and "admit-claims"."""
    dice = Dice(seed)
    pools = Pools(dice, features)
    writer = _Claims(seed, dice, pools.slices, features)
    return {
        "node": {"metadata": {"name": "n0", "uid": "uid-n0", "labels": NODES["n0"]}, "spec": {}, "status": {}},
        "slices": pools.slices,
        "allocated": writer.allocated(),
        "claims": writer.claims(),
        "classes": writer.classes(),
    }


class _Claims:
    def __init__(self, seed: int, dice: Dice, slices: list[Manifest], features: Features) -> None:
        self._seed = seed
        self._dice, self._all = dice, features == "all"
        self._devices = [
            (one["spec"]["driver"], one["spec"]["pool"]["name"], device)
            for one in slices
            for device in one["spec"].get("devices", ())
        ]
        drivers = {driver for driver, _, _ in self._devices}
        self._usual = ["any"] + ["gpu"] * 4 + ["nic"] * 2 * (NIC in drivers) + ["mixed"] * 2
        self._classes = {**CLASSES, "mixed": [self._selector() for _ in range(dice.pick([1, 1, 2]))]}
        self._shares = 0
        self._counted_left = MOST_COUNTED

    def classes(self) -> list[Manifest]:
        dice = self._dice
        return [
            {
                "metadata": {"name": name, "uid": f"uid-{name}"},
                "spec": ({"selectors": _cel(selectors)} if selectors else {})
                | ({"config": [_config(f"{name}-{i}") for i in dice.pick([(0,), (0, 1)])]} if dice.chance(0.3) else {}),
            }
            for name, selectors in self._classes.items()
        ]

    def _selector(self) -> str:
        dice = self._dice
        chance = dice.random.random()
        if chance < 0.06:
            return dice.pick(RISKY_SELECTORS)
        if chance < 0.065:
            return BROKEN
        if chance < 0.08:
            return dice.pick(FALSE_SELECTORS)
        if chance < 0.2 and self._all:
            return dice.pick(LIST_SELECTORS)
        return dice.pick(SELECTORS)

    # Claims to allocate.

    def claims(self) -> list[Manifest]:
        dice = self._dice
        claims: list[Manifest] = []
        count, left = dice.pick([1, 1, 1, 1, 2, 2, 3]), MOST_REQUESTS
        while len(claims) < count:
            requests = min(dice.pick([1, 1, 1, 1, 2, 2, 3]), left - (count - len(claims) - 1))
            left -= requests
            claims.append(self._claim(f"c{len(claims)}", requests))
        return claims

    def _claim(self, name: str, count: int) -> Manifest:
        dice = self._dice
        requests = [self._request(f"r{i}") for i in range(count)]
        devices: Manifest = {"requests": requests}
        constraints = [self._constraint(requests) for _ in range(dice.pick([0, 0, 0, 0, 0, 0, 1, 1, 2]))]
        if constraints:
            devices["constraints"] = constraints
        if dice.chance(0.3):
            devices["config"] = [self._claim_config(requests, i) for i in range(dice.pick([1, 1, 2]))]
        return {"metadata": self._meta(name), "spec": {"devices": devices}, "status": {}}

    def _request(self, name: str) -> Manifest:
        dice = self._dice
        if dice.chance(0.2):
            subrequests = [{"name": f"s{i}", **self._device_request()} for i in range(dice.pick([1, 2, 2, 3]))]
            return {"name": name, "firstAvailable": subrequests}
        device_request = self._device_request()
        if dice.chance(0.06):
            device_request["adminAccess"] = dice.chance(0.9)
        return {"name": name, "exactly": device_request}

    def _device_request(self) -> Manifest:
        dice = self._dice
        device_request: Manifest = {"deviceClassName": "nic" if dice.chance(0.01) else dice.pick(self._usual)}
        if dice.chance(0.2):
            device_request["selectors"] = _cel([self._selector() for _ in range(dice.pick([1, 1, 2]))])
        if dice.chance(0.09):
            device_request["allocationMode"] = "All"
        else:
            count = min(dice.pick([1, 1, 1, 1, 1, 2, 2, 3]), self._counted_left)
            self._counted_left = max(1, self._counted_left - count)
            device_request |= {"allocationMode": "ExactCount", "count": count}
            if dice.chance(0.004):
                device_request["count"] = dice.pick(HUGE)
        if dice.chance(0.3):
            device_request["tolerations"] = [self._toleration() for _ in range(dice.pick([1, 1, 2]))]
        if dice.chance(0.17):
            names = dice.pick([["memory"]] * 6 + [["share"], ["memory", "share"]])
            requests = {name if dice.chance(0.95) else f"{GPU}/{name}": dice.pick(AMOUNTS[name]) for name in names}
            device_request["capacity"] = {"requests": requests}
        return device_request

    def _toleration(self) -> Manifest:
        dice = self._dice
        effect = dice.pick(["", "", "NoSchedule", "NoExecute"])
        parts = {"effect": effect} if effect else {}
        if dice.chance(0.3):
            return {"operator": "Exists", **parts}
        key = dice.pick("kl")
        if dice.chance(0.5):
            return {"key": key, "operator": "Exists", **parts}
        return {"key": key, "operator": "Equal", "value": dice.pick("vw"), **parts}

    def _constraint(self, requests: list[Manifest]) -> Manifest:
        dice = self._dice
        attributes = LIST_ATTRIBUTES if self._all and dice.chance(0.5) else ATTRIBUTES
        found: Manifest = {dice.pick(["matchAttribute"] * 3 + ["distinctAttribute"]): dice.pick(attributes)}
        if dice.chance(0.5):
            found["requests"] = self._names(requests)
        return found

    def _claim_config(self, requests: list[Manifest], number: int) -> Manifest:
        named = {"requests": self._names(requests)} if self._dice.chance(0.6) else {}
        return named | _config(f"claim-{number}")

    def _names(self, requests: list[Manifest]) -> list[str]:
        """Some requests or alternatives of them."""
        names = [request["name"] for request in requests]
        names += [f"{one['name']}/{sub['name']}" for one in requests for sub in one.get("firstAvailable", ())]
        return self._dice.sample(names, self._dice.pick([1, 1, 2]))

    def _meta(self, name: str) -> Manifest:
        return {"name": name, "namespace": "default", "uid": f"uid-{self._seed}-{name}"}

    # Claims that are allocated.

    def allocated(self) -> list[Manifest]:
        dice = self._dice
        free = list(self._devices)
        dice.random.shuffle(free)
        return [self._held(f"old{i}", free) for i in range(dice.pick([0, 0, 0, 1, 1, 2]))]

    def _held(self, name: str, free: list[Any]) -> Manifest:
        dice = self._dice
        results = [self._result(free) for _ in range(dice.pick([1, 1, 2]))]
        device_request = {"deviceClassName": "any", "allocationMode": "ExactCount", "count": len(results)}
        if any("adminAccess" in result for result in results):
            device_request["adminAccess"] = True
        return {
            "metadata": self._meta(name),
            "spec": {"devices": {"requests": [{"name": "r0", "exactly": device_request}]}},
            "status": {
                "allocation": {"devices": {"results": results}},
                "reservedFor": [{"resource": "pods", "name": f"pod-{name}", "uid": f"uid-pod-{name}"}],
            },
        }

    def _result(self, free: list[Any]) -> Manifest:
        dice = self._dice
        driver, pool, device = free.pop() if free and dice.chance(0.95) else (GPU, "n00", {"name": "gone"})
        result: Manifest = {"request": "r0", "driver": driver, "pool": pool, "device": device["name"]}
        if dice.chance(0.08):
            return result | {"adminAccess": True}
        if device.get("allowMultipleAllocations", False) != dice.chance(0.02):
            if dice.chance(0.7):
                free.insert(dice.random.randint(0, len(free)), (driver, pool, device))
            self._shares += 1
            result |= {"shareID": f"00000000-0000-4000-8000-{self._shares:012d}"}
            consumed = {
                name: dice.pick([(one.get("requestPolicy") or {"default": one["value"]})["default"], "8Gi", "1"])
                for name, one in device.get("capacity", {}).items()
            }
            if consumed and dice.chance(0.9):
                result |= {"consumedCapacity": consumed}
        return result


def _config(about: str) -> Manifest:
    return {"opaque": {"driver": GPU, "parameters": {"about": about}}}


def _cel(expressions: list[str]) -> list[Manifest]:
    return [{"cel": {"expression": expression}} for expression in expressions]

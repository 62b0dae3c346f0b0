# SPDX-License-Identifier: Apache-2.0
"""What is the same in allocations that differ in nothing that counts, and a case in which only one allocation is left,
so that the referee decides whether it is a legal one.

Rules: every device gets an attribute that no other has, and every request a class of its own whose first selector lets
through what was chosen for it; then come the selectors of the class that was asked for, so that no other device can
make one of them err. A request for all devices stays as it is: it has one answer anyway. Of a request with alternatives
only the chosen one is left.
"""

from __future__ import annotations

from collections.abc import Sequence
from copy import deepcopy
from typing import Any

from dovetail.core import quantities
from tests.referee.dra_devices import Manifest

PIN = "pin.example.com"
Chosen = list[dict[str, list[str]]]
"""For each claim the devices ("driver/pool/device") by request ("main" or "main/sub")."""


def chosen_of(allocations: Sequence[Manifest]) -> Chosen:
    """What each claim has got."""
    found: Chosen = []
    for allocation in allocations:
        requests: dict[str, list[str]] = {}
        for result in allocation["devices"].get("results", ()):
            device = f"{result['driver']}/{result['pool']}/{result['device']}"
            requests.setdefault(result["request"], []).append(device)
        found.append(requests)
    return found


def substance(allocation: Manifest) -> Manifest:
    """An allocation without its order, its time, the ids of its shares and the ways to write an amount. Configurations
    are left out: they depend on the names of classes, which pins change (`configurations`)."""
    results = [deepcopy(result) for result in allocation["devices"].get("results", ())]
    for result in results:
        if "shareID" in result:
            result["shareID"] = "some"
        consumed = result.get("consumedCapacity", {})
        result["consumedCapacity"] = {name: quantities.parse(amount) for name, amount in consumed.items()}
    [term] = allocation.get("nodeSelector", {"nodeSelectorTerms": [{}]})["nodeSelectorTerms"]
    return {
        "results": sorted(results, key=lambda one: (one["request"], one["driver"], one["pool"], one["device"])),
        "nodes": {kind: sorted(requirements, key=repr) for kind, requirements in term.items()},
    }


def configurations(allocation: Manifest) -> list[Manifest]:
    """The configurations for the drivers, and the requests that they are for."""
    found: list[Manifest] = allocation["devices"].get("config", [])
    return found


def pinned(asked: Manifest, chosen: Chosen) -> Manifest:
    """The same as was asked, with nothing else to choose from."""
    asked = deepcopy(asked)
    for one in asked["slices"]:
        driver, pool = one["spec"]["driver"], one["spec"]["pool"]["name"]
        for device in one["spec"].get("devices", ()):
            device["attributes"][f"{PIN}/id"] = {"string": f"{driver}/{pool}/{device['name']}"}
    selectors = {one["metadata"]["name"]: one["spec"].get("selectors", []) for one in asked["classes"]}
    for claim, requests in zip(asked["claims"], chosen, strict=True):
        for request in claim["spec"]["devices"]["requests"]:
            name, device_request = request["name"], request.get("exactly")
            if device_request is None:
                [(name, device_request)] = [
                    (f"{name}/{sub['name']}", sub)
                    for sub in request["firstAvailable"]
                    if f"{name}/{sub['name']}" in requests
                ]
                request["firstAvailable"] = [device_request]
            if device_request["allocationMode"] == "ExactCount":
                asked["classes"].append(
                    _class(
                        f"{claim['metadata']['name']}-{name}",
                        requests[name],
                        selectors[device_request["deviceClassName"]],
                    )
                )
                device_request["deviceClassName"] = asked["classes"][-1]["metadata"]["name"]
    return asked


def _class(name: str, devices: list[str], selectors: list[Any]) -> Manifest:
    allowed = ", ".join(f'"{device}"' for device in devices)
    pin = {"cel": {"expression": f'device.attributes["{PIN}"].id in [{allowed}]'}}
    return {"metadata": {"name": name.replace("/", "-")}, "spec": {"selectors": [pin, *selectors]}}

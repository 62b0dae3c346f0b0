# SPDX-License-Identifier: Apache-2.0
"""The capacities that a request consumes of a device.

Rules: a capacity that is not requested is consumed by the policy's default, else as a whole. A requested amount is
rounded up to the next valid value, or to a step above the least; if the result is not valid, or exceeds the most, the
device does not match. Each share consumes of all capacities.
Source: dynamic-resource-allocation/structured, consumable_capacity (1.37). Amounts are in thousandths; where a range
has amounts whose thousandths do not fit into 64 bits, it is computed in whole units.
"""

from __future__ import annotations

from dovetail.core.dra.types import Capacity, Device, RequestPolicy

_MOST = 2**63 - 1


class CapacityError(Exception):
    """An amount that cannot be computed with. It ends the allocation on the node, whatever other devices there are."""


Draw = tuple[int, ...]
"""What a share consumes of each capacity of its device, milli, in the order of `Device.capacity`."""


def written(qualified: str, capacity: Capacity) -> str:
    """The name of a capacity as requests and results use it."""
    return capacity.written or qualified


def draw_of(device: Device, driver: str, amounts: tuple[tuple[str, int], ...]) -> Draw | None:
    """What a request for these amounts consumes of the device; None where the device does not match. Raises
    CapacityError."""
    asked = dict(amounts)
    drawn = []
    for name, capacity in device.capacity:
        amount = asked.pop(written(name, capacity), None)
        if amount is None and not capacity.written:
            amount = asked.pop(name.removeprefix(f"{driver}/"), None)
        drawn.append(amount)
    if asked:
        return None
    taken = tuple(
        _taken(name, capacity, amount) for (name, capacity), amount in zip(device.capacity, drawn, strict=True)
    )
    valid = all(
        milli <= capacity.milli and _is_valid(milli, capacity.policy)
        for milli, (_, capacity) in zip(taken, device.capacity, strict=True)
    )
    return taken if valid else None


def _taken(name: str, capacity: Capacity, asked: int | None) -> int:
    policy = capacity.policy
    if asked is None:
        taken = policy.default_milli if policy is not None else capacity.milli
    elif policy is None:
        taken = asked
    elif policy.least_milli is not None:
        taken = _stepped(name, policy, asked)
    else:
        taken = next((valid for valid in policy.valid_milli if asked <= valid), asked)
    if taken < 0:
        raise CapacityError(f'capacity "{name}": capacity value is negative')
    return taken


def _stepped(name: str, policy: RequestPolicy, asked: int) -> int:
    assert policy.least_milli is not None
    if asked < policy.least_milli:
        return policy.least_milli
    if policy.step_milli is None:
        return asked
    unit = _unit(policy)
    least, step, wanted = (-(-milli // unit) for milli in (policy.least_milli, policy.step_milli, asked))
    taken = least + -(-(wanted - least) // step) * step
    if taken > _MOST:
        raise CapacityError(f'capacity "{name}": the request cannot be represented in the device\'s range arithmetic')
    return taken * unit


def _unit(policy: RequestPolicy) -> int:
    """The number of thousandths in the unit in which the range is computed."""
    parts = (policy.least_milli, policy.most_milli, policy.step_milli)
    return 1 if all(part is None or part <= _MOST for part in parts) else 1000


def _is_valid(taken: int, policy: RequestPolicy | None) -> bool:
    if policy is None or taken == policy.default_milli:
        return True
    if policy.least_milli is not None:
        if policy.most_milli is not None and taken > policy.most_milli:
            return False
        if policy.step_milli is None:
            return True
        unit = _unit(policy)
        least, step, rounded = (-(-milli // unit) for milli in (policy.least_milli, policy.step_milli, taken))
        return (rounded - least) % step == 0
    return not policy.valid_milli or taken in policy.valid_milli

# SPDX-License-Identifier: Apache-2.0
"""What a scheduler wrote down when it bound a pod, as annotations of the pod."""

from __future__ import annotations

from typing import Any

import msgspec

from dovetail.kube.translate.annotations import BOUND, DEVICES
from dovetail.kube.translate.bound import Bound


def text_of(record: Bound) -> str:
    """The record as the text of its annotation."""
    return msgspec.json.encode(record).decode()


def bound(uid: str, devices: str = "", *, queue: str = "default", **fields: Any) -> dict[str, str]:
    """The record of a pod, and the devices where some were chosen. `fields` are those of `Bound`."""
    record = text_of(Bound(1, uid, queue, devices=devices, **fields))
    return {BOUND: record} | ({DEVICES: devices} if devices else {})

# SPDX-License-Identifier: Apache-2.0
"""The values of the fields of the device plugin's configuration: how each is checked.

Rules: a function returns the value as `config` keeps it, or raises BadSetting with the rule and the nearest valid one.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from msgspec import Struct

from dovetail.core.devices.mig import names
from dovetail.core.model import GPU

ENVVAR, VOLUME_MOUNTS, CDI_ANNOTATIONS, CDI_CRI = "envvar", "volume-mounts", "cdi-annotations", "cdi-cri"
DEVICE_LIST_STRATEGIES = (ENVVAR, VOLUME_MOUNTS, CDI_ANNOTATIONS, CDI_CRI)
_PREFIX = "nvidia.com/"
_MOST_REPLICAS = 1000
_MOST_HCAS = 10_000
_INTERFACE = re.compile(r"[^\s/:,]{1,15}")
_RDMA_NAME = re.compile(r"[a-zA-Z0-9](?:[a-zA-Z0-9_]{0,61}[a-zA-Z0-9])?")
_RDMA_PREFIX = re.compile(r"[a-z0-9](?:[a-z0-9.-]{0,251}[a-z0-9])?")


class BadSetting(ValueError):
    """The value breaks `rule`; `at` is the place below the field, such as `[0].name`."""

    def __init__(self, rule: str, at: str = "") -> None:
        super().__init__(rule)
        self.rule, self.at = rule, at


class RdmaResource(Struct, frozen=True):
    """The resource `name` (`rdma/hca_a`) is offered `most` times. `selectors` has the allowed values by selector."""

    name: str
    most: int
    selectors: Mapping[str, tuple[str, ...]]


def one_of(*allowed: str) -> Callable[[Any], str]:
    def parse(value: Any) -> str:
        if not isinstance(value, str) or value not in allowed:
            raise BadSetting(f"must be one of {', '.join(allowed)}{nearest(value, allowed)}")
        return value

    return parse


def truth(value: Any) -> bool:
    if not isinstance(value, bool):
        raise BadSetting("must be true or false")
    return value


def text(value: Any) -> str:
    if not isinstance(value, str) or not value:
        raise BadSetting("must be a non-empty string")
    return value


def interface_name(value: Any) -> str:
    if not isinstance(value, str) or not _INTERFACE.fullmatch(value):
        raise BadSetting(
            "must be the name of a network interface, of 1 to 15 characters without `/`, `:`, `,` and spaces"
        )
    return value


def path(value: Any) -> Path:
    found = Path(text(value))
    if not found.is_absolute():
        raise BadSetting(f"must be an absolute path; nearest valid value: {Path('/') / found}")
    return found


def strategies(value: Any) -> tuple[str, ...]:
    parse, listed = one_of(*DEVICE_LIST_STRATEGIES), value if isinstance(value, list) else [value]
    found = tuple(dict.fromkeys(parse(one) for one in listed))
    if not found:
        raise BadSetting(f"must name at least one of {', '.join(DEVICE_LIST_STRATEGIES)}")
    if ENVVAR in found and VOLUME_MOUNTS in found:
        raise BadSetting(f"{ENVVAR} and {VOLUME_MOUNTS} set NVIDIA_VISIBLE_DEVICES to different values: leave one out")
    return found


def anything(value: Any) -> Any:
    return value


def channels(value: Any) -> tuple[int, ...]:
    if not isinstance(value, list) or value not in ([], [0]):
        raise BadSetting("must be [] or [0]: one channel for all containers")
    return tuple(value)


class _Resource(NamedTuple):
    name: str
    replicas: int


def resources(value: Any) -> tuple[_Resource, ...]:
    if not isinstance(value, list):
        raise BadSetting("must be a list of {name, replicas}")
    found: dict[str, _Resource] = {}
    for i, entry in enumerate(value):
        at = f"[{i}]"
        _known_keys(entry, at, _RESOURCE_FIELDS, "must have name and replicas")
        name = _shareable(entry.get("name"), at)
        replicas = _whole(entry.get("replicas"), f"{at}.replicas", 1, _MOST_REPLICAS)
        if name in found:
            raise BadSetting(f"{name} is shared twice", f"{at}.name")
        found[name] = _Resource(name, replicas)
    return tuple(found.values())


_RESOURCE_FIELDS = ("name", "replicas", "rename", "devices")


def _shareable(value: Any, at: str) -> str:
    name = value if isinstance(value, str) else ""
    name = name if name.startswith(_PREFIX) or not name else _PREFIX + name
    read = names.read(name)
    if name != GPU and (read is None or read.shared):
        near = GPU if difflib.SequenceMatcher(None, name, GPU).ratio() > 0.8 else names.FORM
        raise BadSetting(f"must be {GPU} or {names.FORM}; nearest valid value: {near}", f"{at}.name")
    return name


def interval(value: Any) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or value < 0:
        raise BadSetting("must be a whole number of seconds from 0")
    return value


def _whole(value: Any, at: str, least: int, most: int) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= most:
        raise BadSetting(f"must be a whole number from {least} to {most}", at)
    return value


def _known_keys(value: Any, at: str, keys: tuple[str, ...], rule: str = "") -> dict[str, Any]:
    if not isinstance(value, dict):
        raise BadSetting(rule or f"must have fields of {', '.join(keys)}", at)
    for key in value:
        if key not in keys:
            raise BadSetting(f"is not a known field{nearest(str(key), keys)}", f"{at}.{key}")
    return value


def _texts(value: Any, at: str) -> tuple[str, ...]:
    if not isinstance(value, list) or not all(isinstance(one, str) and one for one in value):
        raise BadSetting("must be a list of non-empty strings; a PCI id needs quotes", at)
    return tuple(value)


def rdma(value: Any) -> tuple[RdmaResource, ...]:
    if not isinstance(value, list) or not value:
        raise BadSetting(f"must be a list with at least one entry of {', '.join(_RDMA_FIELDS)}")
    found: dict[str, RdmaResource] = {}
    for i, listed in enumerate(value):
        at = f"[{i}]"
        one = _rdma_resource(_known_keys(listed, at, _RDMA_FIELDS), at)
        if one.name in found or one.name == GPU:
            raise BadSetting(f"{one.name} is offered already: use another name", f"{at}.resourceName")
        found[one.name] = one
    return tuple(found.values())


def _rdma_resource(entry: dict[str, Any], at: str) -> RdmaResource:
    name, prefix = entry.get("resourceName"), entry.get("resourcePrefix") or "rdma"
    if not isinstance(name, str) or not _RDMA_NAME.fullmatch(name):
        raise BadSetting("must be up to 63 letters, digits and _, and begin and end without _", f"{at}.resourceName")
    if not isinstance(prefix, str) or not _RDMA_PREFIX.fullmatch(prefix) or prefix.endswith("kubernetes.io"):
        raise BadSetting("must be a domain in lower case, not kubernetes.io", f"{at}.resourcePrefix")
    most = _whole(entry.get("rdmaHcaMax"), f"{at}.rdmaHcaMax", 0, _MOST_HCAS)
    listed = _known_keys(entry.get("selectors") or {}, f"{at}.selectors", RDMA_SELECTORS)
    texts = {key: _texts(values or [], f"{at}.selectors.{key}") for key, values in listed.items()}
    selectors = {key: values for key, values in texts.items() if values}
    devices = _texts(entry.get("devices") or [], f"{at}.devices")
    if bool(selectors) == bool(devices):
        raise BadSetting("must have either selectors or devices, with at least one value", at)
    return RdmaResource(f"{prefix}/{name}", most, selectors or {"ifNames": devices})


RDMA_SELECTORS = ("vendors", "deviceIDs", "drivers", "ifNames", "linkTypes")
_RDMA_FIELDS = ("resourceName", "resourcePrefix", "rdmaHcaMax", "selectors", "devices")


def nearest(value: Any, valid: Iterable[str]) -> str:
    near = difflib.get_close_matches(str(value), list(valid), n=1, cutoff=0)
    return f"; nearest valid value: {near[0]}" if near else ""

# SPDX-License-Identifier: Apache-2.0
"""Redacted snapshots: no name is left, every decision is the same, and each field of what is read is classified."""

from __future__ import annotations

import json
import re
import types
import typing
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from dovetail.core.cycle import enter
from dovetail.core.policy import Policy
from dovetail.core.state import State
from dovetail.kube.api.resources import Served
from dovetail.kube.gangs.owners import OWNER_KINDS
from dovetail.kube.manifests import cluster
from dovetail.kube.manifests.documents import read_documents
from dovetail.kube.reading.redaction import NAME_FIELDS, PUBLIC_FIELDS, redacted
from dovetail.kube.translate.sources import sources
from dovetail.kube.translate.translator import Translator
from dovetail.views.free import free
from dovetail.views.queue_positions import queue_positions
from dovetail.views.queue_shares import share
from tests.paths import ROOT

NOW = 1_795_000_000_000
WORDS = st.text("abzAZ019_", min_size=1, max_size=3)
NAMES = st.lists(WORDS | st.sampled_from(["default", "dovetail", "kube", "system", "e", "l"]), min_size=1, max_size=3)
ANSWERS: dict[str, Callable[[State], object]] = {
    "queue": lambda state: queue_positions(state, NOW),
    "free": free,
    "share": lambda state: share(state, NOW, ""),
}


def pod(namespace: str, name: str, **metadata: Any) -> dict[str, Any]:
    return {"apiVersion": "v1", "kind": "Pod", "metadata": {"namespace": namespace, "name": name, **metadata}}


def named(names: dict[str, str], text: str) -> str:
    """The text with each pseudonym replaced by its word again."""
    back = sorted(names, key=len, reverse=True)
    return re.sub(rf"(?<![a-z])({'|'.join(map(re.escape, back))})(?![a-z0-9])", lambda found: names[found[0]], text)


@given(st.lists(st.tuples(NAMES, NAMES), min_size=2, max_size=6), st.sampled_from(["-", "."]))
@pytest.mark.slow
def test_pseudonyms_have_the_order_of_the_names(pairs: list[tuple[list[str], list[str]]], separator: str) -> None:
    keys = [(separator.join(first), separator.join(second)) for first, second in pairs]
    result = redacted(pod(*key) for key in keys)
    new = [(one["metadata"]["namespace"], one["metadata"]["name"]) for one in result.objects]
    assert len(set(new)) == len(set(keys))
    for order in (lambda key: key, "/".join, lambda key: key[1]):
        ranks = [[sorted(set(map(order, found))).index(order(key)) for key in found] for found in (keys, new)]
        assert ranks[0] == ranks[1]


@pytest.mark.parametrize("view", ANSWERS)
def test_every_decision_is_the_same(view: str, tmp_path: Path) -> None:
    original = ROOT / "docs/examples/two-teams.yaml"
    result = redacted(one.value for one in read_documents([str(original)]))
    copy = tmp_path / "redacted.json"
    copy.write_bytes(msgspec.json.encode({"apiVersion": "v1", "kind": "List", "items": result.objects}))
    shown = []
    for path in (original, copy):
        state = State(Policy())
        enter(state, cluster.read([str(path)], "dovetail").events, NOW)
        shown.append(msgspec.json.encode(ANSWERS[view](state)).decode())
    assert shown[0] != shown[1] or view == "free"
    assert json.loads(named(result.names, shown[1])) == json.loads(shown[0])


SECRET = """
apiVersion: v1
kind: Pod
metadata:
  name: zebra-0
  namespace: yak
  uid: 0f8fad5b-d9cb-469f-a165-70867728950e
  creationTimestamp: "2026-01-31T12:00:00Z"
  labels: {whale: walrus-7, acme.example/vole: viper, nvidia.com/gpu.product: NVIDIA-H100-80GB-HBM3}
  annotations:
    dovetail.dev/queue: urchin
    dovetail.dev/max-runtime: 2h
    dovetail.dev/topology-required: acme.example/tapir,topology.kubernetes.io/zone,rack
    dovetail.dev/bound: '{"version":1,"queue":"urchin","gang":"podgroup.scheduling.k8s.io/yak/swan"}'
    acme.example/note: '["raven", {"quail": 3}]'
    acme.example/prose: The owner is Panda (see panda@otter.example).
    acme.example/broken: '{"newt'
  ownerReferences: [{apiVersion: batch/v1, kind: Job, name: zebra, uid: 0f8fad5b-d9cb-469f-a165-70867728950f}]
spec:
  nodeName: moose-1.acme.example
  schedulerName: dovetail
  nodeSelector: {acme.example/lynx: koala, kubernetes.io/arch: amd64, kubernetes.io/hostname: moose-1}
  initContainers: [{name: jackal, image: "registry.k8s.io/ibex/hyena:v3"}]
  containers: [{name: jackal, image: "ibex.example/hyena:v3", resources: {limits: {nvidia.com/gpu: "8", memory: 64Gi}}}]
  tolerations: [{key: gecko, value: "ferret", effect: NoSchedule}, {key: nvidia.com/gpu, value: present}]
  affinity:
    nodeAffinity:
      requiredDuringSchedulingIgnoredDuringExecution:
        nodeSelectorTerms:
        - matchExpressions:
          - {key: nvidia.com/gpu.product, operator: In, values: [NVIDIA-H100-80GB-HBM3]}
          - {key: acme.example/emu, operator: In, values: [dingo, "7"]}
"""
SECRETS = """
zebra yak whale walrus acme vole viper urchin tapir swan raven quail panda otter moose lynx koala jackal ibex hyena
gecko ferret emu dingo newt prose
"""
PUBLIC = (
    "NVIDIA-H100-80GB-HBM3",
    "2h",
    "topology.kubernetes.io/zone,rack",
    "batch/v1",
    "amd64",
    "64Gi",
    "present",
    "2026-",
)


def test_no_name_is_left_and_what_has_a_meaning_stays() -> None:
    (one,), names = (found := redacted([yaml.safe_load(SECRET)])).objects, found.names
    text = json.dumps(one)
    assert [name for name in SECRETS.split() if name in text.lower()] == []
    assert [word for word in PUBLIC if word not in text] == []
    assert one["metadata"]["ownerReferences"][0]["name"] == one["metadata"]["name"].removesuffix("-0")
    assert (
        json.loads(one["metadata"]["annotations"]["dovetail.dev/bound"])["queue"]
        == (one["metadata"]["annotations"]["dovetail.dev/queue"])
    )
    assert set(names.values()) >= {"zebra", "yak", "walrus"}


def test_each_field_of_what_is_read_is_classified() -> None:
    kinds = [one.kind for one in sources(Translator(), Served(frozenset())) if not one.followed]
    kinds += [owner.wire for owner in OWNER_KINDS]
    found = {field for kind in kinds for field in texts(kind)}
    assert len(found) > 100
    assert sorted(found - PUBLIC_FIELDS - NAME_FIELDS) == []
    assert {"requests", "capacity"} >= PUBLIC_FIELDS & NAME_FIELDS


def texts(kind: Any, field: str = "", depth: int = 0) -> Iterator[str]:
    """The names of the fields that hold strings."""
    arguments = typing.get_args(kind)
    if kind is str and field:
        yield field
    elif isinstance(kind, type) and issubclass(kind, msgspec.Struct) and depth < 16:
        hints = typing.get_type_hints(kind)
        for one in msgspec.structs.fields(kind):
            yield from texts(hints[one.name], one.encode_name, depth + 1)
    elif typing.get_origin(kind) is dict:
        # The keys are those of labels, of resources, or of parts of the hardware.
        yield from (one for one in texts(arguments[1], "", depth))
    elif isinstance(kind, types.UnionType) or arguments:
        for argument in arguments:
            yield from texts(argument, field, depth)


def test_by_what_pods_of_serving_stacks_know_their_gang_stays() -> None:
    labels = {"roleset-name": "zebra", "role-name": "yak", "llm-d.ai/role": "prefill", "grove.io/podgang": "zebra-0"}
    ((one,), names) = (found := redacted([{"metadata": {"labels": labels}}])).objects, found.names
    kept = one["metadata"]["labels"]
    assert list(kept) == list(labels) and kept["llm-d.ai/role"] == "prefill"
    assert kept["grove.io/podgang"] == f"{kept['roleset-name']}-0" and names[kept["roleset-name"]] == "zebra"

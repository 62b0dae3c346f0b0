# SPDX-License-Identifier: Apache-2.0
"""The edits of manifests that carry out advice."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from dovetail.advice.lint.source import documents
from dovetail.advice.sizing.advise import advice_for
from dovetail.advice.sizing.changes import fixed_text
from dovetail.advice.sizing.rule import ChangeKind, JobAdvice, SizeChange
from tests.advice.sizing.jobs import device, job

MANIFEST = """\
# The server.
apiVersion: apps/v1
kind: Deployment
metadata: {name: serve, namespace: ml}
spec:
  template:
    spec:
      containers:
        - name: main
          resources:
            requests: {cpu: "4", memory: 8Gi}
            limits:
              nvidia.com/gpu: 1  # one
        - name: proxy
          resources: {requests: {cpu: 100m}}
"""


def _advised(change: SizeChange, name: str = "serve") -> JobAdvice:
    found = advice_for(job(device([(60, 192)]), kind="Deployment", name=name))
    return replace(found, advice=(replace(found.advice[0], change=change),))


def _fixed(text: str, change: SizeChange, name: str = "serve") -> tuple[str, list[str], list[str]]:
    texts, done, refused = [], [], []
    for document in documents("f.yaml", text):
        part, carried_out, not_made = fixed_text(document, [_advised(change, name)])
        texts.append(part)
        done += carried_out
        refused += not_made
    return "".join(texts), done, refused


@pytest.mark.parametrize(
    ("change", "before", "after"),
    [
        (SizeChange("mig", resource="nvidia.com/mig-1g.10gb"), "nvidia.com/gpu: 1", "nvidia.com/mig-1g.10gb: 1"),
        (SizeChange("cpu", 2), '{cpu: "4", memory: 8Gi}', '{cpu: "8", memory: 8Gi}'),
        (SizeChange("host", 2000, value="3Gi"), '{cpu: "4", memory: 8Gi}', '{cpu: "2", memory: 3Gi}'),
        (SizeChange("host", 6000, value="3Gi"), "memory: 8Gi}", "memory: 3Gi}"),
        (
            SizeChange("select", key="example.com/type", value="g6.xlarge"),
            "{requests: {cpu: 100m}}\n",
            "{requests: {cpu: 100m}}\n      nodeSelector:\n        example.com/type: g6.xlarge\n",
        ),
        (
            SizeChange("annotate", key="dovetail.dev/nvlink", value="required"),
            "{requests: {cpu: 100m}}\n",
            "{requests: {cpu: 100m}}\n    metadata:\n      annotations:\n        dovetail.dev/nvlink: required\n",
        ),
    ],
)
def test_only_the_field_is_changed(change: SizeChange, before: str, after: str) -> None:
    assert _fixed(MANIFEST, change) == (MANIFEST.replace(before, after), ["ml/serve"], [])


@pytest.mark.parametrize("kind", ["select", "annotate"])
def test_what_is_there_already_is_not_written_again(kind: ChangeKind) -> None:
    change = SizeChange(kind, key="example.com/a", value="b")
    once = _fixed(MANIFEST, change)
    assert once[1] == ["ml/serve"] and "example.com/a: b" in once[0]
    assert _fixed(once[0], change) == (once[0], [], [])
    other = replace(change, value="c")
    assert _fixed(once[0], other)[0] == once[0].replace("example.com/a: b", "example.com/a: c")


def test_fewer_gpus_and_a_share() -> None:
    eight = MANIFEST.replace("gpu: 1", 'gpu: "8"')
    assert _fixed(eight, SizeChange("gpus", 2))[0] == MANIFEST.replace("gpu: 1", 'gpu: "2"')
    text, done, _ = _fixed(MANIFEST, SizeChange("share", 5689, "nvidia.com/gpu.shared"))
    assert (
        "nvidia.com/gpu.shared: 1  # one" in text and "dovetail.dev/gpu-memory: 5689Mi" in text and done == ["ml/serve"]
    )


PARTS = MANIFEST.replace("nvidia.com/gpu: 1", "nvidia.com/gpu.shared: 1").replace(
    "  template:\n", "  template:\n    metadata: {annotations: {dovetail.dev/gpu-fraction: '0.5'}}\n"
)


def test_another_instance_and_a_smaller_part() -> None:
    before = MANIFEST.replace("nvidia.com/gpu: 1", "nvidia.com/mig-3g.40gb: 1")
    after, done, _ = _fixed(before, SizeChange("instance", resource="nvidia.com/mig-1g.10gb"))
    assert (after, done) == (before.replace("3g.40gb", "1g.10gb"), ["ml/serve"])
    part = SizeChange("part", 4552, value="0.1")
    assert _fixed(PARTS, part) == (PARTS.replace("'0.5'", "'0.1'"), ["ml/serve"], [])
    by_memory = PARTS.replace("gpu-fraction: '0.5'", "gpu-memory: 40Gi")
    assert _fixed(by_memory, part)[0] == by_memory.replace("40Gi", "4552Mi")
    for other in (MANIFEST, PARTS.replace("gpu-fraction", "other")):
        assert _fixed(other, part) == (other, [], [])
    assert _fixed(MANIFEST, SizeChange("instance", resource="nvidia.com/mig-1g.10gb")) == (MANIFEST, [], [])


def test_a_container_without_cpus_gets_some() -> None:
    bare = MANIFEST.replace('            requests: {cpu: "4", memory: 8Gi}\n', "")
    assert 'cpu: "8"' in _fixed(bare, SizeChange("cpu", 2))[0]
    assert 'cpu: "3"' in _fixed(MANIFEST.replace('"4"', "1500m"), SizeChange("cpu", 2))[0]


@pytest.mark.parametrize(
    "text",
    [
        MANIFEST.replace("name: serve", "name: other"),
        MANIFEST.replace("namespace: ml", "namespace: web"),
        MANIFEST.replace("nvidia.com/gpu: 1", "nvidia.com/gpu: 2"),
        MANIFEST.replace("{requests: {cpu: 100m}}", "{limits: {nvidia.com/gpu: 1}}"),
        "kind: [\n",
        "",
    ],
    ids=["another job", "another namespace", "two GPUs", "two containers", "no YAML", "nothing"],
)
def test_what_is_not_the_job_or_not_clear_is_left(text: str) -> None:
    assert _fixed(text, SizeChange("mig", resource="nvidia.com/mig-1g.10gb")) == (text, [], [])


def test_a_manifest_without_a_namespace_is_meant() -> None:
    text = MANIFEST.replace(", namespace: ml", "")
    assert _fixed(text, SizeChange("gpus", 1))[1] == []  # It has one already.
    assert _fixed(text, SizeChange("cpu", 2))[1] == ["ml/serve"]


def test_a_shared_anchor_is_not_changed() -> None:
    text = MANIFEST.replace("limits:\n", "limits: &amounts\n").replace(
        "{requests: {cpu: 100m}}", "{requests: *amounts}"
    )
    assert _fixed(text.replace("proxy", "two"), SizeChange("gpus", 1)) == (text.replace("proxy", "two"), [], [])

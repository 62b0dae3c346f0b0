# SPDX-License-Identifier: Apache-2.0
"""The rule about names of GPU products in selectors: misspelt or ambiguous.

Rules: with nodes, a name is right if a node has it. Without nodes, an unknown name is reported only if it is another
spelling or a part of a known one. Names of older drivers (`A100-SXM4-40GB`) are right, and so are other names of the
vendor (`NVIDIA-T4`): without GPU Feature Discovery, administrators set the label by hand. GKE has names of its own,
some with `tesla` and some without: another spelling or a part of one is reported, other names may be newer.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Collection, Iterator

from dovetail.advice import gpus
from dovetail.advice.lint.edits import put
from dovetail.advice.lint.field import Field
from dovetail.advice.lint.pods import Template
from dovetail.advice.lint.rule import Facts, Rule, RuleMatch, Severity
from dovetail.advice.lint.selection import node_terms
from dovetail.core.bounded_cache import remembered
from dovetail.core.devices.mig.products import GEOMETRIES
from dovetail.core.devices.products import PRODUCTS

PRODUCT = "nvidia.com/gpu.product"
GKE = "cloud.google.com/gke-accelerator"
_OF_GKE = (
    "nvidia-a100-80gb", "nvidia-b200", "nvidia-gb200", "nvidia-h100-80gb", "nvidia-h100-mega-80gb", "nvidia-h200-141gb",
    "nvidia-l4", "nvidia-rtx-pro-6000", "nvidia-tesla-a100", "nvidia-tesla-k80", "nvidia-tesla-p100", "nvidia-tesla-p4",
    "nvidia-tesla-t4", "nvidia-tesla-v100",
)  # fmt: skip
"""https://cloud.google.com/kubernetes-engine/docs/concepts/gpus."""
_SHAPE = re.compile(r"(.*?)(-SHARED|-MIG-.*)?")
_OF_GEOMETRIES = ("-".join(name.split()) for one in GEOMETRIES for name in one.products if name.startswith("NVIDIA "))
_KNOWN = frozenset((*(gpu.name for gpu in gpus.GPUS), *(n for one in PRODUCTS for n in one.names), *_OF_GEOMETRIES))
_VENDORS = {"nvidia", "tesla"}
_MODEL = re.compile(r"[abghklptv]{1,2}\d{1,3}s?")
_WORD = 5
"""The least length at which a similar word counts as misspelt."""


def meant(value: str, labels: Collection[str]) -> tuple[tuple[str, ...], bool]:
    """The labels that a product name probably means, and whether this is certain; none if the name is right, or if no
    similar one is known. `labels` are the product labels of the nodes, empty if unknown."""
    base, suffix = _parts(value)
    carried = {label: _parts(label)[0] for label in labels}
    if value in carried:
        return (), False
    same = tuple(sorted(label for label, product in carried.items() if product in (base, f"NVIDIA-{base}")))
    if same:
        return same, len(same) == 1
    if base in _KNOWN or f"NVIDIA-{base}" in _KNOWN:
        return (), False
    names = sorted({*_KNOWN, *carried.values()})
    sure = [name for name in names if _same_words(base, name) or _typing(base, name)]
    vendors = [name for name in names if _bare(name) == _bare(base)] if labels else []
    found = sure or vendors or [name for name in names if _part_of(base, name)] or _of_model(base)
    here = [label for label, product in carried.items() if product in found]
    if here:
        return tuple(sorted(here)), len(here) == 1
    return tuple(name + suffix for name in found), len(sure) == 1


def _parts(label: str) -> tuple[str, str]:
    """(product, suffix). GPU Feature Discovery adds the suffix for shared and MIG GPUs."""
    found = _SHAPE.fullmatch(label.strip())
    return (found[1], found[2] or "") if found else (label, "")


def _words(name: str) -> list[str]:
    return [word for word in re.split(r"[^a-z0-9]+", name.casefold()) if word]


def _bare(name: str) -> set[str]:
    return set(_words(name)) - _VENDORS


def _same_words(name: str, known: str) -> bool:
    """Whether the names have the same words in another order, or the same letters split into other words."""
    ours, theirs = _words(name), _words(known)
    return sorted(ours) == sorted(theirs) or "".join(ours) == "".join(theirs)


def _typing(name: str, known: str) -> bool:
    """Whether the names differ only in swapped letters or similar long words."""
    ours, theirs = _words(name), _words(known)
    return len(ours) == len(theirs) and all(_near(a, b) for a, b in zip(ours, theirs, strict=True))


def _near(word: str, known: str) -> bool:
    swapped = sorted(word) == sorted(known) and re.sub(r"\D", "", word) == re.sub(r"\D", "", known)
    long = len(known) >= _WORD and word.isalpha() and known.isalpha()
    return word == known or swapped or (long and difflib.SequenceMatcher(None, word, known).ratio() >= 0.8)


def _part_of(name: str, known: str) -> bool:
    return any(_MODEL.fullmatch(word) for word in _bare(name)) and _bare(name) < _bare(known)


def _of_model(name: str) -> list[str]:
    """The products with this model name of Dovetail, if it differs from the label without the brand."""
    wanted = "-".join(word for word in _words(name) if word not in _VENDORS)
    return [gpu.name for gpu in gpus.GPUS if gpu.model.casefold() == wanted and _bare(gpu.name) != _bare(name)]


def _misnamed(pod: Template, facts: Facts) -> Iterator[RuleMatch]:
    labels = sorted({node.labels[PRODUCT] for node in facts.nodes or () if PRODUCT in node.labels})
    for value in _selected(pod, PRODUCT):
        found, sure = meant(value.text, labels)
        if found:
            whose = "no node has a GPU with the name" if labels else "GPU Feature Discovery names no GPU"
            yield RuleMatch(
                value,
                f"{whose} {value.text}: did you mean {' or '.join(found)}?",
                (put(value, found[0]),) if sure else (),
                guess=not (labels or sure),
            )

    carried = {node.labels[GKE] for node in facts.nodes or () if GKE in node.labels}
    for value in _selected(pod, GKE):
        found, sure = _meant_by_gke(value.text)
        if found and value.text not in carried:
            message = f"GKE has no accelerator {value.text}: did you mean {' or '.join(found)}?"
            yield RuleMatch(value, message, (put(value, found[0]),) if sure else ())


@remembered(64)
def _meant_by_gke(name: str) -> tuple[tuple[str, ...], bool]:
    """As `meant`."""
    if name in _OF_GKE or not _bare(name):
        return (), False
    equal = tuple(one for one in _OF_GKE if _bare(one) == _bare(name) or _same_words(name, one) or _typing(name, one))
    return equal or tuple(one for one in _OF_GKE if _part_of(name, one)), len(equal) == 1


def _selected(pod: Template, key: str) -> Iterator[Field]:
    """The fields with names of products that the pod selects or avoids by the label."""
    value = pod.selector.at(key)
    if value.text:
        yield value
    for term, _ in node_terms(pod):
        for entry in term.at("matchExpressions").each():
            if entry.at("key").text == key and entry.at("operator").text in ("In", "NotIn"):
                yield from (value for value in entry.at("values").each() if value.text)


_POD = """\
apiVersion: v1
kind: Pod
metadata: {name: train, labels: {team: vision}}
spec:
  restartPolicy: Never
  priorityClassName: batch
  nodeSelector: {nvidia.com/gpu.product: %s}
  containers:
  - name: train
    image: registry.example.com/train:1.4
    resources: {limits: {nvidia.com/gpu: 1}}
"""

RULES = (
    Rule(
        id="G34",
        level=Severity.WARNING,
        title="The name of a GPU product is misspelt, or matches several products",
        effect=(
            "Labels must be equal. The pod stays Pending: `node(s) didn't match Pod's node affinity/selector`; a "
            "NotIn does not exclude the product."
        ),
        bad=_POD % "NVIDIA-A100",
        good=_POD % "NVIDIA-A100-SXM4-80GB",
        template=_misnamed,
        fixable=True,
        source="https://github.com/NVIDIA/k8s-device-plugin: docs/gpu-feature-discovery/README.md",
    ),
)

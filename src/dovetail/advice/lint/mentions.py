# SPDX-License-Identifier: Apache-2.0
"""Words without which a rule finds nothing in a document: most documents have few of them, and most rules are then not
applied. A rule that is not in the table, or that also depends on what other documents have, is applied to all.

A text with escapes in double quotes may spell a word in another way: all rules are applied to it.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import lru_cache

from dovetail.advice.lint.rule import Rule

_GPUS = ("nvidia.com/",)
_SPOT = ("spot", "SPOT", "preemptible")
MENTIONS: dict[str, tuple[str, ...]] = {
    "G01": ("requests",),
    "G02": ("requests",),
    "G03": _GPUS,
    "G05": ("alpha.kubernetes.io/nvidia-gpu",),
    "G06": ("mig",),
    "G07": ("matchExpressions", "matchFields"),
    "G08": ("matchExpressions", "matchFields"),
    "G09": ("tolerations",),
    "G10": ("nodeSelector", "nodeAffinity", "topologyKey", "nodeName"),
    "G11": _GPUS,
    "G12": ("minAvailable", "minMember", "minCount", "dovetail.dev/gang"),
    "G13": ("schedulerName", "/group-name", "dovetail.dev/gang"),
    "G14": _GPUS,
    "G15": ("ResourceQuota",),
    "G16": (".shared",),
    "G20": _GPUS,
    "G21": ("NCCL_",),
    "G22": ("NCCL_", "GLOO_"),
    "G23": ("hostNetwork",),
    "G24": ("privileged", "hostPID", "hostPath"),
    "G25": ("VISIBLE_DEVICES",),
    "G27": ("nvidia.com/mig-",),
    "G28": _GPUS,
    "G29": _SPOT,
    "G31": ("ttlSecondsAfterFinished", *_SPOT),
    "G34": ("gpu.product", "gke-accelerator"),
    "G36": ("livenessProbe", "startupProbe"),
    "G38": ("topologySpreadConstraints",),
    "G40": ("jupyter", "notebook", "Notebook", "code-server", "sleep", "/dev/null"),
    "G41": ("preStop", "dovetail.dev/checkpoint-interval"),
    "G42": ("initContainers",),
    "G43": ("runAsUser",),
    "G46": ("dovetail", "PodGroup"),
    "G47": ("claims", "deviceClassName"),
    "G48": ("nproc", "tensor", "-tp", "num-shard", "pipeline", "-pp", "slotsPerWorker", "numProcPerNode", "num-gpus"),
    "G49": ("vllm", "sglang", "text-generation", "nvcr.io/nim"),
    "G51": ("instance-type", "accelerator-count", "instance-gpu-count"),
    "G52": ("nnodes", "kubeflow.org"),
    "G53": ("$",),
    "G54": ("volumeMounts", "volumeDevices"),
    "G56": ("nnodes", "localhost", "127.0.0.1", "::1"),
    "G57": ("NVIDIA_DRIVER_CAPABILITIES",),
    "G58": ("claimName",),
    "G60": ("gpu-memory-asleep",),
}
"""By rule; one of its words is enough."""
_WORDS = tuple(dict.fromkeys(word for words in MENTIONS.values() for word in words))
_LONGEST = 64
"""Characters of a piece of text whose words are remembered."""


def applicable(rules: Iterable[Rule], text: str) -> list[Rule]:
    """The rules that may find something in a document of this text; all of them where it is unknown."""
    if not text or ("\\" in text and '"' in text):
        return list(rules)
    useless = _useless(_words_in(text))
    return [rule for rule in rules if rule.id not in useless]


def _words_in(text: str) -> frozenset[str]:
    """The words of rules in a text, by its pieces between blanks, which no word has: documents share most of them."""
    found: set[str] = set()
    for piece in set(text.split()):
        words = _remembered(piece) if len(piece) <= _LONGEST else _words_of(piece)
        if words:
            found.update(words)
    return frozenset(found)


def _words_of(piece: str) -> tuple[str, ...]:
    return tuple(word for word in _WORDS if word in piece)


_remembered = lru_cache(maxsize=8192)(_words_of)


@lru_cache(maxsize=1024)
def _useless(words: frozenset[str]) -> frozenset[str]:
    """The rules that find nothing in a document with these of their words."""
    return frozenset(rule for rule, enough in MENTIONS.items() if words.isdisjoint(enough))

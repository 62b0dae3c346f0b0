# SPDX-License-Identifier: Apache-2.0
"""A snapshot with pseudonyms in place of names, so that it can be shown to others.

Rules
- What is not known to be public is a name. A name is replaced word by word, each word by the same pseudonym wherever it
  stands: `team-a/eval-7b-0` may become `xm-a2/a7-7g4-0`.
- The pseudonyms of words have the order of the words, and digits at the start of a word stay. The scheduler breaks ties
  by name: on the redacted snapshot it decides the same.
- Public are numbers, quantities, times, UUIDs, the fields of PUBLIC_FIELDS, keys of labels and resources in the domains
  of PUBLIC_DOMAINS, the values of the labels of PUBLIC_LABELS, the attributes of devices, and the words of _KEPT, which
  have a meaning for Kubernetes or Dovetail.
- JSON in an annotation of Dovetail keeps its fields, that in others does not. Short names of levels stay.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from contextlib import suppress
from typing import Any

import msgspec
from msgspec import Struct

from dovetail.core.json_text import JsonError, decode_json
from dovetail.kube.gangs.owners import ROLE_LABEL, ROLE_SET_LABEL
from dovetail.kube.translate.annotation_values import LEVELS

Document = dict[str, Any]
_Replace = Callable[[str], str]

PUBLIC_DOMAINS = (
    *("kubernetes.io", "k8s.io", "x-k8s.io", "dovetail.dev", "nvidia.com", "amd.com", "intel.com", "habana.ai"),
    *("kubeflow.org", "ray.io", "volcano.sh", "run.ai", "karpenter.sh", "leaderworkerset.sigs.k8s.io"),
    *("grove.io", "aibrix.ai", "llm-d.ai"),
    *("amazonaws.com", "google.com", "azure.com", "oraclecloud.com", "coreweave.cloud", "coreweave.com"),
)
"""Each with the domains below it."""
PUBLIC_LABELS = re.compile(
    r"nvidia\.com/.+|amd\.com/.+|feature\.node\.kubernetes\.io/.+|(beta\.)?kubernetes\.io/(arch|os)|"
    r"(node|beta)\.kubernetes\.io/instance-type|llm-d\.ai/role|dovetail\.dev/(?!(queue|user|gang|lease|rack|bound|topology-.+)$).+"
)
"""The labels and annotations whose values are no names. Taints and requirements of their keys likewise."""
PUBLIC_FIELDS = frozenset(
    {
        *("apiVersion", "apiGroup", "kind", "uid", "requestUid", "resourceVersion", "type", "status", "state", "phase"),
        *("code", "step", "action", "cause", "class", "operator", "effect", "mode", "strategy", "backend", "default"),
        *("accessModes", "volumeMode", "volumeBindingMode", "provisioner", "driver", "schedulerName", "restartPolicy"),
        *("preemptionPolicy", "whenUnsatisfiable", "nodeAffinityPolicy", "nodeTaintsPolicy", "protocol"),
        *("allocationMode", "bindingConditions", "bindingFailureConditions", "expression", "shareID", "counterSet"),
        *("compatibilityGroups", "device", "devices", "given", "chosen", "id", "uuid", "pciBusId", "part", "profile"),
        *("product", "machine", "model", "models", "clique", "levels", "pcieLevels", "version", "versions", "string"),
        *("strings", "driverVersion", "cudaVersion", "nvmlVersion", "cores", "reservedSystemCPUs", "isolation"),
        *("cpuManagerPolicy", "memoryManagerPolicy", "topologyManagerPolicy", "topologyManagerScope", "drain"),
        *("topologyPolicies", "cpu", "memory", "gpu", "gpuFraction", "gpuMemory", "gpuSlices", "credit", "day", "rate"),
        *("share", "used", "idle", "grace", "duration", "leastDuration", "startup", "checkpointInterval", "heartbeat"),
        *(
            "halfLife",
            "fence",
            "offer",
            "preempt",
            "reclaim",
            "refused",
            "stop",
            "min",
            "max",
            "validValues",
            "capacity",
        ),
        *(
            "startTime",
            "creationTimestamp",
            "deletionTimestamp",
            "field",
            "completionMode",
            "startupPolicy",
            "subGroupPolicyType",
            "gpuHours",
        ),
        *("startupPolicyOrder", "launcherCreationPolicy", "period", "whenUsed", "amount", "currency", "file"),
        *("days", "start", "end", "timeZone"),
    }
)
"""The fields that hold a value of a closed set, a quantity, a time, or a fact about hardware."""
NAME_FIELDS = frozenset(
    {
        *("name", "namespace", "names", "namespaces", "nodeName", "node", "nominatedNodeName", "pod", "plane", "queue"),
        *("lease", "parent", "podGroupName", "parentCompositePodGroupName", "highestTierName", "pool", "holder", "by"),
        *("claimName", "resourceClaimName", "resourceClaimTemplateName", "request", "requestName", "requests"),
        *("storageClassName", "volumeName", "container", "containerName", "image", "hostIP", "deviceClassName"),
        *("groupName", "message", "line", "reason", "why", "next", "unread", "value", "values", "finalizers"),
        # Keys of labels and names of resources: public if their domain is.
        *("key", "level", "topologyKey", "matchLabelKeys", "mismatchLabelKeys", "matchAttribute", "distinctAttribute"),
        *("topology", "required", "preferred", "podGroupNames"),
        *("resource", "resourceName", "extendedResourceName", "within"),
    }
)
"""The fields of what Dovetail reads that hold a name, or a text with names in it."""
_LABELS = frozenset({"labels", "annotations", "matchLabels", "nodeSelector", "minTaskMember"})
_RESOURCES = frozenset({"allocatable", "allocatedResources", "limits", "requests", "capacity", "overhead"})
_HARDWARE = frozenset({"attributes", "counters", "sharedCounters", "consumesCounters", "consumedCapacity"})
_KEPT = ("default", "dovetail", "kube", "system")
_BETWEEN = ("a", "dk", "g", "m", "x")
"""How pseudonyms begin, by the number of kept words that are before the word: so these keep their place among them."""
_LETTERS = "0123456789abcdefghijklmnopqrstuvwxyz"
_WORD = re.compile(r"[^-./:,=@\s\"'{}\[\]()<>;|&!]+")
_DIGITS = re.compile(r"[0-9]*")
_TOKEN = re.compile(r"[^,\s]+")
_CODE = re.compile(r"[A-Z][A-Za-z0-9]*")
_UUID = r"[0-9a-fA-F]{8}(-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}"
_PUBLIC = re.compile(
    rf"true|false|((GPU|MIG)-)?{_UUID}|[0-9]{{4}}-[0-9]{{2}}-[0-9]{{2}}T[0-9:.]+(Z|[+-][0-9:]+)|"
    r"[-+]?[0-9]+(\.[0-9]+)?(n|u|m|k|M|G|T|P|E|Ki|Mi|Gi|Ti|Pi|Ei|%)?|([0-9]+(d|h|m|s|ms))+"
)


class Redacted(Struct, frozen=True):
    """`objects` without names, in the order of the input; `names` is what each pseudonym of a word stands for."""

    objects: tuple[Document, ...]
    names: dict[str, str]


def redacted(objects: Iterable[Document]) -> Redacted:
    """The documents with a pseudonym for each word of a name."""
    objects = tuple(objects)
    words: set[str] = set()

    def collect(text: str) -> str:
        words.update(_rest(word) for word in _WORD.findall(text))
        return text

    for one in objects:
        _walk(one, "", collect)
    pseudonyms = _pseudonyms(words - {"", *_KEPT})

    def replace(text: str) -> str:
        return _WORD.sub(lambda found: _pseudonym(found[0], pseudonyms), text)

    names = {pseudonym: word for word, pseudonym in pseudonyms.items()}
    return Redacted(tuple(_walk(one, "", replace) for one in objects), names)


def _rest(word: str) -> str:
    return word[len(_DIGITS.match(word)[0]) :]  # type: ignore[index]


def _pseudonym(word: str, pseudonyms: dict[str, str]) -> str:
    rest = _rest(word)
    return word[: len(word) - len(rest)] + pseudonyms.get(rest, rest)


def _pseudonyms(words: set[str]) -> dict[str, str]:
    """By word; all of one length behind their first letters, and in the order of the words."""
    width = 1
    while len(_LETTERS) ** width < len(words):
        width += 1
    found = {}
    for number, word in enumerate(sorted(words)):
        text = ""
        for _ in range(width):
            number, digit = divmod(number, len(_LETTERS))
            text = _LETTERS[digit] + text
        found[word] = _BETWEEN[sum(kept < word for kept in _KEPT)] + text
    return found


def _walk(value: Any, field: str, replace: _Replace) -> Any:
    match value:
        case str():
            return value if field in PUBLIC_FIELDS else _text(value, field, replace)
        case list() | tuple():
            return [_walk(one, field, replace) for one in value]
        case dict() if field in _HARDWARE:
            return value
        case dict() if field in _LABELS:
            return {_key(key, replace): _label(key, one, replace) for key, one in value.items()}
        case dict() if field in _RESOURCES:
            return {_key(key, replace) if "/" in key else key: one for key, one in value.items()}
        case dict() if isinstance(key := value.get("key"), str) and PUBLIC_LABELS.fullmatch(key):
            return value
        case dict():
            return {key: _walk(one, key, replace) for key, one in value.items()}
    return value


def _text(text: str, field: str, replace: _Replace) -> str:
    if _PUBLIC.fullmatch(text) or (field == "reason" and _CODE.fullmatch(text)):
        return text
    return _TOKEN.sub(lambda found: _key(found[0], replace), text)


def _key(text: str, replace: _Replace) -> str:
    """A name with a domain before it, or a domain, stays if the domain is public. What follows it with a slash in it
    names an object, as in podgroup.scheduling.k8s.io/NAMESPACE/NAME."""
    domain, slash, name = text.partition("/")
    if text in (ROLE_SET_LABEL, ROLE_LABEL):
        return text
    if (slash or "." in text) and any(domain == one or domain.endswith(f".{one}") for one in PUBLIC_DOMAINS):
        return f"{domain}/{replace(name)}" if "/" in name else text
    return text if _PUBLIC.fullmatch(text) else replace(text)


def _label(key: str, value: Any, replace: _Replace) -> Any:
    if not isinstance(value, str) or PUBLIC_LABELS.fullmatch(key):
        return value
    if key.startswith("dovetail.dev/") and value[:1] == "{":
        with suppress(JsonError):
            return msgspec.json.encode(_walk(decode_json(value, Any), "", replace)).decode()
    if key.startswith("dovetail.dev/topology-"):
        return _TOKEN.sub(lambda found: found[0] if found[0] in LEVELS else _key(found[0], replace), value)
    return _text(value, "", replace)

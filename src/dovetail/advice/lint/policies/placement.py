# SPDX-License-Identifier: Apache-2.0
"""Policies about selectors, affinities, tolerations and spreading."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from dovetail.advice.lint.cel import Cel, each, finding, matches, only, text, texts
from dovetail.advice.lint.rules.placement import BETWEEN, PACKED, WIDTH
from dovetail.advice.lint.selection import PREFERRED, REQUIRED, SYSTEM_NAMESPACES
from dovetail.core.model import GPU
from dovetail.kube.translate.annotation_values import LEVELS
from dovetail.kube.translate.selectors import FIELD_OPERATORS, LABEL_OPERATORS, NODE_OPERATORS

_AFFINITY = "p.spec.?affinity"
_TERMS = (
    f"({_AFFINITY}.?nodeAffinity.?{REQUIRED}.?nodeSelectorTerms.orValue([]) + "
    f"{_AFFINITY}.?nodeAffinity.?{PREFERRED}.orValue([]).map(w, w.?preference.orValue({{}})))"
)
_PEERS = " + ".join(
    f"{_AFFINITY}.?{kind}.?{REQUIRED}.orValue([]) + "
    f"{_AFFINITY}.?{kind}.?{PREFERRED}.orValue([]).map(w, w.?podAffinityTerm.orValue({{}}))"
    for kind in ("podAffinity", "podAntiAffinity")
)
_SPREADS = "p.spec.?topologySpreadConstraints.orValue([])"
_HOLDERS = f"({_PEERS} + {_SPREADS})"
_SELECTED = "(h.?labelSelector.?matchExpressions.orValue([]) + h.?namespaceSelector.?matchExpressions.orValue([]))"
_OPERATOR = "string(e.?operator.orValue(''))"
_VALUES = "e.?values.orValue([])"


def _of_entries(node: str, field: str, label: str) -> str:
    """The findings of all entries `e`: of node labels, of node fields, and of pod selectors."""
    return " + ".join(
        (
            each(_TERMS, "h", each("h.?matchExpressions.orValue([])", "e", node)),
            *([each(_TERMS, "h", each("h.?matchFields.orValue([])", "e", field))] if field else ()),
            each(_HOLDERS, "h", each(_SELECTED, "e", label)),
        )
    )


def _of_entry(condition: str, what: str) -> str:
    """A finding about an entry `e`."""
    return finding(condition, "p.at", "'spec: the entry of ' + string(e.?key.orValue('')) + ': '", what)


def _operators(names: Collection[str], unless: str = "") -> str:
    """The findings about the operator of an entry of which these are valid, unless a condition holds."""
    wrong = _of_entry(
        f"!({_OPERATOR} in {texts(names)})",
        f"'the operator ' + {_OPERATOR} + ' does not exist here: write one of {', '.join(names)}'",
    )
    empty = _of_entry(
        f"{_OPERATOR} in ['In', 'NotIn'] && size({_VALUES}) == 0",
        f"{_OPERATOR} + ' needs a list of values, and has none'",
    )
    filled = _of_entry(
        f"{_OPERATOR} in ['Exists', 'DoesNotExist'] && size({_VALUES}) > 0",
        f"{_OPERATOR} + ' takes no values: remove them, or write In'",
    )
    found = f"({wrong} + {empty} + {filled})"
    return only(f"!({unless})", found) if unless else found


_COMPARES = f"{_OPERATOR} in ['Gt', 'Lt']"
_BOUND = f"{_VALUES}[0]"
_INTEGER = f"{matches(f'string({_BOUND})', '^[+-]?[0-9]+$')} && quantity(string({_BOUND})).isInteger()"
_WITHOUT_BOUND = _of_entry(
    f"{_COMPARES} && (size({_VALUES}) != 1 || type({_BOUND}) == int || !({_INTEGER}))",
    f"{_OPERATOR} + ' needs a list of exactly one value, a whole number in quotes'",
)
_OF_PODS = _of_entry(_COMPARES, f"{_OPERATOR} + ' compares only labels of nodes'")

_TOLERATES = "(t.?operator.orValue('') == '' ? 'Equal' : string(t.operator))"
_TOLERATION = (
    ("has(t.value) && type(t.value) != string", "string(t.value) + ' is not a string: quote it'"),
    (
        f"!({_TOLERATES} in ['Equal', 'Exists', 'Gt', 'Lt'])",
        f"'tolerations have no operator ' + {_TOLERATES} + ': write Equal, for one value, or Exists, for any'",
    ),
    (
        f"t.?key.orValue('') == '' && {_TOLERATES} in ['Equal', 'Gt', 'Lt']",
        f"{_TOLERATES} + ' needs a key: write that of the taint, or Exists to tolerate every taint'",
    ),
    (
        f"{_TOLERATES} == 'Exists' && t.?value.orValue('') != ''",
        "'Exists matches any value: remove the value, or write Equal'",
    ),
    (
        f"{_TOLERATES} in ['Gt', 'Lt']",
        f"{_TOLERATES} + ' needs a whole number, and the feature gate TaintTolerationComparisonOperators'",
    ),
)

_RESERVED = "topology.kubernetes.io/"
_STRANGE = f"k.startsWith({text(_RESERVED)}) && !(k in {texts(f'{_RESERVED}{name}' for name in ('zone', 'region'))})"
_STRANGER = f"k + ': Kubernetes keeps {_RESERVED} for itself, and sets no such label'"
_KEYS = " + ".join(
    (
        f"p.spec.?nodeSelector.orValue({{}}).filter(k, {_STRANGE}).map(k, p.at + 'spec.nodeSelector: ' + {_STRANGER})",
        each(
            _TERMS,
            "h",
            f"h.?matchExpressions.orValue([]).map(e, e.?key.orValue('')).filter(k, {_STRANGE})"
            f".map(k, p.at + 'spec.affinity: ' + {_STRANGER})",
        ),
        f"{_HOLDERS}.map(h, h.?topologyKey.orValue('')).filter(k, {_STRANGE}).map(k, p.at + 'spec: ' + {_STRANGER})",
    )
)

_NEAR_GPUS = r"(?i)nvidia|gpu|accelerator|cuda|\bmig\b"


def _near(value: str) -> str:
    return matches(f"string({value})", _NEAR_GPUS)


_NAME, _OPTIONAL = "e.?name.orValue('')", "n.orValue('')"
_REFERENCES = ", ".join(
    f"e.?valueFrom.?{kind}.?{field}"
    for kind, field in (
        ("secretKeyRef", "name"),
        ("secretKeyRef", "key"),
        ("configMapKeyRef", "name"),
        ("configMapKeyRef", "key"),
    )
)
_NAMES = (
    f"c.c.?resources.?claims.orValue([]).exists(e, {_near(_NAME)}) || "
    f"c.c.?env.orValue([]).exists(e, [e.?name, e.?value, {_REFERENCES}].exists(n, {_near(_OPTIONAL)}))"
)
_FOR_THE_NODE = " || ".join(
    (
        "variables.kind == 'apps/DaemonSet'",
        "has(p.spec.nodeName)",
        "p.spec.?priorityClassName.orValue('').startsWith('system-')",
        f"[object.?metadata.?namespace, p.meta.?namespace].exists(n, n.orValue('') in {texts(SYSTEM_NAMESPACES)})",
        "p.spec.?volumes.orValue([]).exists(v, has(v.hostPath))",
        "p.all.exists(c, c.c.?securityContext.?privileged.orValue(false) == true)",
        f"p.spec.?nodeSelector.orValue({{}}).exists(k, {_near('k')} || {_near('p.spec.nodeSelector[k]')})",
        _near("p.spec.?runtimeClassName.orValue('')"),
        f"{_TERMS}.exists(h, h.?matchExpressions.orValue([]).exists(e, "
        + _near("e.?key.orValue('')")
        + f" || {_VALUES}.exists(v, {_near('v')})))",
        "p.all.exists(c, " + _near("c.c.?image.orValue('')") + f" || [c.limits, c.requests].exists(r, r.exists(n, "
        f"{_near('n')})) || {_NAMES})",
    )
)
_IN_VAIN = only(
    f"!variables.pods.exists(o, o.uses) && !({_FOR_THE_NODE})",
    f"p.spec.?tolerations.orValue([]).filter(t, t.?key.orValue('') == {text(GPU)})"
    f".map(t, p.at + 'spec.tolerations: the pod requests no GPU, and tolerates the taint {GPU} of GPU nodes: remove "
    "the toleration')",
)

_HOLDS = (
    "(e.?operator.orValue('') == 'Exists' ? e.?key.orValue('') in LABELS : "
    "e.?operator.orValue('') == 'DoesNotExist' ? !(e.?key.orValue('') in LABELS) : "
    "e.?operator.orValue('') == 'In' ? e.?key.orValue('') in LABELS && LABELS[e.key] in e.?values.orValue([]) : "
    "e.?operator.orValue('') == 'NotIn' && !(e.?key.orValue('') in LABELS && LABELS[e.key] in e.?values.orValue([])))"
).replace("LABELS", "p.meta.?labels.orValue({})")


def _selects(term: str) -> str:
    """Whether the label selector of a term exists, and selects the pod itself."""
    return (
        f"(has({term}.labelSelector) && {term}.labelSelector.?matchLabels.orValue({{}}).all(k, "
        f"p.meta.?labels[?k].orValue('') == {term}.labelSelector.matchLabels[k] && k in "
        f"p.meta.?labels.orValue({{}})) && "
        f"{term}.labelSelector.?matchExpressions.orValue([]).all(e, {_HOLDS}))"
    )


def _of_level(values: Mapping[str, int], other: int, domain: str) -> str:
    known = ", ".join(f"{text(key)}: {value}" for key, value in values.items())
    return f"{{{known}}}[?{domain}].orValue({other})"


_LEVEL = (
    "{" + ", ".join(f"{text(name)}: {text(key)}" for name, key in LEVELS.items()) + "}[?l.trim()].orValue(l.trim())"
)
_METAS = "[p.meta.?annotations.orValue({}), object.?metadata.?annotations.orValue({})]"


def _domains(is_required: bool) -> str:
    """The lines with the domains in which the pods of a job are kept together, of these settings."""
    kind = f"{_AFFINITY}.?podAffinity.?{REQUIRED if is_required else PREFERRED}.orValue([])"
    terms = kind if is_required else f"{kind}.map(w, w.?podAffinityTerm.orValue({{}}))"
    names = texts(name for name, required in PACKED.items() if required == is_required)
    levels = (
        f"{_METAS}.map(a, {names}.filter(n, n in a).map(n, a[n].split(',').map(l, {_LEVEL}).join('\\n')).join('\\n'))"
    )
    affinity = f"{terms}.filter(t, {_selects('t')}).map(t, t.?topologyKey.orValue(''))"
    return f"({affinity} + {levels}).join('\\n').split('\\n').filter(d, d != '')"


_PODS = "[object.?spec.?replicas, object.?spec.?parallelism].filter(n, n.orValue(0) != 0)"
_KEY = "h.?topologyKey.orValue('')"
_AGAINST = (
    "(d == KEY || KEY_WIDTH > DOMAIN_WIDTH)".replace("KEY_WIDTH", _of_level(WIDTH, BETWEEN, _KEY))
    .replace("DOMAIN_WIDTH", _of_level(WIDTH, BETWEEN, "d"))
    .replace("KEY", _KEY)
)
_SPREAD = only(
    "p.uses",
    f"{_SPREADS}.filter(h, {_selects('h')} && !(size({_PODS}) > 0 && {_PODS}[0].value() <= h.?maxSkew.orValue(1)) && "
    f"({_domains(True)}.exists(d, {_AGAINST}) && h.?whenUnsatisfiable.orValue('') == 'DoNotSchedule' || "
    f"{_domains(False)}.exists(d, {_AGAINST})))"
    f".map(h, p.at + 'spec.topologySpreadConstraints: the pods are spread over ' + {_KEY} + ', and another setting "
    f"keeps "
    "them in one such domain: remove one of the two, or spread over a smaller domain')",
)

POLICIES = {
    "G38": Cel(_SPREAD),
    "G07": Cel(
        _of_entries(_operators(NODE_OPERATORS), _operators(FIELD_OPERATORS), _operators(LABEL_OPERATORS, _COMPARES))
    ),
    "G08": Cel(_of_entries(_WITHOUT_BOUND, "", _OF_PODS)),
    "G09": Cel(
        each(
            "p.spec.?tolerations.orValue([])",
            "t",
            " + ".join(finding(condition, "p.at", f"'spec.tolerations: ' + {what}") for condition, what in _TOLERATION),
        )
    ),
    "G10": Cel(
        only("variables.kind != 'apps/DaemonSet'", f"({_KEYS})"),
        omits=f"labels that the nodes lack, and misspelt ones: only keys in {_RESERVED[:-1]}",
    ),
    "G26": Cel(_IN_VAIN, omits="the taints of the nodes: only pods without GPUs that tolerate nvidia.com/gpu"),
}

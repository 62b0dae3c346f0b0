# SPDX-License-Identifier: Apache-2.0
"""Policies about privileges, visible GPUs, variables, users, owners, images, and names of Dovetail."""

from __future__ import annotations

from dovetail.advice.lint.cel import Cel, asked, counted, each, env, finding, gpus, matches, only, text, texts
from dovetail.advice.lint.rules.images import LARGE, MOVING
from dovetail.advice.lint.rules.security import OWNER_WORDS
from dovetail.advice.lint.rules.variables import SHELL_NAME
from dovetail.kube.gangs.owners import OWNER_KINDS
from dovetail.kube.translate.annotations import PREFIX, TABLE, WRITTEN_BY_US

_PRIVILEGED = "c.c.?securityContext.?privileged.orValue(false) == true"
_NOT_OF_THE_NODE = "p.uses && variables.kind != 'apps/DaemonSet'"
_ON_THE_NODE = only(
    _NOT_OF_THE_NODE,
    "("
    + " + ".join(
        (
            f"p.computing.filter(c, {_PRIVILEGED}).map(c, c.at + '.securityContext.privileged: the container is "
            "privileged: remove that; add the one capability that it needs')",
            finding(
                "p.spec.?hostPID.orValue(false) == true",
                "p.at + 'spec.hostPID: the pod sees all processes of the node: remove hostPID'",
            ),
            "p.spec.?volumes.orValue([]).map(v, v.?hostPath.?path.orValue('')).filter(v, "
            + matches("v", r"^(/dev/?|/dev/(nvidia\S*|dri(/\S*)?))$")
            + ").map(v, p.at + 'spec.volumes: ' + v + ' of the node is mounted: remove it, the device plugin adds "
            "the GPUs "
            "of the container')",
        )
    )
    + ")",
)

_NAME, _VALUE = "e.?name.orValue('')", "e.?value.orValue('')"
_HIDDEN = f"{_VALUE}.trim() in ['', '-1', 'none', 'void', 'nodevfiles']"
_INDICES = f"{_VALUE}.split(',').map(i, i.trim())"
_OF_INDICES = f"{_INDICES}.all(i, i.matches('^[0-9]{{1,9}}$'))"
_GPUS = counted(asked("c", "c.gpus[0]"))
_OUTSIDE = f"{_INDICES}.exists(i, int(i) >= {gpus('c')})"
_DISTINCT = f"[{', '.join(map(str, range(16)))}].filter(i, string(i) in {_INDICES})"
_WRONG_INDICES = (
    f"{_HIDDEN} || (!({_OF_INDICES}) ? {_VALUE}.trim() == 'all' || {_INDICES}.exists(i, i.startsWith('GPU-') || "
    f"i.startsWith('MIG-')) : c.gpus[0] == 'nvidia.com/gpu' && ({_OUTSIDE} || size({_DISTINCT}) < {_GPUS}))"
)


def _of_each_variable(found: str) -> str:
    """The findings of all variables `e` of all containers `c`."""
    return each("p.all", "c", env("c", "e", found))


_VISIBLE = only(
    _NOT_OF_THE_NODE,
    _of_each_variable(
        only(
            f"!{_VALUE}.contains('$(')",
            "("
            + finding(
                f"{_NAME} == 'NVIDIA_VISIBLE_DEVICES' && !({_HIDDEN})",
                f"c.at + '.env[NVIDIA_VISIBLE_DEVICES]: it is ' + {_VALUE} + ': remove it, the device plugin "
                f"sets it "
                "to the GPUs of the container'",
            )
            + " + "
            + finding(
                f"{_NAME} == 'CUDA_VISIBLE_DEVICES' && has(e.value) && size(c.gpus) > 0 && {_GPUS} > 0 && "
                f"({_WRONG_INDICES})",
                f"c.at + '.env[CUDA_VISIBLE_DEVICES]: it is ' + {_VALUE} + ', which does not name the GPUs of the "
                "container: remove it'",
            )
            + ")",
        ),
    ),
)

_OF_A_SHELL = only(
    "p.uses && !p.all.exists(c, c.c.?image.orValue('').contains('$'))",
    _of_each_variable(
        finding(
            matches(_VALUE, SHELL_NAME),
            f"c.at + '.env[' + {_NAME} + ']: Kubernetes leaves ' + {_VALUE} + ' as it is: write $(NAME) for a "
            "variable that the container sets before, or valueFrom'",
        ),
    ),
)

_USER = (
    "(has(c.c.securityContext) && has(c.c.securityContext.runAsUser) ? c.c.securityContext.runAsUser : "
    "p.spec.?securityContext.?runAsUser.orValue(1))"
)
_BY_ROOT = only(
    "p.uses && variables.kind != 'apps/DaemonSet' && p.spec.?hostUsers.orValue(true) != false",
    f"p.computing.filter(c, {_USER} == 0 && !({_PRIVILEGED})).map(c, c.at + '.securityContext.runAsUser: the pod "
    f"runs as "
    "root: set another user, such as runAsUser: 1000')",
)


def _owner_pattern() -> str:
    """The owner words as whole words: small, with a capital, or in capitals."""
    small = "|".join(sorted(OWNER_WORDS))
    capital = "|".join(sorted(word.capitalize() for word in OWNER_WORDS))
    return f"(^|[^a-zA-Z])({small})($|[^a-z])|(^|[^A-Z])({capital})($|[^a-z])|(^|[^A-Z])({small.upper()})($|[^a-zA-Z])"


_PLACES = (
    "([object.?metadata.orValue({})] + variables.pods.filter(p, p.uses).map(p, p.meta) + "
    "(dyn(namespaceObject) == null ? [] : [dyn(namespaceObject).?metadata.orValue({})]))"
)
_MARKED = (
    f"{_PLACES}.exists(m, [m.?labels.orValue({{}}), m.?annotations.orValue({{}})].exists(s, s.exists(k, "
    f"{matches('k', _owner_pattern())})))"
)
_WITHOUT_OWNER = finding(
    "variables.kind != 'apps/DaemonSet' && variables.pods.exists(p, p.uses) && !object.?spec.?queue.hasValue() && "
    f"!object.?spec.?runPolicy.?schedulingPolicy.?queue.hasValue() && !({_MARKED})",
    "'metadata.labels: no label names the owner of the GPUs: add one, such as team: vision, or dovetail.dev/queue'",
)

_KEYS = {
    place: sorted(PREFIX + name for name, key in TABLE.items() if key.place == place)
    for place in ("labels", "annotations")
}
_WRITTEN = [PREFIX + name for name in sorted(WRITTEN_BY_US)]
_READ = sorted({f"{kind.resource.group}/{kind.resource.kind}" for kind in OWNER_KINDS}) + [
    f"{group}/PodGroup" for group in ("scheduling.k8s.io", "scheduling.x-k8s.io", "scheduling.volcano.sh")
]


def _unknown_keys(meta: str, at: str) -> str:
    return " + ".join(
        f"{meta}.?{place}.orValue({{}}).filter(k, k.startsWith({text(PREFIX)}) && !(k in {texts([*keys, *_WRITTEN])}))"
        f".map(k, {at} + 'metadata.{place}: ' + k + ' is no known key here')"
        for place, keys in _KEYS.items()
    )


_IMAGE = "c.c.?image.orValue('')"
_BARE = f"{_IMAGE}.split('@')[0]"
_LARGE = f"^((index\\.docker\\.io|registry-1\\.docker\\.io|docker\\.io)/)?({LARGE.pattern})(:[^/]*)?$"
_TAG = ":(" + MOVING.pattern.replace(".*", "[^/:]*") + ")$"
_VALID = f"{_IMAGE} != '' && !" + matches(_IMAGE, r"[\s{}$<>]") + " && !" + matches(_BARE, "[A-Z][^/:]*(:[^/]*)?$")
_MOVING = only(
    "p.uses",
    each(
        f"p.computing.filter(c, {_VALID} && !{matches(_IMAGE, '@.')})",
        "c",
        finding(
            "!" + matches(_BARE, ":[^:/]+$"),
            f"c.at + '.image: ' + {_IMAGE} + ' has no tag, which means latest: write a version, or a digest'",
        )
        + " + "
        + finding(
            matches(_BARE, _TAG),
            f"c.at + '.image: ' + {_IMAGE} + ' is a different image after each push: write a version, or a digest'",
        ),
    )
    + " + "
    + f"p.computing.filter(c, {_VALID} && c.c.?imagePullPolicy.orValue('') == 'Always' && "
    + matches(_BARE, _LARGE)
    + f" && ({matches(_IMAGE, '@.')} || {matches(_BARE, ':[^:/]+$')} && !"
    + matches(_BARE, _TAG)
    + f")).map(c, c.at + '.imagePullPolicy: ' + {_IMAGE} + ' never changes, and is large: write IfNotPresent')",
)

_CLAIMS = each(
    "p.all",
    "c",
    "c.c.?resources.?claims.orValue([]).map(o, o.?name.orValue('')).filter(n, n != '' && "
    "!p.spec.?resourceClaims.orValue([]).exists(o, o.?name.orValue('') == n)).map(n, c.at + '.resources.claims: the "
    "pod "
    "has no claim ' + n + ': add it to resourceClaims of the pod')",
)

POLICIES = {
    "G24": Cel(_ON_THE_NODE),
    "G25": Cel(_VISIBLE),
    "G32": Cel(_MOVING),
    "G43": Cel(_BY_ROOT),
    "G44": Cel(whole=_WITHOUT_OWNER),
    "G45": Cel(
        pod=_unknown_keys("p.meta", "p.at"),
        whole=only(f"variables.kind in {texts(_READ)}", "(" + _unknown_keys("object.?metadata", "''") + ")"),
        omits="values that cannot be read, domains that resemble dovetail.dev, and the queues: only keys",
    ),
    "G47": Cel(_CLAIMS, omits="the names of device classes"),
    "G53": Cel(_OF_A_SHELL),
}

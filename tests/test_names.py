# SPDX-License-Identifier: Apache-2.0
"""One name for one thing: no two modules of `dovetail` define a public class of the same name.

An object on the wire and the core's record of the same thing bear the name that Kubernetes, or the reference, gives it.
"""

import ast
import re
from collections import defaultdict
from collections.abc import Iterator, Mapping

from tests.paths import ROOT
from tests.statements import statements

SOURCE = ROOT / "src" / "dovetail"
PAIRS = {
    "core/model.py": {
        "kube/objects/base.py": {"Namespace", "Node", "Taint"},
        "kube/objects/pods.py": {"Container", "Pod", "Toleration", "Volume"},
        "kube/objects/storage.py": {"StorageClass"},
    },
    "core/dra/types.py": {
        "kube/objects/claims.py": {"CounterSet", "DeviceClass", "DeviceRequest", "DeviceTaint", "RequestPolicy"},
    },
    "core/cluster/fabric.py": {"kube/objects/fabric.py": {"Fabric"}},
    "core/label_terms.py": {"kube/objects/base.py": {"LabelSelector"}},
    "core/bargaining/types.py": {"kube/objects/leases.py": {"LeaseAlternative", "LeaseRequest"}},
    "core/queues/types.py": {"kube/objects/queues.py": {"Queue"}},
}
"""By the core's module and the wire's."""
_CLASS = re.compile(r"\bclass[\s\\]+([A-Za-z]\w*)")
"""Each class, and maybe more: a module is parsed only where another has a class of that name."""


def same_names(sources: Mapping[str, str]) -> dict[str, list[str]]:
    """The modules, texts by path, that define a public class of the same name, by it."""
    likely: dict[str, set[str]] = defaultdict(set)
    for path, text in sources.items():
        for name in _CLASS.findall(text):
            likely[name].add(path)
    found: dict[str, list[str]] = defaultdict(list)
    for path in {path for paths in likely.values() if len(paths) > 1 for path in paths}:
        for name in _public_classes(sources[path]):
            found[name].append(path)
    return {name: sorted(paths) for name, paths in found.items() if len(paths) > 1}


def _public_classes(text: str) -> Iterator[str]:
    for node in statements(text):
        if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
            yield node.name


def test_no_two_classes_have_one_name_but_the_wires_and_the_cores() -> None:
    sources = {path.relative_to(SOURCE).as_posix(): path.read_text() for path in SOURCE.rglob("*.py")}
    pairs = {n: [core, wire] for core, wires in PAIRS.items() for wire, names in wires.items() for n in names}
    assert same_names(sources) == pairs


def test_the_same_name_is_found() -> None:
    sources = {
        "a.py": "class Same: ...\nclass Own: ...\nclass _Private: ...",
        "b.py": "class _Private: ...\ndef f():\n    class Same: ...",
    }
    assert same_names(sources) == {"Same": ["a.py", "b.py"]}

# SPDX-License-Identifier: Apache-2.0
"""The length of the placement rules of a request, in parts: what it costs to keep it and to ask it.

Rules: a term (but see BROAD) or an expression counts as TERM, and so do a toleration, a port and a spread constraint;
an amount, of the pod or of a container, and a value count as 1, and a long text as 1 for each TEXT characters. Requests
of up to LIGHT parts are remembered after their pods are gone.
"""

from __future__ import annotations

from collections.abc import Iterable

from dovetail.core.model import LabelSelector, NodeTerm, PeerTerm, Request, Requirement

TERM = 16
BROAD = 512
"""A term about other pods without a label that they must have: every pod is compared with it."""
NEGATIVE = frozenset({"NotIn", "DoesNotExist"})
TEXT = 64
LIGHT = 256


def parts(request: Request) -> int:
    """Of the whole request."""
    found = of_texts([name for name, _ in request.resources])
    found += TERM * (len(request.tolerations) + len(request.ports)) + len(request.node_selector)
    if request.managed is not None:
        for one in request.managed.containers:
            found += of_texts([name for name, _ in one.requests]) + of_texts([name for name, _ in one.limits])
    if request.node_terms:
        found += sum(map(_of_term, request.node_terms))
    if request.preferred_nodes:
        found += sum([_of_term(preferred.term) for preferred in request.preferred_nodes])
    if request.scattered:
        found += sum(map(_of_peers, request.affinity)) + sum(map(_of_peers, request.anti_affinity))
        found += sum([_of_peers(preferred.term) for preferred in request.preferred_peers])
        found += sum([_of_peers(spread.peers) for spread in request.spread])
    return found


def light(request: Request) -> bool:
    """Whether it is worth remembering although no pod asks for it."""
    return parts(request) <= LIGHT


def of_texts(texts: Iterable[str]) -> int:
    """Of values."""
    return sum([1 + len(text) // TEXT for text in texts])


def _of_requirements(requirements: Iterable[Requirement]) -> int:
    return sum([TERM + of_texts(requirement.values) for requirement in requirements])


def _of_term(term: NodeTerm) -> int:
    return TERM + _of_requirements(term.expressions) + _of_requirements(term.fields)


def _of_selector(selector: LabelSelector | None) -> int:
    return _of_requirements(selector.requirements) if selector is not None else 0


def _of_peers(term: PeerTerm) -> int:
    broad = term.selector is not None and all(one.operator in NEGATIVE for one in term.selector.requirements)
    return (
        (BROAD if broad else TERM)
        + _of_selector(term.selector)
        + _of_selector(term.namespace_selector)
        + len(term.namespaces)
    )

# SPDX-License-Identifier: Apache-2.0
"""Which rules of the linter are admission policies, as a whole or in part, and why the others are not."""

from dovetail.advice.lint.cel import Cel
from dovetail.advice.lint.policies import amounts, jobs, kubelet, network, placement, security

POLICIES: dict[str, Cel] = {
    rule: cel
    for module in (amounts, jobs, kubelet, network, placement, security)
    for rule, cel in module.POLICIES.items()
}
"""By the id of the rule."""
WITHOUT_POLICY: dict[str, str] = {
    "G06": "It reads the YAML inside ConfigMaps, and needs the GPU models of the nodes.",
    "G14": "It needs the numbers of cards of the nodes.",
    "G19": "It needs the NUMA nodes and the kubelet's policies of the nodes.",
    "G33": "It needs the drivers of the nodes.",
    "G34": "It compares names by similarity.",
    "G37": "It needs claims, volumes, storage classes and the zones of the nodes.",
    "G46": "It calls the functions of the scheduler, also on other objects of a gang.",
    "G49": "It needs the sizes of models and of the memory of GPUs.",
    "G50": "It needs the GPUs of all nodes.",
    "G51": "It needs the table of instance types.",
    "G52": "It needs the objects of which the scheduler makes a gang.",
    "G54": "The API server refuses such pods itself.",
    "G55": "The API server refuses such pods itself.",
    "G56": "It counts the pods of each kind of object.",
    "G57": "It looks for the words of frameworks, and for parts of a list.",
    "G58": "It needs the claims.",
    "G59": "The API server refuses such objects itself.",
    "G60": "It reads names of init containers and amounts together.",
}
"""The reason why CEL cannot express a rule, by its id."""


def extent(rule: str) -> str:
    """What of a rule is a policy, by its id."""
    policy = POLICIES.get(rule)
    if policy is None:
        reason = WITHOUT_POLICY[rule]
        return f"none: {reason[0].lower()}{reason[1:]}"
    return f"without {policy.omits}." if policy.omits else "all of it."

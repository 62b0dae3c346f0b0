# SPDX-License-Identifier: Apache-2.0
"""What NCCL reads is never called unknown, and a letter too few leads back to a name."""

from __future__ import annotations

import re

from hypothesis import given
from hypothesis import strategies as st

from dovetail.advice.lint.rules.network import nearest_variable, variables
from tests.advice.lint.linted import findings

NAMES = st.sampled_from(variables())


def found(name: str) -> list[str]:
    pod = f"""\
apiVersion: v1
kind: Pod
metadata: {{name: train}}
spec:
  containers:
  - name: train
    env: [{{name: {name}, value: '1'}}]
    resources: {{limits: {{nvidia.com/gpu: 1}}}}
"""
    return [one.message for one in findings(pod, "G21")]


def test_names_are_variables() -> None:
    assert all(re.fullmatch(r"NCCL_[A-Z0-9_]*[A-Z0-9]", name) for name in variables())
    assert len(set(variables())) == len(variables())


@given(NAMES)
def test_what_nccl_reads_is_known(name: str) -> None:
    assert not found(name)


@given(NAMES, st.data())
def test_without_a_letter_it_leads_to_a_name(name: str, data: st.DataObject) -> None:
    at = data.draw(st.integers(len("NCCL_"), len(name) - 1))
    slip = name[:at] + name[at + 1 :]
    if slip not in variables():
        assert nearest_variable(slip) in variables()


def test_the_words_count_before_the_letters() -> None:
    assert nearest_variable("NCCL_DISABLE_IB") == "NCCL_IB_DISABLE"
    assert nearest_variable("NCCL_NVLS_DISABLE") == "NCCL_NVLS_ENABLE"
    assert nearest_variable("NCCL_MY_PLUGIN_LEVEL") == ""
    assert nearest_variable("NCCL_TOPOLOGY_FILE") == "NCCL_TOPO_FILE"
    assert nearest_variable("NCCL_SOCKET_INTERFACE") == "NCCL_SOCKET_IFNAME"
    assert nearest_variable("NCCL_IFNAME") == "NCCL_SOCKET_IFNAME"

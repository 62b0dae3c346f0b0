# SPDX-License-Identifier: Apache-2.0
"""A pod of a job, as a user sees it."""

import pytest

from tests.jobs.builders import pod

RANK, INDEX = "dovetail.dev/rank", "batch.kubernetes.io/job-completion-index"
GLOBAL = "jobset.sigs.k8s.io/job-global-index"


@pytest.mark.parametrize(
    ("annotations", "labels", "rank"),
    [
        ({RANK: "5"}, {GLOBAL: "1", INDEX: "1"}, 5),
        ({}, {INDEX: "3"}, 3),
        ({INDEX: "3"}, {}, 3),
        ({}, {GLOBAL: "1", INDEX: "2"}, 2),
        ({RANK: "first"}, {INDEX: "3"}, 3),
        ({RANK: "9999999999"}, {}, None),
        ({}, {INDEX: "x"}, None),
        ({}, {}, None),
    ],
)
def test_its_rank_is_the_schedulers_else_its_controllers(
    annotations: dict[str, str], labels: dict[str, str], rank: int | None
) -> None:
    assert pod("p", annotations=annotations, labels=labels).rank == rank

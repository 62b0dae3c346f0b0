# SPDX-License-Identifier: Apache-2.0
"""The reference names the fields of `dovetail free`, and the page that shows its answer shows what it prints."""

from __future__ import annotations

import io
import re

import pytest
from msgspec.structs import fields

from dovetail.cli.console import Console
from dovetail.cli.free_report import show
from dovetail.cli.stranded_prices import PricedFree, StrandedPrice, priced_free
from dovetail.core.devices.gpu_sharing import Sharing
from dovetail.core.model import GPU, SHARED_GPU
from dovetail.cost.price_rules import PriceBook
from dovetail.views.free import free
from dovetail.views.free_types import (
    Blocked,
    ClassDevices,
    FreeGpus,
    FreeShare,
    FreeSize,
    Instances,
    MigCards,
    SharedCards,
    StrandedGpus,
)
from dovetail.views.held_types import DeviceHolder, HeldPart, HolderRefused
from tests.docs.pages import Row, page
from tests.views.divided import BIG, MIXED, card, cluster, mig, node, pod

HERE = page("docs/reference/cli.md").section("dovetail free")


def names(kind: type) -> list[str]:
    return [field.name for field in fields(kind)]


def rows(head: str, command: str = "dovetail free") -> dict[str, Row]:
    return {row.code[0][0]: row for row in page("docs/reference/cli.md").section(command).rows(head)}


@pytest.mark.parametrize(
    ("head", "kind"),
    [
        ("field", PricedFree),
        ("field of `stranded`", StrandedGpus),
        ("field of the `price` of `free`", StrandedPrice),
        ("field of `gpus`", FreeGpus),
        ("field of `mig`", MigCards),
        ("field of `shared`", SharedCards),
        ("field of `classes`", ClassDevices),
        ("field of `blocked`", Blocked),
    ],
)
def test_fields_of_the_answer(head: str, kind: type) -> None:
    assert list(rows(head)) == names(kind)


@pytest.mark.parametrize(
    ("row", "kind"),
    [
        (rows("field of `gpus`")["sizes"], FreeSize),
        (rows("field of `mig`")["profiles"], Instances),
        (rows("field of `shared`")["shares"], FreeShare),
        (rows("field", "dovetail why")["holders"], DeviceHolder),
        (rows("field", "dovetail why")["devices"], HolderRefused),
        (rows("field", "dovetail why")["parts"], HeldPart),
    ],
    ids=["sizes", "profiles", "shares", "holders", "devices", "parts"],
)
def test_fields_of_what_is_inside(row: Row, kind: type) -> None:
    assert set(names(kind)) <= set(re.findall(r"`(\w+)`", row.cells[1])) | {"node"}


def test_the_page_shows_what_is_printed() -> None:
    racks = {"gpu-1": "r1", "gpu-2": "r1", "gpu-3": "r2"}
    state = cluster(
        *(node(name, 8, "NVIDIA-H100-80GB-HBM3", rack) for name, rack in racks.items()),
        *(pod(f"p{i}", (GPU, i), on=name) for name, i in (("gpu-1", 3), ("gpu-2", 5))),
        pod("notebook", (GPU, 1), on="gpu-3", namespace="default"),
        mig("gpu-4", card(0, *MIXED)), pod("infer", (BIG, 1), on="gpu-4", namespace="default"),
        node("gpu-5", model="NVIDIA-A10", sharing=Sharing(SHARED_GPU, 1, 4), gpu_memory_mib=24_000),
        pod("chat", (SHARED_GPU, 1), on="gpu-5", namespace="default", gpu_milli=600),
    )  # fmt: skip
    printed = io.StringIO()
    show(priced_free(free(state), PriceBook([]), 0), Console(file=printed))
    (shown,) = [block.text for block in page("docs/how-to/what-still-fits.md").blocks if block.language == "text"]
    assert [line.split() for line in printed.getvalue().splitlines()] == [line.split() for line in shown.splitlines()]

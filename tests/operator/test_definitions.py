# SPDX-License-Identifier: Apache-2.0
"""Definitions are brought up to date and never taken back; those that do not fit are refused, and nothing is lost."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from copy import deepcopy
from typing import Any

import msgspec
import pytest

from dovetail import __version__
from dovetail.kube.api.client import Client
from dovetail.kube.api.config import load_kubeconfig
from dovetail.operator import manifest_objects
from dovetail.operator.definitions import DefinitionAction, Definitions, bring_up_to_date, plan, read
from dovetail.operator.live import LiveObject
from dovetail.operator.skew import RELEASE_ANNOTATION
from tools.controlplane.plane import Plane

Document = dict[str, Any]
QUEUE = next(one for one in manifest_objects.definitions() if one["spec"]["names"]["kind"] == "Queue")


def live(release: str | None = __version__, *, stored: tuple[str, ...] = ("v1alpha1",), **version: Any) -> LiveObject:
    document = deepcopy(QUEUE)
    document["metadata"]["annotations"] = {} if release is None else {RELEASE_ANNOTATION: release}
    document["spec"]["versions"][0] |= version
    document["status"] = {"storedVersions": list(stored)}
    return msgspec.convert(document, LiveObject)


@pytest.mark.parametrize(
    ("found", "action", "text"),
    [
        (None, DefinitionAction.CREATE, ""),
        (live(), DefinitionAction.UNCHANGED, ""),
        (live("0.0.9"), DefinitionAction.UPDATE, "metadata.annotations"),
        (live(None), DefinitionAction.UPDATE, "metadata.annotations"),
        (live(additionalPrinterColumns=[]), DefinitionAction.UPDATE, "spec.versions"),
        (live("0.1.7"), DefinitionAction.KEEP, "release 0.1.7 and stays"),
        (live("0.2.0", stored=("v1alpha1", "v1beta1")), DefinitionAction.KEEP, "release 0.2.0 and stays"),
        (live("0.3.0"), DefinitionAction.REFUSE, "too new for release 0.1.0: install release 0.3.0"),
        (live("1.0.0"), DefinitionAction.REFUSE, "too new"),
        (live("0.2.0", name="v1beta1"), DefinitionAction.REFUSE, "it serves v1beta1, and release 0.1.0 needs v1alpha1"),
        (live(None, served=False), DefinitionAction.REFUSE, "serves no version"),
        (live(stored=("v1alpha1", "v1beta1")), DefinitionAction.REFUSE, "stored as v1beta1"),
    ],
)
def test_what_becomes_of_a_definition(found: LiveObject | None, action: DefinitionAction, text: str) -> None:
    made = plan(QUEUE, found, "0.1.0")
    assert made.action is action
    assert text in made.text


@pytest.fixture
async def client(plane: Plane) -> AsyncIterator[Client]:
    async with Client(load_kubeconfig([plane.kubeconfig])) as client:
        yield client
        # A server that still opens the storage of a new kind tries again later and later.
        names = [f"{one}.{group}" for group in GROUPS for one in PLURALS]
        plane.kubectl("delete", "crd", "--ignore-not-found", "--wait=false", *names)


GROUPS = FIRST, SECOND = "example.dovetail.dev", "second.dovetail.dev"
"""One for each test: a definition that is being deleted cannot be made again."""
FEW = manifest_objects.definitions()[:3]
"""Each version of each costs a real server a third of a second. That it takes all of them is tested where the
manifests are."""
PLURALS = [f"test{one['spec']['names']['plural']}" for one in FEW]


def of_tests(group: str) -> list[Document]:
    """Some definitions in a group and by names of their own, as a session has one plane for all tests."""
    text = json.dumps(FEW)
    documents: list[Document] = json.loads(text.replace(".dovetail.dev", f".{group}"))
    for one in documents:
        one["spec"]["group"] = group
        # With the plural of the real one, `kubectl get queues` of a later test would find this kind instead.
        names = one["spec"]["names"]
        one["spec"]["names"] = {
            "kind": f"Test{names['kind']}",
            "listKind": f"Test{names['kind']}List",
            "plural": f"test{names['plural']}",
            "singular": f"test{names['singular']}",
        }
        one["metadata"]["name"] = f"test{names['plural']}.{group}"
        one["metadata"]["annotations"] |= {"api-approved.kubernetes.io": "unapproved"}
    return documents


def as_of(documents: list[Document], release: str) -> list[Document]:
    made = deepcopy(documents)
    for one in made:
        one["metadata"]["annotations"][RELEASE_ANNOTATION] = release
    return made


def actions(plans: Any) -> set[DefinitionAction]:
    return {one.action for one in plans}


@pytest.mark.plane
async def test_on_a_real_server_they_are_created_once_and_updated_but_not_taken_back(
    plane: Plane, client: Client
) -> None:
    now = of_tests(FIRST)
    old = as_of(now, "0.0.9")
    for one in old:
        one["spec"]["versions"][0]["additionalPrinterColumns"] = []
    assert actions(await bring_up_to_date(client, old, dry_run=True)) == {DefinitionAction.CREATE}
    assert actions(await bring_up_to_date(client, old)) == {DefinitionAction.CREATE}
    assert actions(await bring_up_to_date(client, old)) == {DefinitionAction.UNCHANGED}
    assert actions(await bring_up_to_date(client, now)) == {DefinitionAction.UPDATE}
    versions = {one: plane.kubectl("get", "crd", f"{one}.{FIRST}", "-o", "json") for one in PLURALS}
    assert actions(await bring_up_to_date(client, now)) == {DefinitionAction.UNCHANGED}
    assert actions(await bring_up_to_date(client, old)) == {DefinitionAction.KEEP}
    for kind, earlier in versions.items():
        after = json.loads(plane.kubectl("get", "crd", f"{kind}.{FIRST}", "-o", "json"))
        assert after["spec"] == json.loads(earlier)["spec"]
        assert after["metadata"]["generation"] == json.loads(earlier)["metadata"]["generation"]


@pytest.mark.plane
async def test_one_that_is_too_new_holds_up_all_and_is_reported(plane: Plane, client: Client) -> None:
    now = of_tests(SECOND)
    plane.kubectl("apply", "--server-side", "-f", "-", input=json.dumps(as_of(now[:1], "0.9.0")[0]))
    changed: list[str] = []
    definitions = Definitions(client, now, lambda: changed.append(""))
    assert await definitions.examine()
    assert "too new for release" in definitions.refusal
    assert actions(await read(client, now[1:])) == {DefinitionAction.CREATE}

# SPDX-License-Identifier: Apache-2.0
"""GPUs as a user writes them, and the models that are meant."""

from __future__ import annotations

import pytest

from dovetail.jobs.gpu_request import GpuRequest, NodeOffer, gpu_request, offered, products_meant
from dovetail.views.shape_types import ShapeError

GPU, SHARED = "nvidia.com/gpu", "nvidia.com/gpu.shared"
H100, H100_PCIE, A100 = "NVIDIA-H100-80GB-HBM3", "NVIDIA-H100-PCIe", "NVIDIA-A100-SXM4-80GB"
LABEL = "nvidia.com/gpu.product"


WHOLE = {GPU: "8"}
NODES = [NodeOffer({LABEL: H100}, WHOLE), NodeOffer({LABEL: H100_PCIE}, WHOLE), NodeOffer({LABEL: A100}, WHOLE)]


@pytest.mark.parametrize(
    ("text", "request_"),
    [
        ("8", GpuRequest(GPU, 8)),
        ("8xH100", GpuRequest(GPU, 8, 0, "H100")),
        ("1xNVIDIA-A100-SXM4-80GB", GpuRequest(GPU, 1, 0, "NVIDIA-A100-SXM4-80GB")),
        ("1xmig-3g.20gb", GpuRequest("nvidia.com/mig-3g.20gb", 1)),
        ("mig-1g.10gb", GpuRequest("nvidia.com/mig-1g.10gb", 1)),
        ("2xmig-1g.10gb+me", GpuRequest("nvidia.com/mig-1g.10gb+me", 2)),
        ("0.5", GpuRequest(SHARED, 1, 500)),
        (".125", GpuRequest(SHARED, 1, 125)),
        ("0.25xA10", GpuRequest(SHARED, 1, 250, "A10")),
        ("0", GpuRequest()),
    ],
)
def test_what_can_be_asked_for(text: str, request_: GpuRequest) -> None:
    assert gpu_request(text) == request_


@pytest.mark.parametrize(
    "text", ["", "x", "-1", "1.5", "0.0", "8x", "99", "1xmig-", "1xmig-3G.20gb", "8 xH100", "0.5x2"]
)
def test_what_is_no_request_is_refused_with_examples(text: str) -> None:
    with pytest.raises(ShapeError, match="are no GPUs of a pod: 8 are whole GPUs"):
        gpu_request(text)


def test_a_number_of_pods_is_that_of_nodes() -> None:
    with pytest.raises(ShapeError, match="use --nodes 4 --gpus 8xH100"):
        gpu_request("4x8xH100")


def test_a_model_means_all_labels_that_contain_it() -> None:
    assert products_meant(gpu_request("8xh100"), NODES) == (H100, H100_PCIE)
    assert products_meant(gpu_request("8xA100"), NODES) == (A100,)
    assert products_meant(gpu_request("8"), NODES) == ()


def test_only_nodes_that_offer_the_resource_count() -> None:
    nodes = [NodeOffer({LABEL: H100}, {GPU: "0", "nvidia.com/mig-3g.40gb": "2"}), NodeOffer({LABEL: A100}, WHOLE)]
    with pytest.raises(ShapeError, match=f"no node has GPUs of the model 'H100': there are {A100}"):
        products_meant(gpu_request("1xH100"), nodes)


def test_a_model_that_no_node_has_is_refused_with_similar_names() -> None:
    with pytest.raises(ShapeError, match=f"'NVIDIA-A100-SXM-80GB'; did you mean {A100}"):
        products_meant(gpu_request("1xNVIDIA-A100-SXM-80GB"), NODES)
    with pytest.raises(ShapeError, match=f"no node has the label {LABEL}"):
        products_meant(gpu_request("1xH100"), [NodeOffer({}, WHOLE)])


def test_without_the_nodes_the_known_products_are_meant() -> None:
    found = products_meant(gpu_request("8xH100"), None)
    assert H100 in found and all("H100" in one for one in found)
    with pytest.raises(ShapeError, match="the nodes cannot be read"):
        products_meant(gpu_request("8xZ9"), None)
    assert products_meant(gpu_request("8xNVIDIA-Z9-1TB"), None) == ("NVIDIA-Z9-1TB",)


def test_a_part_of_a_gpu_has_the_name_under_which_the_nodes_share_them() -> None:
    part = gpu_request("0.5")
    assert offered(part, None).resource == SHARED
    assert offered(part, [NodeOffer({}, {SHARED: "32"}), *NODES]).resource == SHARED
    assert offered(part, NODES).resource == GPU
    assert offered(gpu_request("8"), []).resource == GPU

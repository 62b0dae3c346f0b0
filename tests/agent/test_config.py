# SPDX-License-Identifier: Apache-2.0
"""The configuration file: what NVIDIA's device plugin reads, with every field answered for."""

from __future__ import annotations

from pathlib import Path

import pytest

from dovetail.agent.config import _FIELDS, AgentConfigError, Config, Shared, read
from dovetail.agent.config_values import RdmaResource
from tests.docs.pages import page


def config(folder: Path, text: str) -> Config:
    path = folder / "config.yaml"
    path.write_text(text)
    return read(path)


def problems(folder: Path, text: str) -> list[str]:
    with pytest.raises(AgentConfigError) as error:
        config(folder, text)
    return [line.partition("config.yaml:")[2] for line in str(error.value).splitlines()]


def test_without_fields_the_defaults_count_and_nothing_is_shared(tmp_path: Path) -> None:
    assert config(tmp_path, "version: v1\n") == Config()
    assert Config().device_list_strategies == ("cdi-cri",)


def test_a_file_without_a_version_is_of_this_one(tmp_path: Path) -> None:
    assert config(tmp_path, "flags: {migStrategy: single}\n").mig_strategy == "single"


@pytest.mark.parametrize("way", ["timeSlicing", "mps"])
def test_one_replica_is_the_device_itself(tmp_path: Path, way: str) -> None:
    text = f"sharing: {{{way}: {{resources: [{{name: gpu, replicas: 1}}, {{name: mig-1g.5gb, replicas: 1}}]}}}}\n"
    assert config(tmp_path, text).sharing == {}


def test_channels_of_imex(tmp_path: Path) -> None:
    assert config(tmp_path, "imex: {channelIDs: [0], required: true}\n") == Config(
        imex_channels=(0,), imex_required=True
    )


WHOLE = """version: v1
flags:
  migStrategy: "none"
  failOnInitError: true
  nvidiaDriverRoot: "/"
  plugin:
    passDeviceSpecs: false
    deviceListStrategy: "envvar"
    deviceIDStrategy: "uuid"
"""
REPLICAS = """version: v1
sharing:
  {way}:
    {more}
    resources:
    - name: nvidia.com/gpu
      replicas: 10
"""
UPSTREAM = {
    "As a configuration file": WHOLE,
    "Multiple Config File Example": WHOLE.replace('"none"', '"mixed" # Only change from config0.yaml'),
    "With CUDA Time-Slicing": REPLICAS.format(way="timeSlicing", more=""),
    "With CUDA Time-Slicing, renamed": REPLICAS.format(way="timeSlicing", more="renameByDefault: true"),
    "With CUDA MPS": REPLICAS.format(way="mps", more=""),
    "With CUDA MPS, renamed": REPLICAS.format(way="mps", more="renameByDefault: true"),
    "IMEX Support": "imex: {channelIDs: [0], required: true}",
}
"""The examples of the README of NVIDIA's device plugin (release 0.17), by section."""


@pytest.mark.parametrize("text", UPSTREAM.values(), ids=UPSTREAM)
def test_the_files_that_nvidia_prints_are_read(tmp_path: Path, text: str) -> None:
    assert isinstance(config(tmp_path, text), Config)


def test_an_empty_file_is_no_configuration(tmp_path: Path) -> None:
    assert config(tmp_path, "") == Config()


def test_every_field_that_decides_something(tmp_path: Path) -> None:
    found = config(
        tmp_path,
        """
version: v1
flags:
  migStrategy: mixed
  mpsRoot: /run/mps
  nvidiaDriverRoot: /run/nvidia/driver
  nvidiaDevRoot: /run/nvidia/driver
  gdrcopyEnabled: true
  gdsEnabled: true
  mofedEnabled: true
  plugin:
    passDeviceSpecs: true
    deviceListStrategy: [envvar, cdi-annotations, cdi-cri]
    deviceIDStrategy: index
    cdiAnnotationPrefix: cdi.example/
    sharedDevicesAllocationPolicy: packed
sharing:
  timeSlicing:
    renameByDefault: true
    failRequestsGreaterThanOne: true
    resources:
    - {name: nvidia.com/gpu, replicas: 4}
    - {name: mig-1g.5gb, replicas: 2}
""",
    )
    assert found == Config(
        mig_strategy="mixed",
        device_list_strategies=("envvar", "cdi-annotations", "cdi-cri"),
        device_id_strategy="index",
        pass_device_specs=True,
        shared_devices_allocation_policy="packed",
        cdi_annotation_prefix="cdi.example/",
        gdrcopy=True,
        gds=True,
        mofed=True,
        driver_root=Path("/run/nvidia/driver"),
        dev_root=Path("/run/nvidia/driver"),
        mps_root=Path("/run/mps"),
        sharing={
            "nvidia.com/gpu": Shared("time-slicing", 4, True, "nvidia.com/gpu.shared"),
            "nvidia.com/mig-1g.5gb": Shared("time-slicing", 2, True, "nvidia.com/mig-1g.5gb.shared"),
        },
    )


def test_strategies_may_be_one_name_or_several(tmp_path: Path) -> None:
    text = "version: v1\nflags: {plugin: {deviceListStrategy: volume-mounts}}\n"
    assert config(tmp_path, text).device_list_strategies == ("volume-mounts",)


@pytest.mark.parametrize(
    ("way", "field", "one_only"),
    [
        ("timeSlicing", "", False),
        ("mps", "", True),
        ("mps", "failRequestsGreaterThanOne: false", False),
        ("timeSlicing", "failRequestsGreaterThanOne: true", True),
        ("timeSlicing", "failRequestsGreaterThanOne: null", False),
    ],
)
def test_more_than_one_replica_is_refused_with_mps_by_default(
    tmp_path: Path, way: str, field: str, one_only: bool
) -> None:
    text = f"version: v1\nsharing:\n  {way}:\n    resources: [{{name: nvidia.com/gpu, replicas: 2}}]\n    {field}\n"
    assert config(tmp_path, text).sharing["nvidia.com/gpu"].fail_requests_greater_than_one is one_only


def test_mps_counts_with_a_note_if_both_ways_are_configured(tmp_path: Path) -> None:
    found = config(
        tmp_path,
        """version: v1
sharing:
  timeSlicing: {resources: [{name: nvidia.com/gpu, replicas: 8}]}
  mps: {resources: [{name: nvidia.com/gpu, replicas: 3}]}
""",
    )
    assert (found.sharing["nvidia.com/gpu"].strategy, found.sharing["nvidia.com/gpu"].replicas) == ("mps", 3)
    assert any("sharing.timeSlicing: has no effect" in note for note in found.notes)


NOTED = {
    "flags: {failOnInitError: true}": "flags.failOnInitError",
    "flags: {plugin: {deviceIDStrategy: index}}": "flags.plugin.deviceIDStrategy",
    "sharing: {timeSlicing: {resources: [{name: nvidia.com/gpu, replicas: 1}]}}": "resources[0].replicas",
    "flags: {useNodeFeatureAPI: true}": "flags.useNodeFeatureAPI",
    "flags: {plugin: {nvidiaCTKPath: /usr/bin/nvidia-ctk}}": "flags.plugin.nvidiaCTKPath",
    "flags: {plugin: {containerDriverRoot: /driver-root}}": "flags.plugin.containerDriverRoot",
    "flags: {gfd: {sleepInterval: 60s}}": "flags.gfd.sleepInterval",
    "flags: {gfd: {oneshot: true}}": "flags.gfd.oneshot",
    "resources: {gpus: [{pattern: '*', name: fast}]}": "resources.gpus",
    "sharing: {timeSlicing: {resources: [{name: nvidia.com/gpu, replicas: 2, rename: slow}]}}": "resources[0].rename",
    "sharing: {timeSlicing: {resources: [{name: nvidia.com/gpu, replicas: 2, devices: 1}]}}": "resources[0].devices",
}


@pytest.mark.parametrize("field", NOTED)
def test_a_known_field_without_effect_is_noted_with_its_place(tmp_path: Path, field: str) -> None:
    notes = config(tmp_path, f"version: v1\n{field}\n").notes
    assert len(notes) == 1 and NOTED[field] in notes[0] and "config.yaml:2: " in notes[0]


@pytest.mark.parametrize(
    "field",
    [
        "flags: {failOnInitError: false, useNodeFeatureAPI: false, deviceDiscoveryStrategy: auto}",
        "imex: {channelIDs: [], required: false}",
        "sharing: {timeSlicing: {resources: [{name: nvidia.com/gpu, replicas: 2, devices: all}]}}",
        "sharing: {timeSlicing: {resources: []}}",
    ],
)
def test_what_asks_for_what_is_so_anyhow_is_not_noted(tmp_path: Path, field: str) -> None:
    assert config(tmp_path, f"version: v1\n{field}\n").notes == ()


BAD = [
    ("flags: {migStrategie: mixed}", "flags.migStrategie: is not a known field; nearest valid value: migStrategy"),
    ("flags: {migStrategy: mixd}", "flags.migStrategy: must be one of none, single, mixed; nearest valid value: mixed"),
    ("flags: {plugin: {deviceListStrategy: envar}}", "nearest valid value: envvar"),
    ("flags: {plugin: {deviceListStrategy: []}}", "must name at least one of"),
    ("flags: {plugin: {deviceListStrategy: [envvar, volume-mounts]}}", "to different values"),
    ("flags: {gdsEnabled: true}", "deviceListStrategy must have envvar or volume-mounts"),
    ("flags: {plugin: {passDeviceSpecs: 'yes'}}", "flags.plugin.passDeviceSpecs: must be true or false"),
    ("flags: {nvidiaDriverRoot: run/nvidia}", "nearest valid value: /run/nvidia"),
    ("flags: {deviceDiscoveryStrategy: tegra}", "must be one of auto, nvml"),
    ("flags: [migStrategy]", "flags: must have fields"),
    ("sharings: {}", "sharings: is not a known field; nearest valid value: sharing"),
    ("imex: {channelIDs: [0, 1]}", "imex.channelIDs: must be [] or [0]"),
    ("imex: {channelIDs: 0}", "imex.channelIDs: must be [] or [0]"),
    ("sharing: {timeSlicing: {resources: [{name: nvidia.com/gpu}]}}", "resources[0].replicas: must be a whole number"),
    ("sharing: {mps: {resources: [{name: nvidia.com/gpu, replicas: 0}]}}", "must be a whole number from 1"),
    ("sharing: {mps: {resources: [{name: nvidia.com/gpu, replicas: true}]}}", "must be a whole number from 1"),
    ("sharing: {mps: {renameByDefault: true, resources: [{name: gpu, replicas: 1}]}}", "leave renameByDefault out"),
    ("sharing: {mps: {resources: [{name: nvidia.com/gup, replicas: 2}]}}", "nearest valid value: nvidia.com/gpu"),
    ("sharing: {mps: {resources: [{name: nvidia.com/mig-1g.5gb, replicas: 2}]}}", "MPS does not share MIG instances"),
    ("sharing: {mps: {resources: [{name: gpu, replicas: 2}, {name: nvidia.com/gpu, replicas: 2}]}}", "shared twice"),
    (
        "sharing: {mps: {resources: [{name: gpu, replica: 2}]}}",
        "replica: is not a known field; nearest valid value: rep",
    ),
    ("sharing: {mps: {resources: {name: gpu}}}", "must be a list"),
]


@pytest.mark.parametrize(("field", "expected"), BAD)
def test_a_bad_field_is_reported_with_line_path_and_nearest_value(tmp_path: Path, field: str, expected: str) -> None:
    found = problems(tmp_path, f"version: v1\n{field}\n")
    assert len(found) == 1 and found[0].startswith("2: ") and expected in found[0]


def test_all_problems_are_reported_at_once(tmp_path: Path) -> None:
    text = "version: v1\nflags:\n  migStrategy: 7\n  plugin:\n    passDeviceSpec: true\nsharing: no\n"
    assert [line.split(":")[0] for line in problems(tmp_path, text)] == ["3", "5", "6"]


@pytest.mark.parametrize("text", ["version: v2\n", "version: 1\n"])
def test_another_version_is_refused(tmp_path: Path, text: str) -> None:
    assert "must be" in problems(tmp_path, text)[0] and "v1" in problems(tmp_path, text)[0]


def test_a_field_that_is_there_twice_is_refused(tmp_path: Path) -> None:
    text = "version: v1\nflags:\n  migStrategy: mixed\n  migStrategy: none\n"
    assert "there twice" in problems(tmp_path, text)[0]


def test_an_absent_file_and_a_second_document_are_refused(tmp_path: Path) -> None:
    with pytest.raises(AgentConfigError, match=r"absent\.yaml: cannot be read"):
        read(tmp_path / "absent.yaml")
    with pytest.raises(AgentConfigError, match=r"config\.yaml:3: the file must have one document"):
        config(tmp_path, "version: v1\n---\nversion: v1\n")


def test_every_field_is_documented_and_the_example_is_read(tmp_path: Path) -> None:
    reference = page("docs/reference/agent-config.md")
    rows = reference.rows("field")
    assert [row.code[0][0] for row in rows] == list(_FIELDS)
    assert config(tmp_path, reference.blocks[0].text).notes == ()
    for row in rows:
        noted = bool(_FIELDS[row.code[0][0]].why)
        assert noted == any(text in row.cells[3] for text in ("has no effect", "as above")) or "imex" in row.cells[0]


def test_documented_defaults_are_the_defaults() -> None:
    for row in page("docs/reference/agent-config.md").rows("field"):
        attribute, shown = _FIELDS[row.code[0][0]].attribute, row.code[2]
        default = getattr(Config(), attribute, None) if attribute else None
        if isinstance(default, str) or (default and isinstance(default, tuple)):
            assert shown == ([default] if isinstance(default, str) else list(default))
        elif isinstance(default, bool):
            assert row.cells[2].strip() == str(default).lower()


def test_the_file_of_the_rdma_shared_device_plugin_is_a_section(tmp_path: Path) -> None:
    text = """rdma:
  periodicUpdateInterval: 60
  configList:
  - {resourceName: a, rdmaHcaMax: 1000, devices: [ib0, ib1]}
  - resourceName: b
    resourcePrefix: example.com
    rdmaHcaMax: 0
    selectors: {vendors: ["15b3"], deviceIDs: [], linkTypes: [ether]}
"""
    found = config(tmp_path, text)
    assert found.notes == () and found.rdma == (
        RdmaResource("rdma/a", 1000, {"ifNames": ("ib0", "ib1")}),
        RdmaResource("example.com/b", 0, {"vendors": ("15b3",), "linkTypes": ("ether",)}),
    )


@pytest.mark.parametrize(
    ("listed", "problem"),
    [
        ("[]", ": must be a list with at least one entry"),
        ("[1]", "[0]: must have fields of resourceName"),
        ("[{resourceName: a-b}]", "[0].resourceName: must be up to 63"),
        ("[{resourceName: a, rdmaHcaMax: -1}]", "[0].rdmaHcaMax: must be a whole number from 0 to 10000"),
        ("[{resourceName: a, rdmaHcaMax: 1}]", "[0]: must have either selectors or devices"),
        ("[{resourceName: a, rdmaHcaMax: 1, devices: [x], selectors: {vendors: [y]}}]", "[0]: must have either"),
        ("[{resourceName: a, rdmaHcaMax: 1, selectors: {vendor: [y]}}]", "valid value: vendors"),
        ("[{resourceName: a, rdmaHcaMax: 1, selectors: {deviceIDs: [1017]}}]", "a PCI id needs quotes"),
        ("[{resourceName: a, rdmaHcaMax: 1, devices: [x], max: 1}]", "[0].max: is not a known field"),
        ("[{resourceName: gpu, resourcePrefix: nvidia.com, rdmaHcaMax: 1, devices: [x]}]", "is offered already"),
        ("[{resourceName: a, resourcePrefix: kubernetes.io, rdmaHcaMax: 1, devices: [x]}]", "[0].resourcePrefix: must"),
        ("[&a {resourceName: a, rdmaHcaMax: 1, devices: [x]}, *a]", "[1].resourceName: rdma/a is offered already"),
    ],
)
def test_wrong_rdma_resources_are_refused_with_their_place(tmp_path: Path, listed: str, problem: str) -> None:
    (found,) = problems(tmp_path, f"rdma:\n  configList: {listed}\n")
    assert "rdma.configList" in found and problem in found


def test_the_network_of_jobs(tmp_path: Path) -> None:
    found = config(tmp_path, "network: {environment: true, hostInterface: bond0.7}\n")
    assert (found.network_environment, found.host_interface, found.notes) == (True, "bond0.7", ())


@pytest.mark.parametrize("name", ["''", "a b", "'eth0,eth1'", "3", "x" * 16, "../x"])
def test_a_wrong_interface_is_refused_with_its_place(tmp_path: Path, name: str) -> None:
    (found,) = problems(tmp_path, f"network: {{hostInterface: {name}}}\n")
    assert "network.hostInterface: must be the name of a network interface" in found

# SPDX-License-Identifier: Apache-2.0
"""Named layouts: what a file may contain, what is generated, and what is refused with which reason."""

from pathlib import Path

import pytest

from dovetail.agent.machine.host import Gpu, GpuProfile
from dovetail.agent.machine.host import GpuEngines as ReportedEngines
from dovetail.agent.mig.geometry import arranged, geometry_of
from dovetail.agent.mig.layouts import OFF, Candidate, Layouts, MigLayoutError, WantedLayout, exact, read_layouts
from dovetail.core.devices.mig.geometry import Geometry
from dovetail.core.devices.mig.instances import states
from dovetail.core.devices.mig.products import GEOMETRIES, of_product
from dovetail.kube.manifests.documents import ManifestError

A100, A30, H100, PRO = (
    of_product(name)
    for name in (
        "NVIDIA A100-SXM4-40GB",
        "NVIDIA A30",
        "NVIDIA H100 80GB HBM3",
        "NVIDIA RTX PRO 6000 Blackwell Server Edition",
    )
)


def candidates(*geometries: Geometry | None, device: int = 0x20B010DE) -> list[Candidate]:
    return [
        Candidate(i, one.products[0] if one else "NVIDIA L40S", device, one is not None, one)
        for i, one in enumerate(geometries)
    ]


def file(folder: Path, text: str) -> Path:
    path = folder / "layouts.yaml"
    path.write_text(text)
    return path


GOOD = """
version: v1
mig-configs:
  all-balanced:
    - {device-filter: ["0x20B010DE", "0x20B110DE"], devices: all, mig-enabled: true, mig-devices: {1g.5gb: 7}}
    - {device-filter: 0x233010DE, devices: all, mig-enabled: true, mig-devices: {"1g.10gb": 3, "1g.10gb+me": 1}}
  half:
    - {devices: [0], mig-enabled: true, mig-devices: {3g.20gb: 2}}
    - {devices: [1], mig-enabled: false}
  twice:
    - {devices: all, mig-enabled: false}
    - {devices: [1], mig-enabled: true, mig-devices: {}}
"""


def test_an_entry_is_about_the_gpus_of_its_indices_and_its_filter(tmp_path: Path) -> None:
    layouts = read_layouts(file(tmp_path, GOOD))
    assert layouts.of("half", candidates(A100, A100, A100)) == {0: WantedLayout(True, {"3g.20gb": 2}), 1: OFF}
    gpus = [*candidates(A100, A100), Candidate(2, "NVIDIA H100 80GB HBM3", 0x233010DE, True, H100)]
    assert layouts.of("all-balanced", gpus) == {
        0: WantedLayout(True, {"1g.5gb": 7}),
        1: WantedLayout(True, {"1g.5gb": 7}),
        2: WantedLayout(True, {"1g.10gb": 3, "1g.10gb+me": 1}),
    }


def test_two_entries_about_one_gpu_are_refused_with_their_lines(tmp_path: Path) -> None:
    layouts = read_layouts(file(tmp_path, GOOD))
    with pytest.raises(MigLayoutError, match=r"layouts\.yaml:11 and .*layouts\.yaml:12 both apply to GPU 1"):
        layouts.of("twice", candidates(A100, A100))


BAD = [
    ("version: v2\nmig-configs: {a: []}", r":1: version: 'v2': must be v1"),
    ("mig-configs: {a: []}", r"version: None: must be v1"),
    (
        "version: v1\nmig-config: {}",
        r":2: mig-config: 'mig-config': is not a known field; nearest valid value: mig-conf",
    ),
    ("version: v1\nmig-configs: {}", r"must name at least one layout"),
    ("version: v1\nmig-configs:\n  a: []", r":3: mig-configs\[a\]: \[\]: must be a list of at least one entry"),
    ("version: v1\nmig-configs:\n  a:\n  - 7", r"\[a\]\[0\]: 7: must be a mapping"),
    ("version: v1\nmig-configs:\n  a:\n  - {devices: all}", r":4: mig-configs\[a\]\[0\].mig-enabled: None: must be"),
    ("version: v1\nmig-configs:\n  a:\n  - {devices: all, mig-enabled: true}", r"mig-devices: None: is required"),
    (
        "version: v1\nmig-configs:\n  a:\n  - {devices: all, mig-enabled: false, mig-devices: {1g.5gb: 1}}",
        r"must be empty if mig-enabled is false",
    ),
    (
        "version: v1\nmig-configs:\n  a:\n  - {devices: some, mig-enabled: false}",
        r"'some': must be all, or a list of GPU indices",
    ),
    ("version: v1\nmig-configs:\n  a:\n  - {mig-enabled: false}", r"devices: None: must be all"),
    ("version: v1\nmig-configs:\n  a:\n  - {devices: [-1], mig-enabled: false}", r"\[-1\]: must be all"),
    (
        "version: v1\nmig-configs:\n  a:\n  - {devices: all, device-filter: 20B0, mig-enabled: false}",
        r"'20B0': must be a PCI device",
    ),
    (
        "version: v1\nmig-configs:\n  a:\n  - {devices: all, mig-enabled: true, mig-devices: {one: 1}}",
        r"'one': must be a profile such as",
    ),
    (
        "version: v1\nmig-configs:\n  a:\n  - {devices: all, mig-enabled: true, mig-devices: {1g.5gb: many}}",
        r"mig-devices\[1g.5gb\]: 'many': must be a whole number",
    ),
    (
        "version: v1\nmig-configs:\n  a:\n  - {devices: all, mig-enabeld: true}",
        r"'mig-enabeld': is not a known field; nearest valid value: mig-enabled",
    ),
    ("[]", r"must be a mapping"),
    ("version: v1\n---\nversion: v1", r"has 2 documents"),
]


@pytest.mark.parametrize(("text", "message"), BAD)
def test_a_wrong_file_is_refused_with_place_and_rule(text: str, message: str, tmp_path: Path) -> None:
    with pytest.raises(MigLayoutError, match=message):
        read_layouts(file(tmp_path, text))


def test_a_file_that_is_no_yaml_or_not_there_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ManifestError, match=r"layouts\.yaml"):
        read_layouts(file(tmp_path, "version: ["))
    with pytest.raises(ManifestError, match="cannot be read"):
        read_layouts(tmp_path / "none.yaml")


def test_layouts_are_generated_from_what_each_gpu_can_be() -> None:
    gpus = candidates(A100, A30, None)
    layouts = Layouts()
    assert layouts.of("all-disabled", gpus) == {0: OFF, 1: OFF}
    assert layouts.of("all-enabled", gpus) == {0: WantedLayout(True, {}), 1: WantedLayout(True, {})}
    assert layouts.of("all-1g.5gb", gpus) == {0: WantedLayout(True, {"1g.5gb": 7})}
    assert layouts.of("all-1g.10gb", gpus) == {0: WantedLayout(True, {"1g.10gb": 4})}
    assert layouts.of("all-1g.5gb.me", gpus) == {0: WantedLayout(True, {"1g.5gb+me": 1})}
    assert layouts.of("all-balanced", gpus) == {
        0: WantedLayout(True, {"1g.5gb": 2, "2g.10gb": 1, "3g.20gb": 1}),
        1: WantedLayout(True, {"1g.6gb": 2, "2g.12gb": 1}),
    }
    assert layouts.of("all-1g.24gb.me.all", candidates(PRO)) == {0: WantedLayout(True, {"1g.24gb+me.all": 1})}


@pytest.mark.parametrize("geometry", GEOMETRIES, ids=lambda geometry: geometry.key)
def test_every_generated_layout_is_one_that_the_product_can_have(geometry: Geometry) -> None:
    gpus, layouts = candidates(geometry), Layouts()
    names = layouts.names(gpus)
    assert len(names) == len(geometry.profiles) + 3
    for name in names:
        wanted = layouts.of(name, gpus)[0]
        placed = arranged(geometry, wanted.counts, (), ())
        assert placed is not None
        assert len(placed) == sum(wanted.counts.values())
        assert states(geometry).fault(geometry.bits(placed)) == ""


def test_a_layout_of_the_file_counts_before_the_generated_one(tmp_path: Path) -> None:
    layouts = read_layouts(file(tmp_path, GOOD))
    assert layouts.of("all-balanced", candidates(A100)) == {0: WantedLayout(True, {"1g.5gb": 7})}
    assert {"half", "all-2g.10gb", "all-disabled"} <= {*layouts.names(candidates(A100))}


@pytest.mark.parametrize(
    ("typo", "near"),
    [
        ("all-1g.5g", "all-1g.5gb"),
        ("all-2g-5gb", "all-2g.10gb"),
        ("all-dissabled", "all-disabled"),
        ("balanced", "all-balanced"),
        ("hlaf", "half"),
    ],
)
def test_a_typo_names_the_nearest_layout(typo: str, near: str, tmp_path: Path) -> None:
    layouts = read_layouts(file(tmp_path, GOOD))
    with pytest.raises(MigLayoutError, match=rf"no layout is named '{typo}'; nearest valid value: {near}$"):
        layouts.of(typo, candidates(A100))


TOO_MUCH = [
    ({"1g.5gb": 8}, "1g.5gb beside .*: it needs 1 compute slices and 0 are left"),
    ({"4g.20gb": 1, "3g.20gb": 1, "1g.5gb": 1}, "1g.5gb beside 4g.20gb@0, 3g.20gb@4: it needs 1 compute slices"),
    ({"3g.20gb": 2, "1g.5gb": 1}, "1g.5gb beside 3g.20gb@0, 3g.20gb@4: it needs 1 memory slices in a row"),
    ({"1g.5gb+me": 2}, r"1g.5gb\+me beside 1g.5gb\+me@6: a card can have 1 of it at most"),
    ({"4g.20gb": 2}, "4g.20gb beside 4g.20gb@0: it needs 4 compute slices and 3 are left"),
    ({"1g.12gb": 1}, "A100-40GB has no profile 1g.12gb; nearest valid value: 3g.20gb"),
    ({"1c.3g.20gb": 1}, "1c.3g.20gb: compute instances smaller than their GPU instance"),
]


@pytest.mark.parametrize(("counts", "reason"), TOO_MUCH)
def test_what_a_product_cannot_have_is_refused_with_profile_and_rule(
    counts: dict[str, int], reason: str, tmp_path: Path
) -> None:
    listed = ", ".join(f'"{name}": {count}' for name, count in counts.items())
    text = f"version: v1\nmig-configs:\n  much:\n  - {{devices: all, mig-enabled: true, mig-devices: {{{listed}}}}}\n"
    layouts = read_layouts(file(tmp_path, text))
    with pytest.raises(MigLayoutError, match=rf"layout much, GPU 0 \(NVIDIA A100-SXM4-40GB\): {reason}"):
        layouts.of("much", candidates(A100))


def test_mig_mode_is_refused_for_a_product_without_it_and_its_absence_is_not(tmp_path: Path) -> None:
    text = """
version: v1
mig-configs:
  divided: [{devices: all, mig-enabled: true, mig-devices: {}}]
  whole: [{devices: all, mig-enabled: false}]
"""
    layouts = read_layouts(file(tmp_path, text))
    with pytest.raises(MigLayoutError, match=r"GPU 0 \(NVIDIA L40S\): this product has no MIG mode"):
        layouts.of("divided", candidates(None))
    assert layouts.of("whole", candidates(None)) == {0: OFF}


def test_mig_mode_of_a_gpu_without_known_profiles_can_be_turned_on() -> None:
    unknown = [Candidate(0, "NVIDIA Z9", 0x1, True, None)]
    assert Layouts().of("all-enabled", unknown) == {0: WantedLayout(True, {})}
    with pytest.raises(MigLayoutError, match="apply all-enabled first"):
        exact(unknown[0], [("1g.5gb", 0)])


EXACT = [
    ([("1g.5gb", 7)], "1g.5gb starts at 0 or 1 or 2 or 3 or 4 or 5 or 6, not at 7"),
    ([("3g.20gb", 0), ("2g.10gb", 2)], "2g.10gb at 2: it overlaps another one"),
    ([("1g.5gb+me", 0), ("1g.5gb+me", 1)], r"1g.5gb\+me at 1: a card can have 1 of it at most"),
    ([("1g.5gb", 0), ("1g.5gb", 0)], "1g.5gb@0 is listed twice"),
    ([("1g.12gb", 0)], "has no profile 1g.12gb; nearest valid value: 3g.20gb"),
]


@pytest.mark.parametrize(("instances", "reason"), EXACT)
def test_instances_that_cannot_be_beside_each_other_are_refused(instances: list[tuple[str, int]], reason: str) -> None:
    with pytest.raises(MigLayoutError, match=rf"GPU 0 .*: .*{reason}"):
        exact(candidates(A100)[0], instances)
    assert exact(candidates(A100)[0], [("3g.20gb", 4), ("4g.20gb", 0)]) == (("4g.20gb", 0), ("3g.20gb", 4))


def test_what_is_there_and_has_a_place_stays() -> None:
    assert A100 is not None
    there = [("1g.5gb", 0), ("2g.10gb", 2), ("3g.20gb", 4)]
    # Left alone the arrangement has the single instances elsewhere.
    assert arranged(A100, {"1g.5gb": 2, "2g.10gb": 1, "3g.20gb": 1}, there, ()) == (
        ("1g.5gb", 0), ("1g.5gb", 1), ("2g.10gb", 2), ("3g.20gb", 4),
    )  # fmt: skip
    assert ("1g.5gb", 1) in (arranged(A100, {"1g.5gb": 1}, [], [("1g.5gb", 1)]) or ())
    assert arranged(A100, {"7g.40gb": 1}, there, [("1g.5gb", 0)]) is None


def gpu_of(geometry: Geometry, starts: bool = True) -> Gpu:
    """A GPU whose driver reports the profiles of the table."""
    profiles = tuple(
        GpuProfile(
            i,
            own.gi_id,
            own.name,
            own.compute_slices,
            own.memory_slices if starts else 0,
            own.starts if starts else (),
            own.most,
            own.memory_mib,
            ReportedEngines(own.sm_count, *own.engines),
        )
        for i, own in enumerate(geometry.profiles)
    )
    return Gpu(0, 0, "GPU-0", geometry.products[0], "0000:01:00.0", 40960, profiles=profiles)


@pytest.mark.parametrize("geometry", GEOMETRIES, ids=lambda geometry: geometry.key)
def test_the_profiles_of_a_driver_give_the_states_of_the_table(geometry: Geometry) -> None:
    found = geometry_of(gpu_of(geometry))
    assert found is not None
    assert states(found).classes.keys() == states(geometry).classes.keys()
    assert (found.memory_slices, found.compute_slices) == (geometry.memory_slices, geometry.compute_slices)


def test_the_table_has_the_placements_that_a_driver_does_not_report() -> None:
    assert A100 is not None
    assert geometry_of(gpu_of(A100, starts=False)) is A100

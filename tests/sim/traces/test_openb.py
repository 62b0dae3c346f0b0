# SPDX-License-Identifier: Apache-2.0
"""openb lists: what a row means, and that a list with anything wrong in it is refused as a whole, with the place."""

import gzip
from pathlib import Path

import pytest

from dovetail.core.fabric import DEFAULT_FABRIC
from dovetail.core.model import NodeTerm, Requirement
from dovetail.sim.traces.errors import TraceError
from dovetail.sim.traces.nodes import LEVELS, parse_uniform, uniform_nodes
from dovetail.sim.traces.openb import has_times, read_nodes, read_pods, unknown_models

NODES = "sn,cpu_milli,memory_mib,gpu,model\n"
SHORT = "name,cpu_milli,memory_mib,num_gpu,gpu_milli\n"
PODS = "name,cpu_milli,memory_mib,num_gpu,gpu_milli,gpu_spec,qos,pod_phase,creation_time,deletion_time,scheduled_time\n"
GIB = 2**30


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "list.csv"


def pod_row(cpu: str = "1000", memory: str = "1024", gpus: str = "1", milli: str = "1000", spec: str = "") -> str:
    return f"a,{cpu},{memory},{gpus},{milli},{spec},LS,Running,10,100,20\n"


def refused(read: object, file: Path) -> TraceError:
    assert callable(read)
    with pytest.raises(TraceError) as caught:
        read(file)
    assert caught.value.file == str(file)
    assert "\n" not in str(caught.value)
    return caught.value


def test_nodes(file: Path) -> None:
    file.write_text(f"{NODES}b,96000,786432,8,G2\na,32000,1024,0,\n")
    with_gpus, without = read_nodes(file)
    assert (with_gpus.name, with_gpus.labels) == (
        "b",
        (("kubernetes.io/hostname", "b"), ("nvidia.com/gpu.product", "G2")),
    )
    amounts = dict(with_gpus.allocatable)
    assert list(with_gpus.allocatable) == sorted(with_gpus.allocatable)
    assert (amounts["cpu"], amounts["memory"], amounts["nvidia.com/gpu"]) == (96_000, 768 * GIB, 8)
    assert amounts["pods"] >= 96_000
    assert without.labels == (("kubernetes.io/hostname", "a"),)
    assert "nvidia.com/gpu" not in dict(without.allocatable)


def test_a_pod_asks_for_whole_gpus_or_for_a_share_of_one(file: Path) -> None:
    file.write_text(f"{SHORT}whole,6000,12288,2,1000\none,6000,12288,1,1000\nshare,6000,12288,1,460\nnone,6000,0,0,0\n")
    whole, one, share, none = [job.pods[0].request for job in read_pods(file)]
    assert whole.resources == (("cpu", 6000), ("memory", 12 * GIB), ("nvidia.com/gpu", 2))
    assert (dict(one.resources)["nvidia.com/gpu"], one.gpu_milli) == (1, 0)
    assert (share.resources, share.gpu_milli) == ((("cpu", 6000), ("memory", 12 * GIB)), 460)
    assert (none.resources, none.gpu_milli, none.node_terms) == ((("cpu", 6000),), 0, None)


def test_a_job_is_a_lone_pod_with_its_times(file: Path) -> None:
    file.write_text(f"{PODS}a,1,1,0,0,,LS,Running,10,100.25,20\nb,1,1,0,0,,LS,Pending,15,100,\n")
    first, second = read_pods(file)
    (pod,) = first.pods
    assert (pod.uid, pod.key, pod.created_ms, pod.node, pod.gang) == ("a", "default/a", 10_000, "", "")
    assert (first.at_ms, first.duration_ms, first.gang) == (10_000, 80_250, None)
    assert (second.at_ms, second.duration_ms) == (15_000, None)
    assert has_times((first, second))


def test_a_list_without_times_is_there_from_the_start(file: Path) -> None:
    file.write_text(f"{SHORT}a,1,1,0,0\n")
    jobs = read_pods(file)
    assert [(job.at_ms, job.duration_ms) for job in jobs] == [(0, None)]
    assert not has_times(jobs)


def test_named_models_are_required(file: Path) -> None:
    file.write_text(PODS + pod_row(spec="V100M32|V100M16|V100M32"))
    (job,) = read_pods(file)
    required = Requirement("nvidia.com/gpu.product", "In", ("V100M16", "V100M32"))
    assert job.pods[0].request.node_terms == (NodeTerm((required,)),)


def test_equal_pods_share_one_request_and_rows_keep_their_order(file: Path) -> None:
    file.write_text(f"{SHORT}b,1,1,1,500\na,1,1,1,500\nc,2,1,1,500\n")
    b, a, c = [job.pods[0] for job in read_pods(file)]
    assert [b.name, a.name, c.name] == ["b", "a", "c"]
    assert a.request is b.request
    assert c.request is not b.request


def test_models_that_no_node_has_are_found(tmp_path: Path) -> None:
    (tmp_path / "nodes").write_text(f"{NODES}n,1,1,1,T4\n")
    rows = "a,1,1,1,1000,T4|A10\nb,1,1,1,1000,A10\nc,1,1,1,1000,T4\nd,1,1,1,1000,\n"
    (tmp_path / "pods").write_text(f"name,cpu_milli,memory_mib,num_gpu,gpu_milli,gpu_spec\n{rows}")
    assert unknown_models(read_nodes(tmp_path / "nodes"), read_pods(tmp_path / "pods")) == {"A10": 2}


@pytest.mark.parametrize(
    ("row", "field"),
    [
        (pod_row(cpu="12x"), "cpu_milli"),
        (pod_row(cpu="-1"), "cpu_milli"),
        (pod_row(cpu=""), "cpu_milli"),
        (pod_row(cpu="1e3"), "cpu_milli"),
        (pod_row(cpu="٣"), "cpu_milli"),
        (pod_row(cpu="9" * 5000), "cpu_milli"),
        (pod_row(memory="1.5"), "memory_mib"),
        (pod_row(memory="9" * 15), "memory_mib"),
        (pod_row(gpus="63"), "num_gpu"),
        (pod_row(milli="0"), "gpu_milli"),
        (pod_row(milli="1001"), "gpu_milli"),
        (pod_row(gpus="2", milli="500"), "gpu_milli"),
        (pod_row(gpus="0", milli="500"), "gpu_milli"),
        (pod_row(spec="A||B"), "gpu_spec"),
        (pod_row(spec="|"), "gpu_spec"),
        (",1,1,0,0,,LS,Running,10,100,20\n", "name"),
        ("a,1,1,0,0,,LS,Running,,100,20\n", "creation_time"),
        ("a,1,1,0,0,,LS,Running,10,1e2,20\n", "deletion_time"),
        ("a,1,1,0,0,,LS,Running,10,,soon\n", "scheduled_time"),
        ("a,1,1,0,0,,LS,Running,10,15,20\n", "deletion_time"),
    ],
)
def test_a_wrong_value_is_refused_with_line_and_field(file: Path, row: str, field: str) -> None:
    file.write_text(f"{PODS}ok,1,1,0,0,,LS,Running,10,100,20\n\n{row}")
    error = refused(read_pods, file)
    assert (error.line, error.field) == (4, field)
    assert str(error).startswith(f"{file}:4: {field}: ")


@pytest.mark.parametrize(
    ("row", "field"),
    [
        (",1,1,1,T4", "sn"),
        ("b,one,1,1,T4", "cpu_milli"),
        ("b,1,,1,T4", "memory_mib"),
        ("b,1,1,-1,T4", "gpu"),
        ("a,1,1,1,T4", "sn"),
    ],
)
def test_a_wrong_node_is_refused_with_line_and_field(file: Path, row: str, field: str) -> None:
    file.write_text(f"{NODES}a,1,1,1,T4\n{row}\n")
    error = refused(read_nodes, file)
    assert (error.line, error.field) == (3, field)


def test_a_pod_that_is_there_twice_is_refused(file: Path) -> None:
    file.write_text(f"{SHORT}a,1,1,0,0\na,2,1,0,0\n")
    error = refused(read_pods, file)
    assert (error.line, error.field) == (3, "name")


def test_missing_columns_are_named_with_those_found(file: Path) -> None:
    file.write_text("sn,cpu_milli,gpus\na,1,1\n")
    error = refused(read_nodes, file)
    assert error.message == "columns missing: memory_mib, gpu, model; found: sn, cpu_milli, gpus"


def test_times_come_together_or_not_at_all(file: Path) -> None:
    file.write_text(f"{SHORT.strip()},creation_time\na,1,1,0,0,5\n")
    assert "needed together: creation_time, deletion_time, scheduled_time" in str(refused(read_pods, file))


def test_a_column_that_is_there_twice_is_refused(file: Path) -> None:
    file.write_text("sn,sn,cpu_milli,memory_mib,gpu,model\na,b,1,1,1,T4\n")
    assert "twice" in str(refused(read_nodes, file))


def test_other_columns_blank_lines_and_a_byte_order_mark_are_passed_over(file: Path) -> None:
    file.write_bytes(b'\xef\xbb\xbf\r\nmodel,sn,gpu,note,memory_mib,cpu_milli\r\n\r\n  \r\nT4,a,1,"x,\ny",1,2\r\n')
    (node,) = read_nodes(file)
    assert (node.name, dict(node.allocatable)["cpu"]) == ("a", 2)


@pytest.mark.parametrize(("row", "count"), [("a,1,1,1", 4), ("a,1,1,1,T4,x", 6), ("a", 1)])
def test_a_row_of_another_length_is_refused(file: Path, row: str, count: int) -> None:
    file.write_text(f"{NODES}{row}\n")
    error = refused(read_nodes, file)
    assert (error.line, error.message) == (2, f"has {count} fields where the header has 5")


@pytest.mark.parametrize(("text", "message"), [("", "is empty"), ("\n\n", "is empty"), (NODES, "no row")])
def test_a_list_of_nothing_is_refused(file: Path, text: str, message: str) -> None:
    file.write_text(text)
    assert message in str(refused(read_nodes, file))


def test_an_open_quote_is_refused(file: Path) -> None:
    file.write_text(f'{NODES}a,1,1,1,"T4\n')
    assert "is not CSV" in str(refused(read_nodes, file))


def test_text_that_is_not_utf_8_is_refused_with_its_line(file: Path) -> None:
    file.write_bytes(NODES.encode() + b"a,1,1,1,T4\nb,1,1,1,\xe9\n")
    error = refused(read_nodes, file)
    assert error.line == 3
    assert "UTF-8" in error.message


def test_gzip_by_another_name_is_refused(file: Path) -> None:
    file.write_bytes(gzip.compress(NODES.encode() * 10))
    assert "its name must end in .gz" in str(refused(read_nodes, file))


def test_gzip(tmp_path: Path) -> None:
    file = tmp_path / "list.csv.gz"
    file.write_bytes(gzip.compress(f"{NODES}a,1,1,1,T4\n".encode()))
    assert [node.name for node in read_nodes(file)] == ["a"]


@pytest.mark.slow
def test_gzip_that_is_cut_short_is_refused_with_the_line_reached(tmp_path: Path) -> None:
    file = tmp_path / "list.csv.gz"
    rows = "".join(f"node-{i},{i},{i * i},1,T4\n" for i in range(50_000))
    packed = gzip.compress((NODES + rows).encode())
    file.write_bytes(packed[: len(packed) // 2])
    error = refused(read_nodes, file)
    assert 10_000 < error.line < 40_000
    assert "cannot be unpacked as gzip" in error.message


def test_gzip_that_is_damaged_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "list.csv.gz"
    packed = bytearray(gzip.compress(f"{NODES}a,1,1,1,T4\n".encode()))
    packed[-6] ^= 0xFF
    file.write_bytes(packed)
    assert "cannot be unpacked as gzip" in str(refused(read_nodes, file))


def test_what_is_not_gzip_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "list.csv.gz"
    file.write_text(NODES)
    assert "cannot be unpacked as gzip" in str(refused(read_nodes, file))


def test_a_missing_file_is_refused(tmp_path: Path) -> None:
    assert "No such file" in str(refused(read_pods, tmp_path / "nothing.csv"))


def test_equal_nodes_by_number() -> None:
    nodes = uniform_nodes(*parse_uniform("12x8"))
    assert [node.name for node in nodes[:2]] == ["node-00", "node-01"]
    assert len({node.name for node in nodes}) == 12
    assert all(dict(node.allocatable)["nvidia.com/gpu"] == 8 for node in nodes)
    assert all(list(node.allocatable) == sorted(node.allocatable) for node in nodes)


@pytest.mark.parametrize("spec", ["", "16", "16*8", "16x", "x8", "0x8", "16x0", "16x63", "-1x8", " 16x8", "999999x8"])
def test_what_is_no_cluster_is_refused(spec: str) -> None:
    with pytest.raises(TraceError, match="is no cluster such as 16x8"):
        parse_uniform(spec)


def test_equal_nodes_below_switches() -> None:
    nodes = uniform_nodes(*parse_uniform("2x3x4x8"))
    assert len(nodes) == 24
    inner, outer = ([dict(node.labels)[key] for node in nodes] for key in LEVELS[:2])
    assert inner == [f"switch-{i // 4}" for i in range(24)]
    assert outer == [f"switch-{i // 12}" for i in range(24)]
    assert all(key in DEFAULT_FABRIC for key in LEVELS)


@pytest.mark.parametrize("spec", ["2x2x2x2x2x2x8", "1000x1000x8", "2x0x4x8"])
def test_what_is_no_cluster_below_switches_is_refused(spec: str) -> None:
    with pytest.raises(TraceError, match="such as 4x32x8"):
        parse_uniform(spec)

"""Findings from facts: each fault planted alone is named, with what to do, and nothing else changes."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from machines import GIB, cpu, gpu, named

from questprof.doctor.checks import diagnose
from questprof.doctor.display import document, summary
from questprof.doctor.facts import CpuFacts, Facts, NcuFacts, NvmlFacts, TorchFacts, WriteFacts

CPU_BUILD = {"torch__num_gpus": 0, "torch__cuda": "", "torch__version": "2.13.0+cpu"}


def test_a_gpu_in_order_is_all_ok_and_goes_on_to_decide() -> None:
    found = diagnose(gpu())
    assert [f.name for f in found.findings if f.level != "ok"] == []
    assert (found.ready, found.device) == (True, "cuda")
    assert found.next_command == "questprof decide --shape llama-3.1-8b --time 10m -o decide.html"
    names = {finding.name for finding in found.findings}
    assert names >= {
        "GPU", "driver", "torch", "triton", "NVRTC", "counters", "Nsight Compute", "clocks", "ECC", "MIG",
        "L2 cache", "GPU memory", "CPU", "CPU governor", "write access", "FlashInfer", "memory",
    }  # fmt: skip
    assert summary(found) == "Ready to measure on this GPU."


def test_without_a_gpu_the_cpu_is_what_is_left() -> None:
    found = diagnose(cpu())
    assert (found.ready, found.device) == (True, "cpu")
    assert [f.name for f in found.findings if f.level != "ok"] == ["GPU"]
    assert found.next_command == "questprof decide --device cpu --shape tiny --time 2m -o decide.html"
    assert "CPU figures" in summary(found)
    assert not {f.name for f in found.findings} & {"ECC", "MIG", "clocks", "Nsight Compute", "FlashInfer"}


@pytest.mark.parametrize(
    ("changes", "name", "level", "says"),
    [
        (CPU_BUILD, "GPU", "fix", "CPU build"),
        ({"torch__num_gpus": 0, "nvml": NvmlFacts(error="Driver Not Loaded")}, "GPU", "fix", "--gpus all"),
        ({"torch__num_gpus": 0, "nvml__driver_cuda": (12, 8)}, "GPU", "fix", "Update the driver"),
        ({"torch__num_gpus": 0}, "GPU", "fix", "CUDA_VISIBLE_DEVICES"),
        ({"torch__capability": (7, 5)}, "GPU", "warning", "older than sm_80"),
        ({"nvml": NvmlFacts(error="NVML Shared Library Not Found")}, "NVML", "warning", "Not Found"),
        ({"torch__l2_bytes": 0}, "L2 cache", "warning", "cold"),
        ({"nvml__reasons": ("hardware thermal slowdown",)}, "clocks", "warning", "thermal"),
        ({"nvml__reasons": ("application clocks setting",)}, "clocks", "warning", "held down"),
        ({"nvml__temperature_c": 90}, "clocks", "warning", "hot"),
        ({"nvml__ecc_errors": 3}, "ECC", "warning", "3 uncorrected errors"),
        ({"nvml__mig": True}, "MIG", "warning", "one instance"),
        ({"nvml__processes": 1}, "GPU memory", "warning", "1 process on it"),
        ({"nvml__processes": 3}, "GPU memory", "warning", "3 processes on it"),
        ({"torch__free_bytes": GIB}, "GPU memory", "warning", "1 GiB free"),
        ({"nvrtc": "", "nvrtc_error": "no nvrtc"}, "NVRTC", "warning", "pip install -e '.[gpu]'"),
        ({"ncu": NcuFacts(error="ncu is not on PATH")}, "Nsight Compute", "warning", "not found"),
        ({"ncu": NcuFacts("/x/ncu", error="timed out")}, "Nsight Compute", "warning", "does not run"),
        ({"ncu__admin_only": True, "ncu__is_admin": False}, "counters", "warning", "RmProfilingAdminOnly: 1"),
        ({"versions": {"questprof": "0.1.0", "torch": "2.11.0", "triton": "3.6.0", "numba": "1"}},
         "FlashInfer", "warning", "pip install -e '.[baselines]'"),
        ({"cpu__load": 7.0}, "CPU", "warning", "busy, load average 7.0"),
        ({"cpu__free_bytes": 2 * GIB}, "memory", "warning", "2 GiB free"),
        ({"numba_error": "ImportError: llvmlite"}, "numba", "warning", "start: ImportError: llvmlite"),
        ({"torch__version": "2.9.1"}, "torch", "warning", "tested versions"),
        ({"writes": (WriteFacts("working folder", "/x", "Read-only file system"),)},
         "write access", "fix", "Read-only"),
        ({"writes": (WriteFacts("cache of CUDA stages", "/x", "Permission denied"),)},
         "write access", "warning", "XDG_CACHE_HOME"),
        ({"unanswered": ("ncu: no answer within 9 s",)}, "not answered", "warning", "9 s"),
    ],
)  # fmt: skip
def test_a_planted_fault_is_named(changes: dict[str, Any], name: str, level: str, says: str) -> None:
    found = diagnose(gpu(**changes))
    finding = named(found.findings, name)
    assert finding.level == level
    assert says in f"{finding.detail} {finding.fix} {finding.command}"
    assert found.ready
    others = {f.name for f in found.findings if f.level != "ok"} - {name}
    assert others <= {"NVML"}  # where the driver is away, both say so


def test_a_governor_matters_where_the_cpu_is_measured() -> None:
    slow = ("powersave",)
    assert named(diagnose(cpu(cpu__governors=slow)).findings, "CPU governor").level == "warning"
    assert named(diagnose(gpu(cpu__governors=slow)).findings, "CPU governor").level == "ok"
    names = {f.name for f in diagnose(cpu(cpu__governors=())).findings}
    assert "CPU governor" not in names


def without(name: str) -> dict[str, str]:
    return {key: value for key, value in gpu().versions.items() if key != name}


@pytest.mark.parametrize(
    ("facts", "name", "command"),
    [
        (cpu(versions=without("torch"), torch=TorchFacts(error="no torch")), "torch", "pip install 'torch"),
        (gpu(torch=TorchFacts(error="OSError: libcudart.so")), "torch", "--force-reinstall"),
        (gpu(versions=without("triton")), "triton", "pip install 'triton"),
        (cpu(versions=without("numba")), "numba", "pip install 'numba"),
        (cpu(numba_error="RuntimeError: shadowed"), "numba", "numba>=0.61' --force-reinstall"),
        (gpu(triton_error="ImportError: libtriton"), "triton", "--force-reinstall"),
        (cpu(cpu__free_bytes=100 << 20), "memory", "questprof doctor"),
    ],
)  # fmt: skip
def test_what_blocks_everything_is_the_next_thing_to_do(facts: Facts, name: str, command: str) -> None:
    found = diagnose(facts)
    assert not found.ready
    finding = named(found.findings, name)
    assert (finding.level, finding.blocks) == ("fix", True)
    assert command in found.next_command
    assert summary(found).startswith("Nothing can be measured here yet")


def test_triton_is_not_missed_where_there_is_none() -> None:
    found = diagnose(cpu(system="Darwin", versions=without("triton")))
    assert named(found.findings, "triton").level == "ok"
    assert found.ready


def test_an_import_that_took_too_long_is_not_a_fault() -> None:
    found = diagnose(cpu(numba_error=None, triton_error=None))
    assert found.ready
    for name in ("numba", "triton"):
        finding = named(found.findings, name)
        assert finding.level == "ok"
        assert finding.detail.endswith("its import took too long to try it")


def test_triton_that_does_not_start_costs_a_cpu_its_trace_alone() -> None:
    found = diagnose(cpu(triton_error="ImportError: libtriton"))
    assert found.ready
    assert named(found.findings, "triton").level == "warning"


def test_a_repair_goes_before_figures_of_the_cpu() -> None:
    found = diagnose(gpu(**CPU_BUILD))
    assert (found.ready, found.device) == (True, "cpu")
    assert "pip install" in found.next_command


def test_little_gpu_memory_asks_for_four_bit_weights() -> None:
    assert "--weights int4" in diagnose(gpu(torch__free_bytes=16 * GIB)).next_command
    assert "int4" not in diagnose(gpu(torch__free_bytes=40 * GIB)).next_command


def test_torch_that_took_too_long_leaves_a_gpu_unknown_and_not_absent() -> None:
    for facts, seen in (
        (cpu(torch=None), "no driver"),
        (cpu(torch=None, device_files=True), "a device file"),
    ):
        found = {finding.name: finding for finding in diagnose(facts).findings}
        assert found["GPU"].level == "warning"
        assert found["GPU"].detail.startswith("not known: torch did not answer in time; " + seen)
        assert "none here" not in found["GPU"].detail


def test_torch_that_took_too_long_leaves_the_drivers_word() -> None:
    found = diagnose(gpu(torch=None))
    assert found.device == "cuda"
    assert named(found.findings, "torch").level == "warning"
    assert named(found.findings, "GPU").level == "ok"


def test_the_document_is_whole() -> None:
    told = document(diagnose(cpu()))
    assert told["ready"] is True
    assert told["next"].startswith("questprof decide")
    assert {"name", "level", "detail", "fix", "command", "blocks"} == set(told["findings"][0])


TEXT = st.text(max_size=12)
MAYBE = st.none() | st.integers(0, 1 << 40)
FLAG = st.none() | st.booleans()
FACTS = st.builds(
    Facts,
    python=TEXT,
    system=st.sampled_from(["Linux", "Darwin", "Windows"]),
    versions=st.dictionaries(
        st.sampled_from(["torch", "triton", "numba", "questprof", "flashinfer-python"]), TEXT
    ),
    device_files=st.booleans(),
    torch=st.none() | st.builds(
        TorchFacts, version=TEXT, cuda=TEXT, num_gpus=st.integers(0, 3), free_bytes=st.integers(0, 1 << 40),
        error=TEXT, capability=st.none() | st.tuples(st.integers(0, 12), st.integers(0, 9)),
    ),
    nvml=st.none() | st.builds(
        NvmlFacts, num_gpus=st.integers(0, 3), sm_mhz=MAYBE, temperature_c=MAYBE, ecc=FLAG, ecc_errors=MAYBE,
        mig=FLAG, processes=MAYBE, error=TEXT,
        driver_cuda=st.none() | st.tuples(st.integers(), st.integers()),
    ),
    ncu=st.builds(NcuFacts, path=TEXT, error=TEXT, admin_only=FLAG, is_admin=st.booleans()),
    cpu=st.builds(CpuFacts, threads=st.integers(0, 999), free_bytes=MAYBE, load=st.none() | st.floats(0, 99)),
    writes=st.lists(st.builds(WriteFacts, TEXT, TEXT, TEXT), max_size=3).map(tuple),
    numba_error=st.none() | TEXT,
    triton_error=st.none() | TEXT,
    unanswered=st.lists(TEXT, max_size=2).map(tuple),
)  # fmt: skip


@given(facts=FACTS)
@example(facts=Facts(versions={"torch": "2.²"}))
@example(facts=gpu(torch__num_gpus=0, torch__cuda="²"))
@settings(max_examples=100, deadline=None)
def test_no_machine_makes_the_doctor_raise(facts: Facts) -> None:
    found = diagnose(facts)
    assert found.next_command
    assert {finding.level for finding in found.findings} <= {"ok", "warning", "fix"}
    assert all(f.level == "fix" for f in found.findings if f.blocks)
    assert all(f.fix or f.command for f in found.findings if f.level == "fix")
    assert found.ready == (not any(f.blocks for f in found.findings))

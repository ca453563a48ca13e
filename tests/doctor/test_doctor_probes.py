"""The edge: probes that fail, hang or lie are lines of the doctor, never an end of it."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from questprof.doctor import probes
from questprof.doctor.checks import diagnose
from questprof.doctor.facts import CpuFacts, NvmlFacts, TorchFacts
from questprof.doctor.nvml import nvml_facts
from questprof.doctor.torch_child import look

REAL_RUN = subprocess.run


class _Error(Exception):
    pass


def library(**answers: Any) -> Any:
    """A pynvml that answers what is given, by name, and raises for everything else."""

    class Fake(SimpleNamespace):
        NVMLError = _Error

        def __getattr__(self, name: str) -> Any:
            if not name.startswith("nvml"):
                raise AttributeError(name)
            if name not in answers:
                return _refuse
            return lambda *_: answers[name]

    return Fake()


def _refuse(*_: Any) -> None:
    raise _Error("Not Supported")


ONE = {"nvmlInit": None, "nvmlDeviceGetCount": 1, "nvmlDeviceGetHandleByIndex": object()}


def test_all_that_nvml_tells() -> None:
    found = nvml_facts(
        library(
            **ONE,
            nvmlSystemGetDriverVersion=b"580.1",
            nvmlSystemGetCudaDriverVersion=13020,
            nvmlDeviceGetName="NVIDIA H200",
            nvmlDeviceGetMemoryInfo=SimpleNamespace(total=100, free=40),
            nvmlDeviceGetClockInfo=345,
            nvmlDeviceGetMaxClockInfo=1980,
            nvmlDeviceGetCurrentClocksEventReasons=0x1 | 0x4,
            nvmlDeviceGetTemperature=35,
            nvmlDeviceGetEccMode=[1, 1],
            nvmlDeviceGetTotalEccErrors=2,
            nvmlDeviceGetMigMode=[0, 0],
            nvmlDeviceGetComputeRunningProcesses=["a", "b"],
        )
    )
    assert found == NvmlFacts(
        driver="580.1",
        driver_cuda=(13, 2),
        num_gpus=1,
        name="NVIDIA H200",
        memory_bytes=100,
        free_bytes=40,
        sm_mhz=345,
        max_sm_mhz=1980,
        memory_mhz=345,
        max_memory_mhz=1980,
        reasons=("software power cap",),
        temperature_c=35,
        ecc=True,
        ecc_errors=2,
        mig=False,
        processes=2,
    )


def test_what_nvml_does_not_tell_is_absent() -> None:
    assert nvml_facts(library(**ONE)) == NvmlFacts(num_gpus=1)
    assert nvml_facts(library()).error == "Not Supported"
    none = nvml_facts(library(nvmlInit=None, nvmlDeviceGetCount=0))
    assert none.error == "it lists no GPU"


def test_a_probe_that_raises_or_hangs_is_a_line() -> None:
    def fails() -> None:
        raise RuntimeError("planted")

    begun = time.monotonic()
    facts = probes.gather(
        {"nvml": fails, "torch": lambda: time.sleep(30), "cpu": lambda: CpuFacts("x", 4)}, seconds=0.2
    )
    assert time.monotonic() - begun < 5
    assert facts.cpu.name == "x"
    assert (facts.torch, facts.nvml) == (None, None)
    assert [text.split(":")[0] for text in facts.unanswered] == ["nvml", "torch"]
    assert "planted" in facts.unanswered[0]
    assert sum(f.name == "not answered" for f in diagnose(facts).findings) == 2


def test_the_driver_is_asked_before_torch_is_on_the_gpu() -> None:
    """Whichever comes first in the table; torch's child would be another process there."""
    order: list[str] = []

    def driver() -> NvmlFacts:
        time.sleep(0.1)
        order.append("nvml")
        return NvmlFacts(processes=0)

    def torch() -> TorchFacts:
        order.append("torch")
        return TorchFacts("2.13")

    facts = probes.gather({"torch": torch, "nvml": driver})
    assert order == ["nvml", "torch"]
    assert facts.nvml == NvmlFacts(processes=0)


def test_every_probe_fills_a_field_of_the_facts() -> None:
    names = set(probes.Facts.__dataclass_fields__)
    assert set(probes.PROBES) - {"nvrtc"} <= names


def child(monkeypatch: pytest.MonkeyPatch, program: str) -> None:
    """Let `program` be the child that looks at torch."""

    def run(command: list[str], **options: Any) -> Any:
        return REAL_RUN([sys.executable, "-c", program], **options)

    monkeypatch.setattr(subprocess, "run", run)


def test_torch_is_asked_in_a_child(monkeypatch: pytest.MonkeyPatch) -> None:
    child(monkeypatch, 'print("noise"); print(\'{"version": "2.13", "num_gpus": 1, "capability": [9, 0]}\')')
    assert probes.torch_facts() == TorchFacts(version="2.13", num_gpus=1, capability=(9, 0))


def test_torch_that_crashes_or_hangs(monkeypatch: pytest.MonkeyPatch) -> None:
    child(monkeypatch, "import os; os.write(2, b'cannot load\\n'); os._exit(11)")
    found = probes.torch_facts()
    assert found is not None
    assert "cannot load" in found.error
    child(monkeypatch, "import time; time.sleep(30)")
    assert probes.torch_facts(0.2) is None


def test_an_installed_package_is_imported_and_not_only_named(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    assert probes.import_error("json", "loads") == ""
    assert "no attribute 'njit'" in str(probes.import_error("json", "njit"))
    (tmp_path / "numba.py").write_text("print('noise')\nraise RuntimeError('shadowed')\n")
    (tmp_path / "triton.py").write_text("import os\nos._exit(7)\n")
    (tmp_path / "slow.py").write_text("import time\ntime.sleep(30)\n")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    assert probes.PROBES["numba_error"]() == "RuntimeError: shadowed"
    assert probes.PROBES["triton_error"]() == "its import ended the process: status 7"
    assert probes.import_error("slow", "x", 1.0) is None


def test_a_look_at_this_torch() -> None:
    found = look()
    assert found["version"]
    assert "error" not in found
    assert json.loads(json.dumps(found)) == found
    TorchFacts(**found)


def test_a_folder_that_cannot_be_written(tmp_path: Path) -> None:
    assert probes.write_error(tmp_path / "not" / "yet") == ""
    assert not (tmp_path / "not").exists()
    (tmp_path / "file").write_text("")
    assert probes.write_error(tmp_path / "file" / "below")


def test_governors_of_a_system(tmp_path: Path) -> None:
    for number, name in enumerate(("powersave", "powersave", "performance")):
        folder = tmp_path / f"cpu{number}" / "cpufreq"
        folder.mkdir(parents=True)
        (folder / "scaling_governor").write_text(f"{name}\n")
    assert probes.governors(tmp_path) == ("performance", "powersave")
    assert probes.governors(tmp_path / "absent") == ()


def test_ncu_found_and_its_version(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    from questprof.counters import ncu

    tool = tmp_path / "ncu"
    tool.write_text("#!/bin/sh\necho NVIDIA\necho Version 2025.3.1.0\n")
    tool.chmod(0o755)
    parameters = tmp_path / "params"
    parameters.write_text("Other: 2\nRmProfilingAdminOnly: 1\n")
    monkeypatch.setattr(ncu, "DRIVER_PARAMETERS", parameters)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    found = probes.ncu_facts()
    assert (found.path, found.version, found.admin_only) == (str(tool), "2025.3.1.0", True)
    tool.write_text("#!/bin/sh\nexec sleep 30\n")
    assert "timed out" in probes.ncu_facts(0.2).error
    monkeypatch.setattr(ncu, "DRIVER_PARAMETERS", tmp_path / "absent")
    assert probes.ncu_facts(0.2).admin_only is None

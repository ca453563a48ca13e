"""A stand-in for Nsight Compute with the worker under it: prints what the real one prints, needs no GPU.

`install(folder, behaviour)` writes an executable `ncu`. It answers --version, "profiles" by writing the plan
that a worker would write and a report, and prints the report's table on --import.
"""

from __future__ import annotations

import csv
import io
import json
import subprocess
import sys
import time
from pathlib import Path

import msgspec

from questprof.counters.ncu_plan import CALIBRATION, CALIBRATION_BYTES, Ended, Measured, Range, Request

LABELS = "thread Domain:Push/Pop_Range:PL_Type:PL_Value:CLR_Type:Color:Msg_Type:Msg"
NO_KERNELS = "==WARNING== No kernels were profiled."
SAID = {
    "permission": "==ERROR== ERR_NVGPUCTRPERM - The user does not have permission to access NVIDIA GPU "
    f"Performance Counters on the target device 0.\n{NO_KERNELS}",
    "dcgm": "==ERROR== An error was reported by the driver\n\n==ERROR== Profiling failed because a driver "
    "resource was unavailable. Ensure that no other tool (like DCGM) is concurrently collecting profiling "
    f'data.\n==ERROR== Failed to profile "read_kernel" in process 4242\n{NO_KERNELS}',
    "driver": "==ERROR== Cuda driver is not compatible with Nsight Compute.",
    "chip": "==ERROR== Profiling is not supported on device 0. To find out supported GPUs refer --list-chips "
    f"option.\n==PROF== Disconnected from process 4242\n{NO_KERNELS}",
    "option": "==ERROR== unrecognised option '--print-kernel-base'",
    "lock": "==ERROR== Failed to open the lock file /tmp/nsight-compute-lock",
}
"""Behaviours that end a run before it profiles anything."""
KERNELS = {
    "quest": ("score_paired", "select_attend_kernel"),
    "apart": ("score_paired", "_Z13select_kernelv", "attend_kernel"),
    "dense": ("dense_kernel",),
    "score": ("score_paired",),
    "select": ("_Z13select_kernelv",),
    "attend": ("attend_kernel",),
}
DRAM_READ = {"dense": 1000, "score": 100, "select": 10, "attend": 200, "quest": 290, "apart": 295}
"""Bytes that a range of one kernel reads, times the point's length."""


def install(folder: Path, behaviour: str = "ok") -> str:
    """The path of a new `ncu` in `folder` that behaves so."""
    program = folder / "ncu"
    program.write_text(f'#!/bin/sh\nexec "{sys.executable}" "{__file__}" "{behaviour}" "{folder}" "$@"\n')
    program.chmod(0o755)
    return str(program)


def commands(folder: Path) -> list[list[str]]:
    """The arguments of every profiling run so far."""
    log = folder / "commands.jsonl"
    return [json.loads(line) for line in log.read_text().splitlines()] if log.exists() else []


def say(text: str, code: int) -> None:
    print(text, flush=True)
    sys.exit(code)


def refuse(behaviour: str, request: Request, metrics: list[str], folder: Path) -> None:
    """End the run here where the behaviour says so."""
    if behaviour in SAID:
        say(SAID[behaviour], 1)
    if behaviour.removeprefix("lacks:") in metrics:
        say(f"==ERROR== Failed to find metric regex:^{behaviour[6:].replace('.', chr(92) + '.')}(\\.|$)", 1)
    if behaviour == "hang" or (behaviour == "hang-many" and len(request.points) > 1):
        child = subprocess.Popen(["sleep", "600"])
        (folder / "child.pid").write_text(str(child.pid))
        time.sleep(600)
    if behaviour == "no-fused" and request.mode == "pipelined" and request.fused:
        say("==ERROR== LaunchFailed\n==ERROR== An error occurred while trying to profile.", 1)


def table(rows: list[dict[str, str]], metrics: list[str]) -> str:
    """The raw page: header, units, rows."""
    units = {name: "ns" if "time" in name else "sector" if "sectors" in name else "byte" for name in metrics}
    header = ["ID", "Process ID", LABELS, "Kernel Name", "Block Size", *metrics]
    text = io.StringIO()
    writer = csv.DictWriter(text, header, restval="", quoting=csv.QUOTE_ALL)
    writer.writeheader()
    writer.writerows([units, *({"ID": str(i), **row} for i, row in enumerate(rows))])
    return text.getvalue()


class Worker:
    """Writes the plan of a request and gathers the rows that the profiler would report."""

    def __init__(self, request: Request, metrics: list[str]) -> None:
        self.request, self.metrics = request, metrics
        self.plan = Path(request.plan_path)
        self.rows: list[dict[str, str]] = []
        self.opened = 0

    def write(self, line: Range | Measured | Ended) -> None:
        with self.plan.open("ab") as plan:
            plan.write(msgspec.json.encode(line) + b"\n")

    def open(self, stage: str, kernels: tuple[str, ...], read: int) -> int:
        self.write(Range(stage, kernels))
        names = ("range",) if self.request.mode == "pipelined" else kernels
        for name in names:
            cells = {
                metric: f"{read:,}" if metric.startswith("dram__bytes_read") else "64"
                for metric in self.metrics
            }
            label = f'4242  "questprof:{stage}:none:none:none:none:none:none"  '
            self.rows.append(
                {"Kernel Name": name.removeprefix("_Z13").removesuffix("v"), LABELS: label, **cells}
            )
        self.opened += 1
        return self.opened - 1

    def run(self, behaviour: str) -> None:
        self.open(CALIBRATION, ("read_kernel",), CALIBRATION_BYTES + 1024)
        for index, point in enumerate(self.request.points):
            if behaviour == "crash" and index == 1:
                self.write(Range("score", KERNELS["score"]))
                return
            if behaviour == "refuse" and index == 1:
                self.write(Measured(point.point_id, "cuda", reason="no kernel for head_dim 80"))
                continue
            stages = ("dense", "score", "select", "attend") if self.request.mode == "isolated" else ("quest",)
            if point.policy == "dense":
                stages = ("dense",)
            ranges = []
            for stage in stages:
                kind = "apart" if stage == "quest" and not self.request.fused else stage
                ranges.append(self.open(stage, KERNELS[kind], DRAM_READ[kind] * point.seq_len))
            self.write(Measured(point.point_id, "cuda", tuple(ranges), 1.0))
        self.write(Ended())


def profile(behaviour: str, folder: Path, arguments: list[str]) -> None:
    with (folder / "commands.jsonl").open("a") as log:
        log.write(json.dumps(arguments) + "\n")
    request = msgspec.json.decode(Path(arguments[-1]).read_bytes(), type=Request)
    metrics = arguments[arguments.index("--metrics") + 1].split(",")
    report = Path(arguments[arguments.index("--export") + 1] + ".ncu-rep")
    print("==PROF== Connected to process 4242 (/usr/bin/python3.12)")
    refuse(behaviour, request, metrics, folder)
    worker = Worker(request, metrics)
    worker.run(behaviour)
    if behaviour == "unseen":
        say(f"==PROF== Disconnected from process 4242\n{NO_KERNELS}", 0)
    if behaviour == "lost":
        worker.rows.pop(2)
    if behaviour == "more":
        worker.rows.append({**worker.rows[-1], "Kernel Name": "elementwise_kernel", LABELS: ""})
    if behaviour == "absent":
        for row in worker.rows:
            row["dram__bytes_write.sum"] = "n/a"
    report.write_text(table(worker.rows, metrics))
    if behaviour == "crash":
        say(
            "RuntimeError: an illegal memory access\n==ERROR== The application returned an error code (1).", 1
        )
    say("==PROF== Disconnected from process 4242", 0)


def main() -> None:
    behaviour, folder, *arguments = sys.argv[1:]
    if arguments == ["--version"]:
        say(
            "NVIDIA (R) Nsight Compute Command Line Profiler\nCopyright (c) 2018-2025 NVIDIA Corporation\n"
            "Version 2025.3.1.0 (build 36398880) (public-release)",
            0,
        )
    if "--import" in arguments:
        say(Path(arguments[arguments.index("--import") + 1]).read_text(), 0)
    profile(behaviour, Path(folder), arguments)


if __name__ == "__main__":
    main()

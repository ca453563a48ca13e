"""The CUDA stages compile as they are launched, load 16 bytes at a time and spill nothing."""

from __future__ import annotations

import re
import subprocess
import tempfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
from cases import DTYPES
from cuda_launch import SHARED_BYTES, Launch, bare_cache, launch_all, record
from questprof_kernels.cuda_module import compile_cubin

triton = pytest.importorskip("triton", reason="cuobjdump comes with triton, which is not here")
pytest.importorskip("cuda.bindings.nvrtc", reason="needs cuda-bindings: pip install -e '.[test]'")

CUOBJDUMP = Path(triton.__file__).with_name("backends") / "nvidia" / "bin" / "cuobjdump"
K = 1024
LOAD = re.compile(r"\bLDG\b")
NARROW = re.compile(r"\bLDG\.E\S*\.[US](8|16)\b")
WIDE = re.compile(r"\bLDG(STS)?\.E\S*\.128\b")
ONCE = re.compile(r"\bLDG\.E\.NA\S*\.128\b")
RESIDENT_WARPS = 16
"""Of a multiprocessor, where the launch bounds of a kernel ask for so many."""
INSTRUCTION = re.compile(r"/\*[0-9a-f]{4,5}\*/\s+(.+?);\s+/\* 0x[0-9a-f]{16} \*/\s+/\* (0x[0-9a-f]{16}) \*/")


@dataclass(frozen=True)
class Compiled:
    """One launched kernel, compiled: resources read off the cubin, loads counted in its instructions."""

    architecture: int
    launch: Launch
    wide_loads: int
    loads_before_products: int  # 16-byte ones
    loads_before_stores: int  # 16-byte ones
    narrow_loads: int
    # Of a selection's rest; between loads of `score`'s boxes, of a prefill's tokens.
    waits_for_early_loads: int
    registers: int
    shared_bytes: int  # static
    stack_bytes: int
    local_bytes: int

    def __str__(self) -> str:
        definitions = " ".join(f"{name}={value}" for name, value in self.launch.definitions)
        return (
            f"sm_{self.architecture} {self.launch.name} {definitions}: stack {self.stack_bytes}, local "
            f"{self.local_bytes}, registers {self.registers}, 16-byte loads {self.wide_loads}"
        )

    def __getitem__(self, name: str) -> int:
        return dict(self.launch.definitions)[name]

    @property
    def wide_loads_needed(self) -> int:
        """Of one lane: its pieces of a tile's boxes, of the rows of its dims, or of 16 tokens' K and V."""
        head_dim = self["HEAD_DIM"]
        if self.launch.name == "score_paired":
            return self["TILE"] * head_dim // 128
        if self.launch.name == "score_transposed":
            return head_dim // 16 * min(2, self["GROUP"])
        if self.launch.name == "append_kernel":
            return 2 if self["LAYOUT"] < 2 else 0  # of a key and a value
        if self.launch.name == "append_pages_kernel":
            return 2 * self["TILE_SLOTS"] * head_dim // 256  # of K and of V
        return 0 if self.launch.name == "select_kernel" else head_dim // 8


def launches(architecture: int) -> Iterator[Launch]:
    """What the launchers launch: every kind on sm_90, each dtype and head_dim once elsewhere."""
    fp16, bf16, everything = DTYPES["fp16"], DTYPES["bf16"], architecture == 90
    with pytest.MonkeyPatch.context() as patch:
        recorder = record(patch, architecture)
        for layout in ("paired", "transposed"):
            for dtype, heads, kv_heads, head_dim in (
                (fp16, 32, 32, 128),
                (bf16, 16, 2, 64),
                *(((bf16, 32, 32, 128), (fp16, 16, 2, 64)) if everything else ()),
            ):
                launch_all(bare_cache([32 * K], 16, kv_heads, head_dim, dtype, layout), heads, 128)
            for group in (2, 4) if everything else (4,):
                launch_all(bare_cache([2 * K], summary_layout=layout), 8 * group, 32)
        # Of 128K tokens a thread of select holds many keys; of a batch every block takes 8 warps.
        launch_all(bare_cache([128 * K]), 8, 256)
        launch_all(bare_cache([8 * K] * 16, num_kv_heads=32), 32, 128)
        for page_size in (8, 64) if everything else ():
            launch_all(bare_cache([32 * K], page_size), 8, 2 * K // page_size)
    yield from recorder.launches


def specialisations() -> list[tuple[int, Launch]]:
    """The distinct ones of all targets.

    `attend_kernel` is left out: the fused kernel's file holds it, whatever the fused one defines.
    """
    found = {}
    for architecture in sorted(SHARED_BYTES):
        for launch in launches(architecture):
            if launch.name != "attend_kernel":
                key = architecture, launch.name, launch.definitions
                found.setdefault(key, (architecture, launch))
    return list(found.values())


def compiled(architecture: int, launch: Launch) -> list[Compiled]:
    """The launched kernel and, beside the fused one, `attend_kernel`."""
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(compile_cubin(launch.source, launch.definitions, architecture))
        file.flush()
        command = [str(CUOBJDUMP), "-res-usage", "-sass", file.name]
        report = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    names = [launch.name, *(["attend_kernel"] if launch.source == "attend.cu" else [])]
    return [_read(report, architecture, replace(launch, name=name)) for name in names]


def _read(report: str, architecture: int, launch: Launch) -> Compiled:
    """What cuobjdump's report says of one kernel: resources in one place, instructions in another."""
    parts = re.split(r"Function ?: |Function ", report)
    text = "".join(part for part in parts if re.match(rf"{launch.name}\b", part))
    sizes = {name: int(size) for name, size in re.findall(r"(REG|STACK|LOCAL|SHARED):(\d+)", text)}
    return Compiled(
        architecture,
        launch,
        wide_loads=len(WIDE.findall(text)),
        loads_before_products=len(WIDE.findall(text.partition("HMMA")[0])),
        loads_before_stores=len(WIDE.findall(text.partition("STG")[0])),
        narrow_loads=len(NARROW.findall(text)),
        waits_for_early_loads=_waits_for_early_loads(text, launch.name),
        registers=sizes["REG"],
        shared_bytes=sizes["SHARED"],
        stack_bytes=sizes["STACK"],
        local_bytes=sizes["LOCAL"],
    )


def _waits_for_early_loads(text: str, kernel: str) -> int:
    """Instructions that wait for K, V or boxes before they are wanted.

    Of the fused kernel, those between the early loads and the end of the selection; of `score` and of a
    prefill, those between their first and their last load, which in a prefill is that of a page's number.

    The upper word of an instruction says which of six counters its load holds until it has arrived (bits
    46 to 48), and which ones it waits for itself (bits 52 to 57): loads share them, and all are waited for.
    """
    code = [(name, int(upper, 16)) for name, upper in INSTRUCTION.findall(text)]
    loads = [at for at, (name, _) in enumerate(code) if ONCE.search(name)]

    def waits(begin: int, end: int, held: list[int]) -> int:
        counters = {code[at][1] >> 46 & 7 for at in held}
        return sum(any(upper >> 52 >> counter & 1 for counter in counters) for _, upper in code[begin:end])

    if kernel == "append_pages_kernel":
        loads.insert(0, max(at for at in range(loads[0]) if LOAD.search(code[at][0])))
    if kernel.startswith(("score", "append_pages")):
        return sum(waits(loads[i] + 1, loads[i + 1], loads[: i + 1]) for i in range(len(loads) - 1))
    if kernel != "select_attend_kernel":
        return 0
    barriers = [at for at, (name, _) in enumerate(code) if "BAR.SYNC" in name]
    first_barrier = min(at for at in barriers if at > loads[0])
    walking = [at for at in loads if at > first_barrier]
    early = [at for at in loads if at < first_barrier]
    if not walking:
        return 0  # all are of the walk: nothing is asked for early
    return waits(early[-1] + 1, max(at for at in barriers if at < walking[0]), early)


@pytest.fixture(scope="module")
def results() -> list[Compiled]:
    with ThreadPoolExecutor(2) as pool:
        return [one for found in pool.map(lambda job: compiled(*job), specialisations()) for one in found]


def test_every_kernel_is_compiled_for_every_target(results: list[Compiled]) -> None:
    stages = {"score_paired", "score_transposed", "select_kernel", "attend_kernel", "dense_kernel"}
    stages |= {"select_attend_kernel", "append_kernel", "append_pages_kernel"}
    assert {(r.launch.name, r.architecture) for r in results} == {
        (stage, architecture) for stage in stages for architecture in SHARED_BYTES
    }
    attention = [r for r in results if r.launch.source in ("attend.cu", "dense.cu") and r.architecture == 90]
    assert {r["GROUP"] for r in attention} == {1, 2, 4, 8}
    assert {r["PAGE_SIZE"] for r in attention} == {8, 16, 64}
    assert {r["WARPS"] for r in attention} >= {8, 16}
    prefills = [r for r in results if r.launch.name == "append_pages_kernel"]
    assert {(r["LAYOUT"], r["TILE_SLOTS"]) for r in prefills} >= {(0, 16), (1, 16), (2, 16), (0, 8), (1, 8)}


def test_tiles_are_loaded_16_bytes_at_a_time(results: list[Compiled]) -> None:
    assert not [str(r) for r in results if r.wide_loads < r.wide_loads_needed]
    # A token that widens a transposed box finds its numbers a row apart.
    assert not [str(r) for r in results if r.narrow_loads and r.launch.name != "append_kernel"]
    paired = [r for r in results if r.launch.name == "append_kernel" and r["LAYOUT"] < 2]
    assert paired
    assert not [str(r) for r in paired if r.narrow_loads]


def test_boxes_are_all_asked_for_before_the_first_product(results: list[Compiled]) -> None:
    """Left alone, the compiler saves registers and asks for some only when others have been used."""
    paired = [r for r in results if r.launch.name == "score_paired"]
    assert {r["GROUP"] for r in paired} >= {1, 4}
    assert not [str(r) for r in paired if r.loads_before_products < r.wide_loads_needed]


def test_a_tile_of_new_tokens_is_asked_for_before_any_of_it_is_written(results: list[Compiled]) -> None:
    """Nor is the number of its page waited for first."""
    prefills = [r for r in results if r.launch.name == "append_pages_kernel"]
    assert not [str(r) for r in prefills if r.loads_before_stores < r.wide_loads_needed]
    assert not [str(r) for r in prefills if r.waits_for_early_loads]


def test_the_rest_of_a_selection_does_not_wait_for_pages_asked_for_early(results: list[Compiled]) -> None:
    """A register that some path leaves unread is waited for where it is written again, and they with it."""
    fused = [r for r in results if r.launch.name == "select_attend_kernel" and r.architecture >= 90]
    assert {r["SLOTS"] for r in fused} >= {1, 4, 16}
    assert not [str(r) for r in fused if r.waits_for_early_loads]


def test_no_box_waits_for_another(results: list[Compiled]) -> None:
    """An address that shares a counter with boxes on their way would be made only when they have come.

    Of one query head a KV head: of groups some wait for the first boxes before they ask for the last two.
    """
    single = [r for r in results if r.launch.name.startswith("score") and r["GROUP"] == 1]
    single = [r for r in single if r.architecture >= 90]
    assert {r.launch.name for r in single} == {"score_paired", "score_transposed"}
    assert not [str(r) for r in single if r.waits_for_early_loads]


def test_nothing_of_the_cuda_stages_spills(results: list[Compiled]) -> None:
    assert not [str(r) for r in results if r.stack_bytes or r.local_bytes]


def test_the_blocks_that_a_plan_counts_on_are_resident_at_once(results: list[Compiled]) -> None:
    """Warps share 65536 registers and what shared memory the target has; a group's block has them alone."""
    crowded = []
    for result in results:
        if result.launch.source in ("attend.cu", "dense.cu", "append_pages.cu"):
            grouped = result.launch.source == "dense.cu" and result["GROUP"] > 1
            blocks = 1 if grouped else max(1, RESIDENT_WARPS // result["WARPS"])
            shared = result.shared_bytes + result.launch.shared_bytes
            available = SHARED_BYTES[result.architecture] + K  # K a block is the system's
            fits = blocks * (shared + K) <= available
            if not fits or blocks * result.launch.num_threads * result.registers > 65536:
                crowded.append(f"{result}, shared {shared}")
    assert not crowded

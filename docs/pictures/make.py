"""Makes the pictures of README.md and figures.md from the kept profiles: `python docs/pictures/make.py`."""

from __future__ import annotations

from pathlib import Path

from questprof.report import render
from questprof.report.picture_files import picture_files
from questprof.store import read_profile

HERE = Path(__file__).parent
PROFILES = HERE.parents[1] / "profiles"
PICTURES = {
    "h200/kernels.jsonl": {"length-scan-2": "length-scan"},
    "h200/grid.jsonl": {"plane-7": "plane"},
    "h200/bytes.jsonl": {"bytes-5": "bytes"},
    "h200/roofline.jsonl": {"roofline-1": "roofline", "roofline-2": "bandwidth"},
    "h200/amdahl-llama-2-7b.jsonl": {"amdahl-1": "decode-step"},
    "h200/kernels-gqa.jsonl": {"gqa-1": "gqa"},
    "smollm2-135m/recall.jsonl": {
        "recall-2": "budget-by-layer",
        "recall-9": "mass-by-budget",
        "recall-64": "mass-by-head",
    },
}
"""Of each kept profile the figures wanted, by their name with `report --pictures`, and their files."""


def pictures() -> dict[str, str]:
    """File names and SVG texts."""
    found = {}
    for profile, wanted in PICTURES.items():
        files = picture_files(render([read_profile(PROFILES / profile)], plotlyjs="cdn"))
        found |= {f"{name}.svg": files[f"{figure}.svg"] for figure, name in wanted.items()}
    return found


if __name__ == "__main__":
    for file, text in pictures().items():
        (HERE / file).write_text(text, encoding="utf-8")

"""The package list is explicit, so a new folder must be added: this guards the list and the mapping."""

import re
import tomllib
from pathlib import Path

ROOT = Path(__file__).parents[1]
CONFIG = tomllib.loads((ROOT / "pyproject.toml").read_text())


def test_every_folder_of_code_is_a_package() -> None:
    folders = {path.parent.relative_to(ROOT) for path in (ROOT / "questprof").rglob("*.py")}
    packages = {".".join(folder.parts) for folder in folders} | {"questprof_kernels"}
    assert packages == set(CONFIG["tool"]["setuptools"]["packages"])
    for folder in folders:
        assert (ROOT / folder / "__init__.py").exists()


def test_kernels_is_mapped_and_no_package_of_its_own() -> None:
    assert CONFIG["tool"]["setuptools"]["package-dir"]["questprof_kernels"] == "kernels"
    assert not (ROOT / "kernels" / "__init__.py").exists()
    assert not [path for path in (ROOT / "kernels").iterdir() if path.is_dir() and path.name != "__pycache__"]


def test_kernels_never_import_questprof() -> None:
    for path in (ROOT / "kernels").glob("*.py"):
        for line in path.read_text().splitlines():
            words = line.split()
            if words[:1] in (["import"], ["from"]):
                assert words[1].split(".")[0] != "questprof", f"{path.name}: {line}"


def test_data_files_are_shipped() -> None:
    """Every file beside code in every package, and no pattern that fits none."""
    tables = CONFIG["tool"]["setuptools"]
    patterns = {package: tables["package-data"].get(package, []) for package in tables["packages"]}
    for package, wanted in patterns.items():
        folder = ROOT / tables["package-dir"].get(package, package.replace(".", "/"))
        data = [p for p in folder.iterdir() if p.is_file() and p.suffix not in (".py", ".pyc")]
        lost = [path for path in data if not any(path.match(pattern) for pattern in wanted)]
        assert lost == [], package
        idle = [pattern for pattern in wanted if not any(path.match(pattern) for path in data)]
        assert [(package, pattern) for pattern in idle] == [(package, p) for p in idle if p == "*.svg"]


def test_no_advice_needs_a_package_index() -> None:
    """questprof is on none: what installs it, or an extra of it, is its checkout."""
    texts = [*(ROOT / "questprof").rglob("*.py"), *(ROOT / "docs").glob("*.md"), ROOT / "README.md"]
    asks = re.compile(r"pip install (-\S+ )*['\"]?questprof\b")
    assert asks.search("pip install --upgrade questprof")
    assert asks.search("pip install 'questprof[gpu]'")
    assert [path.name for path in texts if asks.search(path.read_text())] == []


def test_every_extra_that_is_advised_is_there() -> None:
    from questprof.errors import install

    extras = CONFIG["project"]["optional-dependencies"]
    called = re.compile(r"\binstall\(['\"](\w+)['\"]\)")
    advised = {
        name for path in (ROOT / "questprof").rglob("*.py") for name in called.findall(path.read_text())
    }
    assert advised == {"gpu", "baselines", "model"}
    assert advised <= extras.keys()
    assert install("gpu") == "pip install -e '.[gpu]'"


def test_the_tree_stays_small() -> None:
    """profiles/ and reports/ together stay under 25 MiB, without the pages of sweeps run here."""
    ignored = [line for line in (ROOT / ".gitignore").read_text().splitlines() if line.startswith("reports/")]
    found = [p for folder in ("profiles", "reports") for p in (ROOT / folder).rglob("*") if p.is_file()]
    kept = [p for p in found if not any(p.relative_to(ROOT).match(pattern) for pattern in ignored)]
    assert {"reports/h200-verdict.html", "profiles/h200/kernels.jsonl"} <= {
        p.relative_to(ROOT).as_posix() for p in kept
    }
    assert sum(path.stat().st_size for path in kept) < 25 << 20

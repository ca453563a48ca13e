"""Named sets of sweep options: the project's, and those of a user's TOML file."""

from __future__ import annotations

import tomllib
from collections.abc import Collection
from pathlib import Path

from questprof.errors import QuestprofError

OWN = Path(__file__).with_name("presets.toml")
LISTED = ("shape", "kernel")
"""Options that may be repeated: their lists stay lists; other lists are joined by commas."""

Value = str | bool | int | float | list[str]


def load_preset(spec: str, allowed: Collection[str]) -> dict[str, Value]:
    """Option name (underscores) -> value of the preset `NAME`, or `FILE.toml:NAME`.

    `allowed` are the options that a preset may give. QuestprofError for a file that is no TOML, an unknown
    preset or option, and a value that no option takes.
    """
    file, colon, name = spec.rpartition(":")
    path = Path(file) if colon else OWN
    presets = read_presets(path)
    if name not in presets:
        known = ", ".join(presets) or "none"
        fix = f"Choose among {known}, or write FILE.toml:NAME."
        raise QuestprofError(f"preset {name!r}", f"{'the project' if path == OWN else path} has none", fix)
    return {
        key.replace("-", "_"): _value(key, value, spec, allowed)
        for key, value in presets[name].items()
        if key != "about"
    }


def read_presets(path: Path = OWN) -> dict[str, dict[str, object]]:
    """Every preset of `path` by name, as written."""
    try:
        table = tomllib.loads(path.read_text(encoding="utf-8-sig"))
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
        fix = "A preset is a TOML table: [mine], then lengths = '8k,32k'."
        raise QuestprofError(f"cannot read presets from {path}", reason, fix) from error
    stray = [name for name, value in table.items() if not isinstance(value, dict)]
    if stray:
        fix = "Put options below a [name]."
        raise QuestprofError(f"{path}", f"{stray[0]} stands in no table", fix)
    return table


def list_presets() -> str:
    """One line a preset: its name, what it is for, its options."""
    lines = []
    for name, preset in read_presets().items():
        options = " ".join(_spelt(key, value) for key, value in preset.items() if key != "about")
        lines.append(f"{name:<10}{preset.get('about', '')}\n{'':<10}{options}")
    return "\n".join(lines)


def _spelt(key: str, value: object) -> str:
    if isinstance(value, list):
        value = ",".join(map(str, value))
    return f"--{key}" if value is True else f"--{key} {value}"


def _value(key: str, value: object, spec: str, allowed: Collection[str]) -> Value:
    option = key.replace("-", "_")
    if option not in allowed:
        names = ", ".join(sorted(name.replace("_", "-") for name in allowed))
        raise QuestprofError(f"preset {spec!r}", f"it has an unknown option {key!r}", f"Options: {names}.")
    if isinstance(value, list) and value and all(isinstance(item, str | int) for item in value):
        texts = [str(item) for item in value]
        return texts if option in LISTED else ",".join(texts)
    if option in LISTED and isinstance(value, str):
        return [value]
    if isinstance(value, str | bool | int | float):
        return value
    fix = "Give a string, a number, true or false, or a list of strings or numbers."
    raise QuestprofError(f"preset {spec!r}", f"{key} is {value!r}", fix)

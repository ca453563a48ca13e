"""Profiles of one environment as one: shards of a grid, measured apart. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from msgspec.structs import replace

from questprof.model import Profile


def merge_profiles(profiles: Sequence[Profile]) -> tuple[Profile, ...]:
    """`profiles` with those of one environment and disjoint points joined, in the order of their first.

    A joined profile keeps its runs apart, so that a ratio and its floor are of one run, and has all commands,
    ceilings and names. Profiles that measured a point twice are different runs and stay apart. Which join
    does not depend on the order given: those with most timed points come first, of several the earliest.
    """
    groups: list[list[int]] = []
    for index in sorted(range(len(profiles)), key=lambda index: rank(profiles[index])):
        home = next((g for g in groups if _joins(profiles[index], [profiles[i] for i in g])), None)
        if home is None:
            groups.append([index])
        else:
            home.append(index)
    return tuple(_joined([profiles[index] for index in group]) for group in sorted(map(sorted, groups)))


def without_copies(profiles: Sequence[Profile]) -> tuple[tuple[Profile, ...], tuple[str, ...]]:
    """`profiles` without those whose records another one holds as well, and what was left out in words.

    A copy says nothing that the run itself does not: compared with it, everything would be the same.
    """
    kept, said = [], []
    for index, profile in enumerate(profiles):
        others = (
            other
            for place, other in enumerate(profiles)
            if place != index and _holds(other, profile) and (place < index or not _holds(profile, other))
        )
        if (source := next(others, None)) is None:
            kept.append(profile)
        else:
            said.append(_left_out(profile, source))
    return tuple(kept), tuple(said)


def _left_out(profile: Profile, source: Profile) -> str:
    """Why `profile` is not shown apart from `source`, which holds its records."""
    name, same_name = profile.name or "a profile", source.name == profile.name
    if _holds(profile, source):
        if same_name:
            return f"{name} is given twice: both are the same run, which is shown once"
        return f"{name} is left out: it is the same run as {source.name or 'another profile'}"
    of = "another profile of that name" if same_name else source.name or "another profile"
    return f"{name} is left out: {of} holds all of its records, and more"


def _holds(one: Profile, other: Profile) -> bool:
    """Whether `other` is of the same start as `one`, and its records, of which there are some, are too."""
    if one.header.started_at != other.header.started_at or not 0 < len(other.records) <= len(one.records):
        return False
    known = {record.key: record for record in one.records}
    return all(known.get(record.key) == record for record in other.records)


def rank(profile: Profile) -> tuple[int, str, str, str]:
    """What comes first when profiles are joined, whatever the order in which they are given."""
    timed = sum(record.kind == "sweep" for record in profile.records)
    return -timed, profile.header.started_at, profile.name, profile.header.command


def _joins(profile: Profile, group: Sequence[Profile]) -> bool:
    """Whether `profile` was measured where the group was, and no point of it twice."""
    same = profile.header.environment.env_id == group[0].header.environment.env_id
    return same and not _keys([profile]) & _keys(group)


def _keys(profiles: Iterable[Profile]) -> set[tuple[str, str, str]]:
    return {record.key for profile in profiles for record in profile.records}


def _joined(group: Sequence[Profile]) -> Profile:
    first = group[0]
    if len(group) == 1:
        return first
    header = replace(
        first.header,
        command=" ; ".join(dict.fromkeys(profile.header.command for profile in group)),
        started_at=min(profile.header.started_at for profile in group),
        ceilings=tuple(ceiling for profile in group for ceiling in profile.header.ceilings),
        roofs=next((one.header.roofs for one in sorted(group, key=rank) if one.header.roofs), None),
    )
    return Profile(
        header,
        tuple(record for profile in group for record in profile.records),
        tuple(warning for profile in group for warning in profile.warnings),
        " + ".join(profile.name for profile in group),
        tuple(group),
    )

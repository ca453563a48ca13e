"""Profiles of one environment as one: shards of a grid, measured apart. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from msgspec.structs import replace

from questprof.model import Profile


def merge_profiles(profiles: Sequence[Profile]) -> tuple[Profile, ...]:
    """`profiles` with those of one environment and disjoint points joined, in the order of their first.

    A joined profile has all ceilings, so that the largest streaming read of any shard is the floor of all,
    and all commands and names. Profiles that measured a point twice are different runs and stay apart.
    """
    groups: list[list[Profile]] = []
    for profile in profiles:
        home = next((group for group in groups if _joins(profile, group)), None)
        if home is None:
            groups.append([profile])
        else:
            home.append(profile)
    return tuple(map(_joined, groups))


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
        roofs=next((profile.header.roofs for profile in group if profile.header.roofs), None),
    )
    return Profile(
        header,
        tuple(record for profile in group for record in profile.records),
        tuple(warning for profile in group for warning in profile.warnings),
        " + ".join(profile.name for profile in group),
    )

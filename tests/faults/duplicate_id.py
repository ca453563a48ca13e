"""One id of every query head is written twice, in the place of another."""

from __future__ import annotations

from faults import walk

stages = {"select": walk.repeating_select}

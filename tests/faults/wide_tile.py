"""Tiles of a power of two over shorter pages: reads past a page's valid tokens; the result is right."""

from __future__ import annotations

from faults import walk

stages = {"attend": walk.attend("wide_tile")}

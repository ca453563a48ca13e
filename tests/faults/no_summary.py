"""Every page scored by the box of its request's first page: the summary is not read."""

from __future__ import annotations

from faults import walk

stages = {"score": walk.score("no_summary")}

"""The selected K and V copied into temporaries first, attention over these; the result is right."""

from __future__ import annotations

from faults import walk

stages = {"attend": walk.attend("gather")}

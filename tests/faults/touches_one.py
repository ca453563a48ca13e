"""One page that no query head of its group selected is read by head 0; the result is right."""

from __future__ import annotations

from faults import walk

stages = {"attend": walk.attend("touches_one")}

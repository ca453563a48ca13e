"""The control: plain kernels without a fault, which move the bytes that the ledger says."""

from __future__ import annotations

from faults import walk

stages = {"score": walk.score(""), "attend": walk.attend("")}

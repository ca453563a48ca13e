"""Attention whose values are its keys: V is never read."""

from __future__ import annotations

from faults import walk

stages = {"attend": walk.attend("keys_only")}

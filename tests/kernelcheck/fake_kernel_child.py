"""Stands in for the child that checks: says the first lines, then does what the order's source says."""

from __future__ import annotations

import os
import signal
import sys
import time

import msgspec

from questprof.kernelcheck.findings import Began, Brings, Order

order = msgspec.json.decode(sys.stdin.buffer.read(), type=Order)
for line in (Brings(("score",)), Began("score", "a setting")):
    print(msgspec.json.encode(line).decode(), flush=True)
print("the last words", file=sys.stderr, flush=True)
if order.source == "interrupted:it":
    os.kill(os.getpid(), signal.SIGINT)
    time.sleep(600)
if order.source == "hang:it":
    time.sleep(600)
if order.source == "slowly:it":
    for case in range(6):
        print(msgspec.json.encode(Began("score", "a setting", f"case {case}")).decode(), flush=True)
        time.sleep(1.2)
os.abort()

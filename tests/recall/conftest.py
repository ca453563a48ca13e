"""What tests of the recall packages share: a trace of the real model, captured once."""

from __future__ import annotations

import pytest

from questprof.capture.captured import Captured


@pytest.fixture(scope="session")
def smollm2_trace(tmp_path_factory: pytest.TempPathFactory) -> Captured:
    """SmolLM2-135M on the first 400 tokens of the demo text, the last 16 of which query: every tail fill
    once."""
    from questprof.capture.checkpoint import demo_checkpoint
    from questprof.capture.demo import ALICE
    from questprof.capture.run import Asked, run_capture

    path = tmp_path_factory.mktemp("smollm2") / "trace.safetensors"
    asked = Asked((ALICE,), path, max_tokens=400, queries="last:16", pre_rope=True)
    run_capture(demo_checkpoint(), asked)
    return Captured.open(path)

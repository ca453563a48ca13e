from __future__ import annotations

import pytest

from questprof.counters import ncu_errors
from questprof.errors import Exit


@pytest.mark.parametrize(
    ("line", "what"),
    [
        ("==ERROR== ERR_NVGPUCTRPERM - The user does not have permission to access", "no permission"),
        ("==ERROR== Profiling failed because a driver resource was unavailable.", "counters are taken"),
        ("==ERROR== NVIDIA L40S: Already under profiling", "counters are taken"),
        ("==ERROR== Cuda driver is not compatible with Nsight Compute.", "fit the driver"),
        ("==WARNING== Failed to load Nsight Compute CUDA modules.", "fit the driver"),
        ("==ERROR== Profiling is not supported on device 0.", "this GPU"),
        ("==ERROR== unrecognised option '--nvtx-include'", "an option"),
    ],
)
def test_each_message_has_its_error(line, what):
    error = ncu_errors.refusal(
        f"==PROF== Connected to process 1\n{line}\n==WARNING== No kernels were profiled."
    )
    assert what in error.what
    assert error.status == Exit.MACHINE
    assert error.fix


def test_an_ordinary_run_is_no_error():
    said = '==PROF== Connected to process 1\n==PROF== Profiling "read_kernel": 0%....100% - 1 pass\n'
    assert ncu_errors.refusal(said) is None
    assert ncu_errors.refusal(said + "OSError: the address is already in use\n") is None
    assert ncu_errors.missing_metric(said) is None
    assert ncu_errors.nothing_profiled(said) is None
    assert ncu_errors.application_code(said) is None


def test_the_missing_metric_is_named_in_whatever_form():
    plain = "==ERROR== Failed to find metric lts__x.sum"
    pattern = r"==ERROR== Failed to find metric regex:^lts__x(\.|$)"
    assert ncu_errors.missing_metric(plain) == "lts__x.sum"
    assert ncu_errors.missing_metric(pattern) == "lts__x"


def test_the_last_error_is_told_before_the_last_line():
    assert ncu_errors.last_error("==ERROR== LaunchFailed\n==PROF== Disconnected") == "LaunchFailed"
    assert ncu_errors.last_error("a\nb\n\n") == "b"
    assert ncu_errors.last_error("") == "it printed nothing"


@pytest.mark.parametrize("noun", ["kernels", "ranges"])
def test_nothing_profiled_says_what_the_filter_means(noun):
    error = ncu_errors.nothing_profiled(f"==WARNING== No {noun} were profiled.")
    assert "Domain@Name/" in error.why

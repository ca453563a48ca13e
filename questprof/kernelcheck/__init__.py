"""A user's kernels stage by stage over small hostile caches: pass, or the first place that differs."""

"""Profiles in, one HTML file out."""

from questprof.report.page import render, write_report

__all__ = ["render", "write_report"]

"""What sections share: selectors of what differs between panels."""

from __future__ import annotations

from questprof.report.section import selectors


def test_numbers_ascend_and_words_keep_their_order() -> None:
    """Budgets as a profile may hold them: largest first, a dense panel among them."""
    panels = [
        {"Page size": "32", "Budget": "dense", "Summary": "transposed"},
        {"Page size": "8", "Budget": "4096", "Summary": "transposed"},
        {"Page size": "16", "Budget": "512", "Summary": "paired"},
    ]
    assert selectors(panels) == [
        {"name": "Page size", "values": ["8", "16", "32"]},
        {"name": "Budget", "values": ["512", "4096", "dense"]},
        {"name": "Summary", "values": ["transposed", "paired"]},
    ]


def test_what_a_panel_lacks_is_a_dash_and_what_all_share_is_no_selector() -> None:
    panels = [{"Batch": "1", "Pool": "100 GiB"}, {"Batch": "1"}]
    assert selectors(panels) == [{"name": "Pool", "values": ["100 GiB", "-"]}]

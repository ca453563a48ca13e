"""Tables of what was found: heads, tail page, slack, score gap, times. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from questprof.crossover.tables import MEASURED, Table
from questprof.recall.answers.equal_mass import Joined
from questprof.recall.answers.evaluation import name_text
from questprof.recall.answers.finding import Answers
from questprof.recall.answers.gap import Area
from questprof.recall.answers.heads import DenseHead, FailedHead, HiddenHead
from questprof.recall.answers.slack import Slack
from questprof.recall.answers.tables import COUNTED, LOGITS, NONE, text_table
from questprof.recall.answers.tail import Tail
from questprof.units import format_count, format_us


def dense_table(found: Sequence[DenseHead]) -> Table:
    """Every dense head."""
    rows = [[name_text((h.layer, h.head)), f"{h.pages_share:.0%}", str(h.page_size)] for h in found]
    heads = ["head", "pages that 95% of the mass needs,\noracle's order, median of queries", "page"]
    return text_table("Dense heads", heads, rows, COUNTED)


def failed_table(found: Sequence[FailedHead]) -> Table:
    """Every sparse head that the boxes fail, at its worst budget of each page size."""
    rows = [
        [
            name_text((h.layer, h.head)),
            str(h.page_size),
            format_count(h.token_budget),
            f"{h.quest:.3f}",
            f"{h.oracle:.3f}",
            NONE if h.false_slack is None else f"{h.false_slack:.1f}",
        ]
        for h in found
    ]
    heads = ["head", "page", "budget", "mass,\nquest", "mass,\noracle", "slack of false\npositives"]
    return text_table("Sparse heads that their boxes fail", heads, rows, COUNTED)


def hidden_table(found: Sequence[HiddenHead]) -> Table:
    """Every head under a mean that passes."""
    rows = [
        [
            name_text((h.layer, h.head)),
            str(h.page_size),
            format_count(h.token_budget),
            f"{h.mass:.3f}",
            f"{h.layer_mean:.3f}",
            f"{h.mean:.3f}",
        ]
        for h in found
    ]
    heads = ["head", "page", "budget", "mass", "mean of\nits layer", "mean of\nall heads"]
    return text_table("Heads that a mean hides", heads, rows, COUNTED)


def tail_table(found: Sequence[Tail]) -> Table:
    """Mass lost with the tail page competing and taken always."""
    rows = [
        [
            str(one.page_size),
            format_count(budget),
            NONE if one.taken_few is None else f"{one.taken_few:.3f}",
            f"{one.lost_open[i]:.4f}",
            f"{one.lost_forced[i]:.4f}",
            f"{one.few_open[i]:.4f}",
            f"{one.few_forced[i]:.4f}",
            _fold(one.cuts[i]),
        ]
        for one in found
        for i, budget in enumerate(one.budgets)
    ]
    heads = [
        "page", "budget", "picked with few\ntokens (all budgets)", "mass lost,\nquest-open", "mass "
        "lost,\nquest", "few tokens in the\ntail, quest-open",
        "few tokens in the\ntail, quest", "cut",
    ]  # fmt: skip
    return text_table("The tail page: competing, or taken always", heads, rows, COUNTED)


def slack_table(found: Sequence[Slack]) -> Table:
    """Slack by page size, before and after RoPE, and by type of query."""
    types = [name for name, _ in found[0].by_type] if found else []
    rows = [
        [
            str(one.page_size),
            f"{one.mean:.2f}",
            *(f"{value:.2f}" for value in one.quantiles),
            f"{one.tail:.2f}",
            NONE if one.pre_rope is None else f"{one.pre_rope:.2f}",
            *(f"{dict(one.by_type).get(name, float('nan')):.2f}" for name in types),
        ]
        for one in found
    ]
    heads = ["page", "mean", "p10", "p50", "p90", "p99", "tail pages", "before RoPE", *types]
    return text_table("Slack of the boxes by page size", heads, rows, LOGITS)


def gap_table(found: Answers) -> Table:
    """The score gap as a predictor at every page size and budget."""
    rows = [
        [
            str(g.page_size),
            format_count(g.token_budget),
            f"{g.too_small:.0%}",
            f"{'<=' if g.small_gap_fails else '>='} {g.threshold:.3f}",
            NONE if g.precision is None else f"{g.precision:.0%}",
            f"{g.recall:.0%}",
            _area(g.auc),
            _area(g.auc_within),
            _area(g.auc_head),
            g.auc.says,
        ]
        for g in found.gaps
    ]
    heads = [
        "page", "budget", "too small", "calibrated\nthreshold", "precision", "recall", "AUC of the gap\n[95 "
        "%]",
        "within a head", "the head alone", "the gap predicts",
    ]  # fmt: skip
    halves = ""
    if found.gaps:
        one = found.gaps[0]
        halves = (
            f" Calibrated on the queries at {one.calibrated_on[0]} to {one.calibrated_on[1]}, tested on "
            f"those at {one.tested_on[0]} to {one.tested_on[1]}; all figures are of the second half"
        )
    return text_table(
        "Score gap as a predictor of too small a budget (more than 5% of the mass missed)",
        heads,
        rows,
        COUNTED + "." + halves,
    )


def _area(area: Area | None) -> str:
    return NONE if area is None else f"{area.value:.2f} [{area.low:.2f}, {area.high:.2f}]"


def timed_table(found: Joined) -> Table:
    """Timed points with the mass there."""
    rows = [
        [
            f"{one.device}: {one.setting}",
            str(one.seq_len),
            str(one.page_size),
            format_count(one.token_budget),
            one.policy,
            f"{one.mass:.4f}",
            "evaluated" if one.between is None else f"between {one.between[0]} and {one.between[1]}",
            format_us(one.quest_us),
            format_us(one.dense_us),
            f"{one.speed_up:.2f}x",
        ]
        for one in found.timed
    ]
    heads = [
        "times of",
        "length",
        "page",
        "budget",
        "policy",
        "mass",
        "the budget was",
        "quest us",
        "dense us",
        "speed-up",
    ]
    return text_table("Timed points and their mass", heads, rows, f"Times: {MEASURED}. Mass: {COUNTED}")


def equal_table(found: Joined) -> Table:
    """Times at equal mass."""
    rows = [
        [
            f"{one.device}: {one.setting}",
            str(one.seq_len),
            f"{one.mass:.0%}",
            str(one.page_size),
            one.policy,
            NONE if one.token_budget is None else f"{one.token_budget:.0f}",
            NONE if one.quest_us is None else format_us(one.quest_us),
            format_us(one.dense_us),
            NONE if one.speed_up is None else f"{one.speed_up:.2f}x",
            one.why_not,
        ]
        for one in found.equal
    ]
    heads = [
        "times of",
        "length",
        "mass",
        "page",
        "policy",
        "budget",
        "quest us",
        "dense us",
        "speed-up",
        "why no figure",
    ]
    note = (
        f"Times: {MEASURED}. Mass: {COUNTED}. Budget and quest us are interpolated between evaluated and "
        "timed budgets"
    )
    return text_table("Speed at equal mass", heads, rows, note)


def _fold(ratio: float) -> str:
    return "to nothing" if ratio == float("inf") else f"{ratio:.2f}x"

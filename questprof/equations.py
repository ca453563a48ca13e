"""Equations (1)-(15), one function each; everybody else calls them.

Arrays are numpy float64 and imported on the first call of a function that needs them; (9)-(13) are plain
numbers. Leading axes broadcast. Sections are those of the Quest paper (ICML 2024) and of the article whose
numbering this is; an equation without a paper section is the article's own. What stands after (15) is ours
and has no number.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, NamedTuple

from questprof.errors import QuestprofError

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import ArrayLike, NDArray

    Array = NDArray[np.float64]


def eq01_box(keys: ArrayLike) -> tuple[Array, Array]:
    """Page box, eq. (1): m_j = min_r k_rj and M_j = max_r k_rj.

    `keys` [..., S, d] -> (m, M), each [..., d]. Paper §3.4, article §1.1. QuestprofError without keys.
    """
    array = _array(keys, "keys")
    if array.ndim < 2 or array.shape[-2] == 0:
        why = f"keys of shape {array.shape} hold no key"
        raise QuestprofError("page box, eq. (1)", why, "Give [..., S, d] with S at least 1.")
    return array.min(axis=-2), array.max(axis=-2)


def eq02_dim_bounds(q: ArrayLike, m: ArrayLike, M: ArrayLike) -> Array:
    """Bound of one dimension, eq. (2): u_j = max(q_j m_j, q_j M_j).

    `q` [..., d], `m`, `M` [..., d] -> [..., d]. Paper §3.4, article §1.1. QuestprofError when d differs.
    """
    import numpy as np

    query, low, high = _array(q, "q"), _array(m, "m"), _array(M, "M")
    _same_head_dim("page bound, eq. (2)", query, low, high)
    return np.maximum(query * low, query * high)


def eq03_page_bound(q: ArrayLike, m: ArrayLike, M: ArrayLike) -> Array:
    """Page bound, eq. (3): U_p = sum_j u_pj, unscaled.

    `q` [..., d], `m`, `M` [..., d] -> [...]. Paper §3.4, article §1.1. QuestprofError when d differs.
    """
    bound: Array = eq02_dim_bounds(q, m, M).sum(axis=-1)
    return bound


def eq04_bound_slack(q: ArrayLike, keys: ArrayLike) -> Array:
    """Slack of the page bound, eq. (4): U_p - max_r q.k_r, never below 0.

    `q` [d], `keys` [..., S, d] -> [...]. Each product is rounded alike and both sums run in one order,
    so that rounding keeps the sign. Paper §3.4, article §1.1 (its g_p in §3.1).
    """
    query, array = _array(q, "q"), _array(keys, "keys")
    m, M = eq01_box(array)
    _same_head_dim("slack of the page bound, eq. (4)", query, array)
    slack: Array = eq03_page_bound(query, m, M) - (query * array).sum(axis=-1).max(axis=-1)
    return slack


class WorkedPage(NamedTuple):
    """A page worked by hand: query, keys, their box, its bound and the true dot products."""

    q: tuple[float, ...]
    keys: tuple[tuple[float, ...], ...]
    m: tuple[float, ...]
    M: tuple[float, ...]
    bound: float
    dots: tuple[float, ...]


def eq05_worked_page() -> WorkedPage:
    """The worked 2-D page, eq. (5): U_p = 2 x 3 + (-1) x (-2) = 6 + 2 = 8, reached by its second key.

    Article §1.1.
    """
    return WorkedPage(
        q=(2.0, -1.0),
        keys=((1.0, 4.0), (3.0, -2.0), (-1.0, 1.0)),
        m=(-1.0, -2.0),
        M=(3.0, 4.0),
        bound=8.0,
        dots=(-2.0, 8.0, -3.0),
    )


class SelectedOutput(NamedTuple):
    """Equation (6): dense output o [d], output o_C [d] over the selected tokens, missed mass epsilon."""

    dense: Array
    selected: Array
    missed_mass: float


def eq06_selected_output(logits: ArrayLike, values: ArrayLike, selected: ArrayLike) -> SelectedOutput:
    """Attention over a set C, eq. (6): o = sum p_j v_j and o_C = sum_C p_j / (1 - epsilon) v_j.

    `logits` [L] as softmax takes them (scaled), `values` [L, d], `selected` bool [L]. Paper §3.5, article
    §1.1. QuestprofError when lengths differ or nothing is selected.
    """
    import numpy as np

    logit, value, chosen = (
        _array(logits, "logits"),
        _array(values, "values"),
        np.asarray(selected, dtype=bool),
    )
    if value.ndim != 2 or not logit.shape == chosen.shape == value.shape[:1] or not chosen.any():
        raise QuestprofError(
            "attention over a set, eq. (6)",
            f"logits {logit.shape}, values {value.shape}, {int(chosen.sum())} of {chosen.shape} selected",
            "Give logits [L], values [L, d] and a mask [L] that selects at least one token.",
        )
    p = _softmax(logit)
    return SelectedOutput(p @ value, _softmax(logit[chosen]) @ value[chosen], float(p[~chosen].sum()))


def eq07_error_slack(logits: ArrayLike, values: ArrayLike, selected: ArrayLike) -> float:
    """Slack of the output error, eq. (7): 2 epsilon V_max - |o - o_C|, never below 0 but for rounding.

    Shapes as for equation (6); V_max is the largest value norm. Article §1.1.
    """
    import numpy as np

    dense, chosen, missed_mass = eq06_selected_output(logits, values, selected)
    largest = float(np.linalg.norm(_array(values, "values"), axis=-1).max())
    return 2.0 * missed_mass * largest - float(np.linalg.norm(dense - chosen))


def eq08_append_key(m: ArrayLike, M: ArrayLike, key: ArrayLike) -> tuple[Array, Array]:
    """Box after one more key, eq. (8): (min(m, k), max(M, k)); an empty box is (+inf, -inf).

    All [..., d]. Paper §3.4, article §1.2. QuestprofError when d differs.
    """
    import numpy as np

    low, high, new = _array(m, "m"), _array(M, "M"), _array(key, "key")
    _same_head_dim("box after one more key, eq. (8)", low, high, new)
    return np.minimum(low, new), np.maximum(high, new)


def eq09_dense_bytes(vector_bytes: int, seq_len: int) -> int:
    """Dense read, eq. (9): T_dense = 2 M L bytes: one K and one V vector of M bytes a token.

    Paper §3.5, article §2. QuestprofError below 1.
    """
    _at_least_1("dense read, eq. (9)", vector_bytes=vector_bytes, seq_len=seq_len)
    return 2 * vector_bytes * seq_len


def eq10_index_bytes(vector_bytes: int, num_pages: int) -> int:
    """Index read, eq. (10): T_index = 2 M P bytes: one min and one max vector of M bytes a page.

    `vector_bytes` in the summary's dtype. Paper §3.5, article §2. QuestprofError below 1.
    """
    _at_least_1("index read, eq. (10)", vector_bytes=vector_bytes, num_pages=num_pages)
    return 2 * vector_bytes * num_pages


def eq11_selected_bytes(vector_bytes: int, num_selected: int, page_size: int) -> int:
    """Selected read, eq. (11): T_selected = 2 M K S bytes: K and V of K pages of S tokens.

    Paper §3.5, article §2. QuestprofError below 1.
    """
    _at_least_1(
        "selected read, eq. (11)",
        vector_bytes=vector_bytes,
        num_selected=num_selected,
        page_size=page_size,
    )
    return 2 * vector_bytes * num_selected * page_size


def eq12_read_ratio(
    page_size: int, num_selected: float, num_pages: int, summary_element_ratio: float = 1.0
) -> float:
    """Read ratio, eq. (12): rho = (T_index + T_selected) / T_dense = 1/S + K/P.

    `summary_element_ratio` is the summary's bytes an element over the cache's: a 16-bit summary over an
    8-bit cache costs 2/S. `num_selected` may be the mean union of a group of query heads. Paper §3.5,
    article §2. QuestprofError unless 0 < K <= P, 0 < S and 0 < ratio.
    """
    _at_least_1("read ratio, eq. (12)", page_size=page_size, num_pages=num_pages)
    if not 0 < num_selected <= num_pages:
        raise QuestprofError(
            "read ratio, eq. (12)",
            f"{num_selected} pages cannot be selected out of {num_pages}",
            "K = min(floor(B / S), P) lies in 1..P.",
        )
    if not summary_element_ratio > 0:
        raise QuestprofError(
            "read ratio, eq. (12)",
            f"summary_element_ratio {summary_element_ratio} is not above 0",
            "Give summary bytes / cache bytes an element, 1 for equal dtypes.",
        )
    return summary_element_ratio / page_size + num_selected / num_pages


def eq13_time_ratio(attention_share: float, attention_speedup: float) -> float:
    """Time ratio of a whole step, eq. (13), Amdahl: (1 - f) + f / s; its inverse is the speed-up.

    f is attention's share of dense time, s how much faster attention becomes. Article §2.
    QuestprofError unless 0 <= f <= 1 and s > 0.
    """
    if not (0.0 <= attention_share <= 1.0 and attention_speedup > 0.0):
        raise QuestprofError(
            "time ratio, eq. (13)",
            f"share {attention_share} with speed-up {attention_speedup} cannot be",
            "The share lies in 0..1 and the speed-up above 0.",
        )
    return (1.0 - attention_share) + attention_share / attention_speedup


def eq14_update_tail(box: tuple[ArrayLike, ArrayLike] | None, key: ArrayLike) -> tuple[Array, Array]:
    """Tail page's box after a key, eq. (14): (8) on a page in use, m = M = k on its first key (`box` None).

    `key` [..., d] -> (m, M), each [..., d]. Article §3. QuestprofError when d differs.
    """
    if box is None:
        new = _array(key, "key")
        return new, new.copy()
    return eq08_append_key(*box, key)


def eq15_widened_box(m: ArrayLike, M: ArrayLike, epsilon: ArrayLike) -> tuple[Array, Array]:
    """Widened box, eq. (15): (m - epsilon, M + epsilon), which bounds keys stored with error <= epsilon.

    All [..., d] (epsilon may be a number). Article §3. QuestprofError for an epsilon below 0 or NaN.
    """
    low, high, error = _array(m, "m"), _array(M, "M"), _array(epsilon, "epsilon")
    _same_head_dim("widened box, eq. (15)", low, high)
    if not (error >= 0).all():
        raise QuestprofError(
            "widened box, eq. (15)",
            "an error bound is below 0",
            "epsilon is the largest |k - k_hat| a dimension.",
        )
    return low - error, high + error


def picked_row_share(group_size: int) -> float:
    """Share of the min and max rows of a transposed summary that a group's signs pick: 1 - 2^-G.

    Expected for independent signs; 1/2 for one query head, which picks one row of each pair. Ours, no
    equation of the article. QuestprofError below 1.
    """
    _at_least_1("share of picked rows", group_size=group_size)
    return 1.0 - 0.5**group_size


def transposed_read_ratio(
    page_size: int,
    num_selected: float,
    num_pages: int,
    row_share: float,
    summary_element_ratio: float = 1.0,
) -> float:
    """Read ratio over a transposed summary: rho = row_share/S + K/P, 1/(2S) + K/P for MHA.

    Equation (12) with an index read of the picked rows alone; ours, no equation of the article. `row_share`
    is that of `picked_row_share`, or measured. Other arguments and errors as in (12); QuestprofError also
    unless 0 < row_share <= 1.
    """
    if not 0 < row_share <= 1:
        why = f"the signs of q pick a share of the rows in 0..1, not {row_share}"
        raise QuestprofError("read ratio, transposed summary", why, "Give 1/2 for one query head a KV head.")
    return eq12_read_ratio(page_size, num_selected, num_pages, row_share * summary_element_ratio)


class Equation(NamedTuple):
    """One entry of the list: where it stands and the function that computes it."""

    number: int
    name: str
    function: Callable[..., object]
    section: str
    summary: str


_BOUND = "paper §3.4, article §1.1"
_SET = "paper §3.5, article §1.1"
_APPEND = "paper §3.4, article §1.2"
_READS = "paper §3.5, article §2"

EQUATIONS: tuple[Equation, ...] = (
    Equation(1, "page box", eq01_box, _BOUND, "m_j = min_r k_rj, M_j = max_r k_rj"),
    Equation(2, "bound of one dimension", eq02_dim_bounds, _BOUND, "u_j = max(q_j m_j, q_j M_j)"),
    Equation(3, "page bound", eq03_page_bound, _BOUND, "U_p = sum_j u_pj"),
    Equation(4, "slack of the page bound", eq04_bound_slack, _BOUND, "U_p - max_r q.k_r >= 0"),
    Equation(5, "worked 2-D page", eq05_worked_page, "article §1.1", "U_p = 6 + 2 = 8"),
    Equation(6, "attention over a set", eq06_selected_output, _SET, "o_C = sum_C p_j / (1 - epsilon) v_j"),
    Equation(7, "output error slack", eq07_error_slack, "article §1.1", "2 epsilon V_max - |o - o_C| >= 0"),
    Equation(8, "box after a key", eq08_append_key, _APPEND, "m = min(m, k), M = max(M, k)"),
    Equation(9, "dense read", eq09_dense_bytes, _READS, "T_dense = 2 M L"),
    Equation(10, "index read", eq10_index_bytes, _READS, "T_index = 2 M P"),
    Equation(11, "selected read", eq11_selected_bytes, _READS, "T_selected = 2 M K S"),
    Equation(12, "read ratio", eq12_read_ratio, _READS, "rho = 1/S + K/P"),
    Equation(13, "step time ratio", eq13_time_ratio, "article §2", "(1 - f) + f / s (Amdahl)"),
    Equation(14, "tail page's box", eq14_update_tail, "article §3", "m = M = k on the first key, then (8)"),
    Equation(15, "widened box", eq15_widened_box, "article §3", "[m - epsilon, M + epsilon]"),
)


def _array(values: ArrayLike, name: str) -> Array:
    """`values` as float64; QuestprofError when they are no numbers."""
    import numpy as np

    try:
        return np.asarray(values, dtype=np.float64)
    except (TypeError, ValueError) as error:
        raise QuestprofError(
            name, f"no array of numbers ({error})", "Give equally long rows of numbers."
        ) from None


def _softmax(logits: Array) -> Array:
    """Softmax of `logits` [L], shifted by the largest."""
    import numpy as np

    weights = np.exp(logits - logits.max())
    result: Array = weights / weights.sum()
    return result


def _same_head_dim(what: str, *arrays: Array) -> None:
    """QuestprofError unless all arrays end in one axis of the same length."""
    if len({array.shape[-1:] for array in arrays}) != 1 or arrays[0].ndim == 0:
        shapes = ", ".join(str(array.shape) for array in arrays)
        raise QuestprofError(what, f"the last axes of {shapes} differ", "Every vector has head_dim elements.")


def _at_least_1(what: str, **sizes: int) -> None:
    """QuestprofError unless every size is at least 1."""
    for name, size in sizes.items():
        if size < 1:
            raise QuestprofError(what, f"{name} {size} is below 1", f"Give a {name} of at least 1.")

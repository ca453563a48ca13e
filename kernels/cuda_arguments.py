"""The one parameter of each CUDA kernel, field by field as its C struct of the same name has it.

Strides count elements.
"""

from __future__ import annotations

import ctypes


class ScoreArguments(ctypes.Structure):
    """Of score.cu."""

    _fields_ = (
        *(
            (name, ctypes.c_void_p)
            for name in ("q", "summary", "table", "kv_indptr", "summary_indptr", "scores")
        ),
        *((name, ctypes.c_longlong) for name in ("q_batch_stride", "q_head_stride", "scores_stride")),
        ("num_kv_heads", ctypes.c_int),
        ("table_size", ctypes.c_int),
    )


class SelectArguments(ctypes.Structure):
    """Of select.cu."""

    _fields_ = (
        *((name, ctypes.c_void_p) for name in ("scores", "kv_indptr", "select_indptr", "page_ids")),
        ("scores_stride", ctypes.c_longlong),
        ("page_ids_stride", ctypes.c_longlong),
        ("num_columns", ctypes.c_int),
        ("take_tail", ctypes.c_int),
    )


class AttentionArguments(ctypes.Structure):
    """Of attention.cuh: what `attend`, `select_attend` and `dense` take."""

    _fields_ = (
        *((name, ctypes.c_void_p) for name in ("q", "k", "v", "block_table", "kv_indptr", "last_page_len")),
        *(
            (name, ctypes.c_void_p)
            for name in ("page_ids", "select_indptr", "out", "lse", "scratch", "scores")
        ),
        *((name, ctypes.c_longlong) for name in ("q_batch_stride", "q_head_stride")),
        *((name, ctypes.c_longlong) for name in ("out_batch_stride", "out_head_stride")),
        *((name, ctypes.c_longlong) for name in ("page_ids_stride", "scores_stride")),
        ("scale_log2", ctypes.c_float),
        *(
            (name, ctypes.c_int)
            for name in ("num_kv_heads", "table_size", "num_columns", "take_tail", "blocks_stay")
        ),
    )

"""The one parameter of each CUDA kernel, field by field as its C struct of the same name has it.

Strides count elements, those of q eight at a time, where nothing else is said.
"""

from __future__ import annotations

import ctypes


class AppendArguments(ctypes.Structure):
    """Of append.cuh; its strides of tokens count elements two at a time, those of heads eight."""

    _fields_ = (
        *((name, ctypes.c_void_p) for name in ("new_indptr", "kv_indptr", "last", "keys", "values")),
        *((name, ctypes.c_ushort) for name in ("last_stride", "num_kv_heads")),
        *((name, ctypes.c_ushort) for name in ("keys_head_stride", "values_head_stride")),
        *((name, ctypes.c_void_p) for name in ("k", "v", "summary", "block_table")),
        *((name, ctypes.c_uint) for name in ("keys_token_stride", "values_token_stride")),
        *((name, ctypes.c_void_p) for name in ("summary_table", "summary_indptr")),
        ("page_size", ctypes.c_int),
    )


class ScoreArguments(ctypes.Structure):
    """Of score.cu."""

    _fields_ = (
        *((name, ctypes.c_void_p) for name in ("table", "kv_indptr", "summary", "q")),
        *((name, ctypes.c_int) for name in ("table_size", "num_kv_heads")),
        *((name, ctypes.c_uint) for name in ("q_batch_stride", "q_head_stride")),
        ("scores", ctypes.c_void_p),
        ("scores_stride", ctypes.c_longlong),
        ("summary_indptr", ctypes.c_void_p),
    )


class SelectArguments(ctypes.Structure):
    """Of select.cu."""

    _fields_ = (
        *((name, ctypes.c_void_p) for name in ("kv_indptr", "select_indptr", "scores", "page_ids")),
        ("scores_stride", ctypes.c_longlong),
        ("num_columns", ctypes.c_int),
        ("take_tail", ctypes.c_int),
        ("page_ids_stride", ctypes.c_longlong),
    )


class AttentionArguments(ctypes.Structure):
    """Of attention.cuh: what `attend`, `select_attend` and `dense` take."""

    _fields_ = (
        *((name, ctypes.c_void_p) for name in ("k", "v", "block_table", "kv_indptr", "last_page_len")),
        *((name, ctypes.c_ushort) for name in ("num_kv_heads", "num_splits")),
        ("early_pages", ctypes.c_int),
        *((name, ctypes.c_void_p) for name in ("q", "select_indptr", "scores", "page_ids", "scratch")),
        *((name, ctypes.c_uint) for name in ("scores_stride", "page_ids_stride")),
        *((name, ctypes.c_uint) for name in ("q_batch_stride", "q_head_stride")),
        ("scale_log2", ctypes.c_float),
        ("table_size", ctypes.c_int),
        *((name, ctypes.c_void_p) for name in ("out", "lse")),
        *((name, ctypes.c_longlong) for name in ("out_batch_stride", "out_head_stride")),
        *((name, ctypes.c_int) for name in ("num_programs", "take_tail", "blocks_stay")),
    )

# SPDX-License-Identifier: Apache-2.0
"""libkvtkernels for the comparisons of this folder: the structures of include/kvt_kernels_types.h."""
import ctypes as c
import sys

u32, u64, f32, pointer = c.c_uint32, c.c_uint64, c.c_float, c.c_void_p


class View(c.Structure):
    _fields_ = [("k", pointer), ("v", pointer), ("page_stride", u64), ("head_stride", u64),
                ("position_stride", u64), ("n_pages", u32), ("page_size", u32),
                ("n_kv_heads", u32), ("head_dim", u32), ("type", u32), ("k_scale", f32),
                ("v_scale", f32)]


class Sequence(c.Structure):
    _fields_ = [("n_queries", u32), ("n_positions", u32), ("pages", pointer), ("n_pages", u32),
                ("n_regions", u32), ("regions", pointer)]


class Prefill(c.Structure):
    _fields_ = [("kv", View), ("sequences", pointer), ("n_sequences", u32), ("n_q_heads", u32),
                ("q", pointer), ("out", pointer), ("q_type", u32), ("out_type", u32),
                ("q_row", u64), ("q_head", u64), ("out_row", u64), ("out_head", u64),
                ("scale", f32)]


class Options(c.Structure):
    _fields_ = [("device", u32), ("device_index", u32), ("n_threads", u32), ("isa", u32),
                ("scratch_bytes", u64)]


class Kernels:
    """A context of the library at `path`. Ends the program with the library's words on an error."""

    def __init__(self, path, threads, device="cpu", stream=None):
        self.library = c.CDLL(path)
        for name in ("kvt_attn_describe", "kvt_attn_error_text"):
            getattr(self.library, name).restype = c.c_char_p
            getattr(self.library, name).argtypes = [pointer]
        self.library.kvt_attn_append_prefill.argtypes = [pointer, pointer, pointer]
        self.context, text = pointer(), c.create_string_buffer(256)
        options = Options(device=1 if device == "cuda" else 0, n_threads=threads)
        if self.library.kvt_attn_open(c.byref(options), c.byref(self.context), text, 256):
            sys.exit(f"libkvtkernels: {text.value.decode()}")
        self.stream = stream

    def describe(self):
        return self.library.kvt_attn_describe(self.context).decode()

    def run(self, prefill):
        if self.library.kvt_attn_append_prefill(self.context, c.byref(prefill), self.stream):
            sys.exit(self.library.kvt_attn_error_text(self.context).decode())

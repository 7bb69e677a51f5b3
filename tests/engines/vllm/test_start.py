# SPDX-License-Identifier: Apache-2.0
"""Engines start on a pool that is full of what others cached."""
import types

import pytest
from starting import full, test_starting_an_engine_changes_no_cached_page  # noqa: F401
from vllm.v1.worker.gpu.block_table import BlockTables
from vllm.v1.worker.gpu_worker import Worker

from kvtrunk.vllm._drafts import hold_outputs
from kvtrunk.vllm._start import keep_pages


class Table:
    """One group's block table, which remembers what it is given."""

    gpu = types.SimpleNamespace(shape=(4, 8))

    def __init__(self):
        self.written = []

    def stage_write(self, _, start, blocks):
        self.written.append((start, blocks))


class Tables:
    """Block tables of a device's runner without a device."""

    num_kv_cache_groups = 1
    redirect_writes_to_null_block = False
    append = BlockTables.append_block_ids

    def __init__(self):
        import numpy as np

        self.block_tables = [Table()]
        self.num_blocks = types.SimpleNamespace(np=np.zeros((1, 4), np.int32))


def warm_up(worker):
    worker.model_runner.block_tables.append(0, ([1, 2, 3],), True)
    if worker.fails:
        raise RuntimeError("no memory")


@pytest.mark.parametrize("fails", [False, True])
def test_a_device_s_runner_warms_up_on_page_0(monkeypatch, fails):
    monkeypatch.setattr(Worker, "compile_or_warm_up_model", warm_up)
    keep_pages()
    tables = Tables()
    worker = types.SimpleNamespace(model_runner=types.SimpleNamespace(block_tables=tables),
                                   fails=fails)
    if fails:
        with pytest.raises(RuntimeError, match="no memory"):
            Worker.compile_or_warm_up_model(worker)
    else:
        Worker.compile_or_warm_up_model(worker)
    tables.append(1, ([4],), True)
    assert tables.block_tables[0].written == [(0, [0, 0, 0]), (0, [4])]


def test_vllm_s_worker_is_made_to_once(monkeypatch):
    monkeypatch.setattr(Worker, "compile_or_warm_up_model", Worker.compile_or_warm_up_model)
    before = Worker.compile_or_warm_up_model
    keep_pages()
    after = Worker.compile_or_warm_up_model
    keep_pages()
    assert before is not after is Worker.compile_or_warm_up_model


def test_an_output_comes_when_the_draft_kv_is_written(monkeypatch):
    """With the second model runner, which copies sampled tokens before it drafts."""
    from vllm.v1.worker.gpu import model_runner
    said = []

    class Output(model_runner.AsyncOutput):
        def __init__(self):
            self.copy_event = types.SimpleNamespace(record=lambda stream: said.append(stream))

    def sample_tokens(runner, grammar_output):
        said.append("drafted")
        return Output()

    monkeypatch.setattr(model_runner.GPUModelRunner, "sample_tokens", sample_tokens)
    for _ in range(2):
        hold_outputs()
    copies = types.SimpleNamespace(wait_stream=lambda stream: said.append(f"waits for {stream}"))
    runner = types.SimpleNamespace(device=types.SimpleNamespace(type="cuda"), main_stream="main",
                                   output_copy_stream=copies)
    assert isinstance(model_runner.GPUModelRunner.sample_tokens(runner, None), Output)
    assert said == ["drafted", "waits for main", copies]

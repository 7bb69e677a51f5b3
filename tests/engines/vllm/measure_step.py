# SPDX-License-Identifier: Apache-2.0
"""Figures: a step of vLLM's scheduler (schedule() and update_from_output()) with kvtrunk's manager and
with vLLM's own, on the same requests, in turns, without a model: for one group of blocks, and with
groups for windows and states beside it. A second scheduler with vLLM's own
manager is the control: how far it is from the first is what the machine's noise does.

    tests/engines/run vllm tests/engines/vllm/measure_step.py -s
"""
import random
import time

import numpy
import pytest
from conftest import PAGE, TRANSFER, geometry
from engine import prompt

from kvtrunk import testing

ROUNDS, REQUESTS, RUNNING, SYSTEM, PAGES, TOKENS = 9, 96, 16, 256, 1024, 64
KINDS = {"Llama": (PAGE, (), 0), "gpt-oss": (PAGE, (128,), 0), "Gemma 3": (PAGE, (128,) * 5, 0),
         "Qwen3-Next": (96, (), 3)}
"""Page size, and groups beside the one with full attention: their windows, how many keep a state."""


def clocks():
    """This thread's processor time, and the clock."""
    return numpy.array([time.thread_time(), time.perf_counter()])


def trailing(page, windows, states, blocks=1):
    """The daemon's option `sides` for them. blocks: of a window, in a page."""
    needed = []
    for window in windows:
        last = -(-(window - 1) // (page // blocks))  # blocks
        needed += sorted(len(range(i, last, blocks)) for i in range(min(blocks, last)))
    return ",".join(map(str, needed + [1] * states))


def specs(page, windows, states, blocks=1, checkpoints=0):
    """vLLM's of these groups. checkpoints: blocks for states that a step passes."""
    import torch
    from vllm.v1.kv_cache_interface import MambaSpec, SlidingWindowSpec

    return [*(SlidingWindowSpec(block_size=page // blocks, num_kv_heads=2 * blocks, head_size=64,
                                dtype=torch.float32, sliding_window=window) for window in windows),
            *(MambaSpec(block_size=page, shapes=((2, 64),), dtypes=(torch.float32,),
                        mamba_cache_mode="align", num_prefill_checkpoint_blocks=checkpoints,
                        prefill_checkpoint_alignment=checkpoints or None)
              for _ in range(states))]


class NoWorkers:
    """An executor."""

    def collective_rpc(self, *_):
        return ["built"]


class Scheduler:
    """vLLM's, with a model that answers 7."""

    def __init__(self, folder, shared, asynchronous=False, pages=PAGES, page=PAGE, sides=(),
                 retention=0, unit=None, transfer=None, **options):
        """sides: vLLM's specs of the groups beside the one with full attention. unit: positions that
        vLLM hashes at once, if they are less than a page. transfer: options of the connector."""
        import torch
        from vllm.engine.arg_utils import EngineArgs
        from vllm.utils.hashing import get_hash_fn_by_name
        from vllm.v1.core.kv_cache_utils import get_request_block_hasher, init_none_hash
        from vllm.v1.core.sched.async_scheduler import AsyncScheduler
        from vllm.v1.core.sched.scheduler import Scheduler as Theirs
        from vllm.v1.kv_cache_interface import FullAttentionSpec, KVCacheConfig, KVCacheGroupSpec
        from vllm.v1.structured_output import StructuredOutputManager

        config = EngineArgs(**{
            "model": str(folder), "dtype": "float32", "block_size": PAGE, "max_model_len": 1024,
            "max_num_seqs": RUNNING, "skip_tokenizer_init": True,
            "kv_transfer_config": {**TRANSFER, "kv_connector_extra_config": transfer or {}}
                                  if shared else None,
            **options}).create_engine_config()
        config.scheduler_config.async_scheduling = asynchronous  # on a CPU vLLM makes it False
        if sides:  # as the platform would choose for such a model
            config.cache_config.block_size, config.cache_config.mamba_cache_mode = page, "align"
        if shared:
            from kvtrunk.vllm import _updates, connector
            _updates._watches[config.kv_transfer_config.engine_id] = _updates.Watch(NoWorkers(), config)
            connector.KvtrunkConnector.get_required_kvcache_layout(config)
        config.cache_config.num_gpu_blocks = pages
        spec = FullAttentionSpec(block_size=page, num_kv_heads=2, head_size=64,
                                 dtype=torch.float32)
        groups = [KVCacheGroupSpec([f"layer{i}"], each) for i, each in enumerate([spec, *sides])]
        hash_of = get_hash_fn_by_name(config.cache_config.prefix_caching_hash_algo)
        init_none_hash(hash_of)
        self.hasher = get_request_block_hasher(unit or page, hash_of)
        self.theirs = (AsyncScheduler if asynchronous else Theirs)(
            config, KVCacheConfig(pages, [], groups, kv_cache_layout="LBHNC",
                                  prefix_cache_retention_interval=retention if sides else None),
            StructuredOutputManager(config), page, unit, log_stats=True)
        self.reused = 0
        """Positions that were cached when their requests began."""
        if shared:  # there are no workers to say it
            self.theirs.connector.set_xfer_handshake_metadata({
                rank: connector.Proof("none", "", [0])
                for rank in range(config.parallel_config.world_size)})

    def request(self, name, tokens, max_tokens=TOKENS, salt=None, **more):
        """One of vLLM's."""
        from vllm import SamplingParams
        from vllm.v1.request import Request

        wanted = SamplingParams(temperature=0, max_tokens=max_tokens, ignore_eos=True)
        return Request(name, tokens, wanted, None, cache_salt=salt, block_hasher=self.hasher,
                       **more)

    def run(self, asked):
        """A pair of clocks() for each step: of those that admitted requests, and of the others."""
        scheduler, steps = self.theirs, ([], [])
        for request in asked:
            scheduler.add_request(self.request(*request))
        while scheduler.has_unfinished_requests():
            begin = clocks()
            step = scheduler.schedule()
            scheduled = clocks()
            spent = self.finish(step) + scheduled - begin
            if step.num_scheduled_tokens:
                steps[0 if step.scheduled_new_reqs else 1].append(spent)
        return steps

    def finish(self, step):
        """Answer a step. Returns what the scheduler took for it, by clocks()."""
        from vllm.v1.outputs import ModelRunnerOutput

        requests, names = self.theirs.requests, list(step.num_scheduled_tokens)
        output = ModelRunnerOutput(
            names, {name: i for i, name in enumerate(names)},
            [[7] if name in requests and requests[name].num_computed_tokens >=
             requests[name].num_prompt_tokens else [] for name in names])
        self.reused += sum(new.num_computed_tokens for new in step.scheduled_new_reqs)
        computed = clocks()
        self.theirs.update_from_output(step, output)
        return clocks() - computed


def requests(round_):
    """Names, prompts, which share a beginning and are new in each round, and how many tokens to
    make: as many differ, most steps with admission admit one request."""
    chance = random.Random(round_)
    system = prompt(round_, SYSTEM)
    return [(f"{round_}-{i}", system + prompt(1000 * round_ + i, chance.randrange(20, 200)),
             chance.randrange(TOKENS // 2, 3 * TOKENS // 2)) for i in range(REQUESTS)]


@pytest.mark.parametrize("name", KINDS)
def test_figures(name, folder, monkeypatch):
    page, *sides = KINDS[name]
    options = geometry(page_size=page, n_pages=PAGES, max_private_pages=PAGES,
                       sides=trailing(page, *sides))
    with testing.daemon(**options) as daemon:
        monkeypatch.setenv("KVTRUNK_SOCKET", daemon.socket)
        schedulers = {way: Scheduler(folder, way == "kvtrunk", page=page, sides=specs(page, *sides))
                      for way in ("own", "control", "kvtrunk")}
        rows = {way: ([], []) for way in schedulers}
        for round_ in range(ROUNDS):
            order = list(schedulers)
            random.Random(round_).shuffle(order)
            for way in order:
                for kind, steps in zip(rows[way], schedulers[way].run(requests(round_))):
                    kind.append(numpy.median(steps, axis=0))
        print()
        for kind, text in enumerate(("steps with admission", "steps without")):
            for clock, spent in enumerate(("processor", "wall")):
                own = numpy.array(rows["own"][kind])[:, clock]
                for way in schedulers:
                    mine = numpy.array(rows[way][kind])[:, clock]
                    ratios = mine / own
                    print(f"{name:10} {text:20} {spent:9} {way:8} "
                          f"{1e6 * numpy.median(mine):6.1f} us, against own "
                          f"{numpy.median(ratios):.2f} ({min(ratios):.2f} to {max(ratios):.2f})")
        schedulers["kvtrunk"].theirs.shutdown()

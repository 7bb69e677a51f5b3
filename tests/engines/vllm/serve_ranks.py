# SPDX-License-Identifier: Apache-2.0
"""serve.py for data-parallel ranks: vLLM's engine for servers, with a rank for each prompt.

vLLM 0.32 has no transport for the experts of data-parallel ranks on CPUs; here is one.
"""
import asyncio
import itertools

import torch
from serving import serve
from vllm.distributed.device_communicators.cpu_communicator import CpuCommunicator


def all_gatherv(self, input_, dim=0, sizes=None):
    """The rows of all ranks."""
    if isinstance(input_, list):
        return [all_gatherv(self, part, dim, sizes) for part in input_]
    parts = [input_.new_empty((size, *input_.shape[1:])) for size in sizes]
    parts[self.rank_in_group].copy_(input_)
    for rank, part in zip(self.ranks, parts):
        torch.distributed.broadcast(part, src=rank, group=self.device_group)
    return torch.cat(parts)


def reduce_scatterv(self, input_, dim=-1, sizes=None):
    """This rank's rows of the sum."""
    total = input_.clone()
    torch.distributed.all_reduce(total, group=self.device_group)
    return total.split(sizes)[self.rank_in_group].clone()


# In each process: they import this.
CpuCommunicator.all_gatherv, CpuCommunicator.reduce_scatterv = all_gatherv, reduce_scatterv
LOOP = asyncio.new_event_loop()
NUMBERS = itertools.count()


def started(_, options):
    from vllm.engine.arg_utils import AsyncEngineArgs
    from vllm.v1.engine.async_llm import AsyncLLM

    async def start():
        return AsyncLLM.from_engine_args(AsyncEngineArgs(**options))

    return LOOP.run_until_complete(start())


async def one(engine, prompt, rank, max_tokens):
    from vllm import SamplingParams, TokensPrompt

    wanted = SamplingParams(temperature=0, max_tokens=max_tokens, ignore_eos=True,
                            detokenize=False)
    async for said in engine.generate(TokensPrompt(prompt_token_ids=prompt), wanted,
                                      str(next(NUMBERS)), data_parallel_rank=rank):
        done = said
    return {"tokens": list(done.outputs[0].token_ids), "cached": done.num_cached_tokens}


def generate(engine, prompts, max_tokens=16, ranks=(0,)):
    """All at the same time, by these ranks in turn."""
    async def every():
        return await asyncio.gather(*(one(engine, prompt, rank, max_tokens) for prompt, rank in
                                      zip(prompts, itertools.cycle(ranks))))

    return LOOP.run_until_complete(every())


if __name__ == "__main__":
    serve(started, {"generate": generate}).shutdown()

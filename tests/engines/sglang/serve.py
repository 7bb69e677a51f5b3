# SPDX-License-Identifier: Apache-2.0
"""An SGLang engine for the tests, by serving.py.

    serve.py MODEL OPTIONS      OPTIONS: a JSON object for sglang.Engine
"""
import asyncio

import images
from serving import serve


def started(folder, options):
    import sglang

    return sglang.Engine(**{**options, "model_path": folder, "log_level": "info"})


def generate(engine, prompts, max_tokens=16, salt=None, pictures=None, **more):
    """pictures: of each prompt, a number of images.picture()."""
    wanted = {"temperature": 0, "max_new_tokens": max_tokens, "ignore_eos": True}
    if pictures:
        more["image_data"] = [images.picture(number) for number in pictures]
    answers = engine.generate(input_ids=prompts, sampling_params=wanted,
                              cache_salt=[salt] * len(prompts) if salt else None, **more)
    return [{"tokens": answer["output_ids"], "cached": answer["meta_info"]["cached_tokens"]}
            for answer in answers]


def error(engine, prompt):
    """The error of a request that is refused."""
    try:
        return f"answered: {generate(engine, [prompt])}"
    except Exception as refused:
        return f"{getattr(refused, 'status_code', '')} {getattr(refused, 'detail', refused)}"


def call(engine, method, kind, **fields):
    """A method of SGLang's tokenizer manager, with a request: for what sglang.Engine leaves out."""
    from sglang.srt.managers import io_struct
    request = getattr(io_struct, kind)(**fields)
    return getattr(engine.tokenizer_manager, method)(request)


async def scaled(engine, folder, names, factor, **more):
    """Update weights in place by tensors: those of a folder times a factor, one in each part."""
    import safetensors.torch
    from sglang.srt.utils import MultiprocessingSerializer
    tensors = safetensors.torch.load_file(f"{folder}/model.safetensors")
    done = [await call(engine, "begin_weight_update", "BeginWeightUpdateReqInput")]
    for name in names:
        part = MultiprocessingSerializer.serialize([(name, tensors[name] * factor)])
        done.append(await call(engine, "update_weights_from_tensor",
                               "UpdateWeightsFromTensorReqInput", serialized_named_tensors=[part],
                               **more))
    done.append(await call(engine, "end_weight_update", "EndWeightUpdateReqInput"))
    return all(success for success, _ in done)


async def scaled_in_flight(engine, prompt, max_tokens, **update):
    """The same while a request has begun to answer: it is held, and continues afterwards."""
    from sglang.srt.managers import io_struct
    wanted = {"temperature": 0, "max_new_tokens": max_tokens, "ignore_eos": True}
    done, tokens = None, 0
    async for answer in await engine.async_generate(input_ids=prompt, sampling_params=wanted,
                                                    stream=True):
        tokens = answer["meta_info"]["completion_tokens"]
        if done is None:
            manager = engine.tokenizer_manager
            await manager.pause_generation(io_struct.PauseGenerationReqInput(mode="in_place"))
            done = await scaled(engine, flush_cache=False, **update)
            await manager.continue_generation(io_struct.ContinueGenerationReqInput())
    return [done, tokens]


async def beside(engine, long, short, max_tokens):
    """How many tokens a long request had when a short one was answered that came after its first."""
    async def answer(prompt, tokens, seen):
        wanted = {"temperature": 0, "max_new_tokens": tokens, "ignore_eos": True}
        async for said in await engine.async_generate(input_ids=prompt, sampling_params=wanted,
                                                      stream=True):
            seen(said["meta_info"]["completion_tokens"])

    had, second = [0], []

    def seen(tokens):
        had.append(tokens)
        if not second:
            second.append(asyncio.ensure_future(answer(short, 4, lambda _: None)))

    first = asyncio.ensure_future(answer(long, max_tokens, seen))
    while not second:
        await asyncio.sleep(0.001)
    await second[0]
    then = had[-1]
    await first
    return [then, had[-1]]


def counted(engine, name):
    """The values of a counter by its label `reason`, of all processes of the engine."""
    from prometheus_client import CollectorRegistry, multiprocess
    registry = CollectorRegistry()
    multiprocess.MultiProcessCollector(registry)
    return {sample.labels["reason"]: sample.value for family in registry.collect()
            for sample in family.samples if sample.name == name}


def run(coroutine):
    return lambda engine, **fields: engine.loop.run_until_complete(coroutine(engine, **fields))


OPERATIONS = {
    "generate": generate,
    "error": error,
    "flush": lambda engine: engine.flush_cache().success,
    "weights": lambda engine, **where: engine.update_weights_from_disk(**where)[0],
    "scaled": run(scaled),
    "scaled in flight": run(scaled_in_flight),
    "beside": run(beside),
    "counted": counted,
    "adapter": lambda engine, **what: engine.load_lora_adapter(**what).success,
    "no adapter": lambda engine, name: engine.unload_lora_adapter(name).success,
}

if __name__ == "__main__":
    serve(started, OPERATIONS).shutdown()

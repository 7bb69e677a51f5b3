# SPDX-License-Identifier: Apache-2.0
"""An SGLang engine for the tests, by serving.py.

    serve.py MODEL OPTIONS      OPTIONS: a JSON object for sglang.Engine
"""
from serving import serve


def started(folder, options):
    import sglang

    return sglang.Engine(**{
        "model_path": folder, "device": "cpu", "dtype": "float32", "skip_tokenizer_init": True,
        "attention_backend": "torch_native", "sampling_backend": "pytorch",
        "grammar_backend": "none", "chunked_prefill_size": 256, "context_length": 2048,
        "max_running_requests": 16, "mem_fraction_static": 0.5, "disable_cuda_graph": True,
        "skip_server_warmup": True, "sleep_on_idle": True, "random_seed": 1, "log_level": "info",
        **options})


def generate(engine, prompts, max_tokens=16, salt=None, **more):
    wanted = {"temperature": 0, "max_new_tokens": max_tokens, "ignore_eos": True}
    answers = engine.generate(input_ids=prompts, sampling_params=wanted,
                              cache_salt=[salt] * len(prompts) if salt else None, **more)
    return [{"tokens": answer["output_ids"], "cached": answer["meta_info"]["cached_tokens"]}
            for answer in answers]


OPERATIONS = {
    "generate": generate,
    "flush": lambda engine: engine.flush_cache().success,
    "weights": lambda engine, **where: engine.update_weights_from_disk(**where)[0],
}

if __name__ == "__main__":
    serve(started, OPERATIONS).shutdown()

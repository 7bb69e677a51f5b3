# SPDX-License-Identifier: Apache-2.0
"""An SGLang engine for the tests: reads requests from stdin, a JSON object a line, and answers each
by one on stdout.

    serve.py MODEL OPTIONS      OPTIONS: a JSON object for sglang.Engine
"""
import json
import os
import sys


def started(folder, options):
    import sglang

    return sglang.Engine(**{
        "model_path": folder, "device": "cpu", "dtype": "float32", "skip_tokenizer_init": True,
        "attention_backend": "torch_native", "sampling_backend": "pytorch",
        "grammar_backend": "none", "chunked_prefill_size": 256, "context_length": 2048,
        "max_running_requests": 16, "mem_fraction_static": 0.5, "disable_cuda_graph": True,
        "skip_server_warmup": True, "random_seed": 1, "log_level": "info", **options})


def generate(engine, prompts, max_tokens=16, salt=None, **more):
    wanted = {"temperature": 0, "max_new_tokens": max_tokens, "ignore_eos": True}
    answers = engine.generate(input_ids=prompts, sampling_params=wanted,
                              cache_salt=[salt] * len(prompts) if salt else None, **more)
    return [{"tokens": answer["output_ids"], "cached": answer["meta_info"]["cached_tokens"],
             "retractions": answer["meta_info"]["num_retractions"]} for answer in answers]


def main():
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what SGLang prints is no answer

    def say(**what):
        print(json.dumps(what), file=answers, flush=True)

    try:
        engine = started(sys.argv[1], json.loads(sys.argv[2]))
    except BaseException as error:
        say(failed=str(error))
        raise
    say(ready=os.getpid())
    for line in sys.stdin:
        request = json.loads(line)
        what = request.pop("do")
        if what == "generate":
            say(done=generate(engine, **request))
        elif what == "flush":
            say(done=engine.flush_cache().success)
        elif what == "weights":
            say(done=engine.update_weights_from_disk(**request)[0])
    engine.shutdown()


if __name__ == "__main__":
    main()

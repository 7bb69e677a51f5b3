# SPDX-License-Identifier: Apache-2.0
"""A vLLM engine for the tests: reads requests from stdin, a JSON object a line, and answers each by
one on stdout. EngineCore and its worker are processes of their own, as under `vllm serve`.

    serve.py MODEL OPTIONS      OPTIONS: a JSON object for vllm.LLM
"""
import json
import os
import sys


def started(folder, options):
    from vllm import LLM

    return LLM(**{
        "model": folder, "skip_tokenizer_init": True, "dtype": "float32", "block_size": 32,
        "enforce_eager": True, "max_model_len": 2048, "max_num_seqs": 16,
        "disable_log_stats": False, "kv_cache_memory_bytes": 1 << 27, **options})


def generate(engine, prompts, max_tokens=16, salt=None, ignore_eos=True, lora=None, **more):
    """lora: name, number and path of an adapter."""
    from vllm import SamplingParams, TokensPrompt
    from vllm.lora.request import LoRARequest

    wanted = SamplingParams(temperature=0, max_tokens=max_tokens, ignore_eos=ignore_eos,
                            detokenize=False, **more)
    given = [TokensPrompt(prompt_token_ids=prompt, **({"cache_salt": salt} if salt else {}))
             for prompt in prompts]
    return [{"tokens": list(done.outputs[0].token_ids), "cached": done.num_cached_tokens}
            for done in engine.generate(given, wanted, use_tqdm=False,
                                        lora_request=LoRARequest(*lora) if lora else None)]


def main():
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what vLLM prints is no answer

    def say(**what):
        print(json.dumps(what), file=answers, flush=True)

    try:
        engine = started(sys.argv[1], json.loads(sys.argv[2]))
    except Exception as error:
        say(failed=str(error))
        raise
    say(ready=os.getpid())
    for line in sys.stdin:
        request = json.loads(line)
        what = request.pop("do")
        try:
            if what == "generate":
                say(done=generate(engine, **request))
            elif what == "preemptions":
                say(done=sum(metric.value for metric in engine.get_metrics()
                             if metric.name == "vllm:num_preemptions"))
            elif what == "reset":
                say(done=engine.reset_prefix_cache())
        except Exception as error:
            say(failed=str(error))
            raise


if __name__ == "__main__":
    main()

# SPDX-License-Identifier: Apache-2.0
"""A vLLM engine for the tests, by serving.py. EngineCore and its worker are processes of their own,
as under `vllm serve`.

    serve.py MODEL OPTIONS      OPTIONS: a JSON object for vllm.LLM, which has the model, too
"""
import copy
import time

from serving import serve


def started(_, options):
    from vllm import LLM

    return LLM(**options, disable_log_stats=False)  # as in servers


def generate(engine, prompts, max_tokens=16, salt=None, ignore_eos=True, lora=None, images=(),
             uuids=(), **more):
    """lora: name, number and path of an adapter. images: seeds of pictures in each prompt; uuids:
    what their user names them."""
    from images import picture
    from vllm import SamplingParams, TokensPrompt
    from vllm.lora.request import LoRARequest

    wanted = SamplingParams(temperature=0, max_tokens=max_tokens, ignore_eos=ignore_eos,
                            detokenize=False, **more)
    extra = {"cache_salt": salt} if salt else {}
    if images:
        extra["multi_modal_data"] = {"image": [picture(seed) for seed in images]}
    if any(uuids):
        extra["multi_modal_uuids"] = {"image": list(uuids)}
    given = [TokensPrompt(prompt_token_ids=prompt, **extra) for prompt in prompts]
    answers = []
    for done in engine.generate(given, wanted, use_tqdm=False,
                                lora_request=LoRARequest(*lora) if lora else None):
        said = done.outputs[0]
        answers.append({"tokens": list(said.token_ids), "cached": done.num_cached_tokens})
        if said.logprobs is not None:
            answers[-1]["logprobs"] = [[[token, one.logprob] for token, one in most.items()]
                                       for most in said.logprobs]
    return answers


def step(engine, asked):
    """A step of an engine in this process, after new requests: name, prompt, tokens to make. Returns
    how many requests run and wait, and the tokens that those which ended had reused."""
    from vllm import SamplingParams, TokensPrompt

    core = engine.llm_engine
    for name, prompt, max_tokens in asked:
        core.add_request(name, TokensPrompt(prompt_token_ids=prompt), SamplingParams(
            temperature=0, max_tokens=max_tokens, ignore_eos=True, detokenize=False))
    reused = sum(done.num_cached_tokens for done in core.step() if done.finished)
    return *core.engine_core.engine_core.scheduler.get_request_counts(), reused


def metric(engine, name):
    return sum(found.value for found in engine.get_metrics() if found.name == name)


def reweigh(engine, factor):
    """Other weights in the running engine."""
    def scale(model):
        for weights in model.parameters():
            weights.data.mul_(factor)

    engine.apply_model(scale)


def reload(engine, path=None):
    """Other weights from files."""
    engine.collective_rpc("reload_weights", kwargs={"weights_path": path} if path else {})


def version(engine, name):
    """Name the weights, as a trainer does after an update."""
    engine.llm_engine.set_weight_version(name)


def load(engine, lora, inplace=False):
    """Load an adapter before its first request."""
    from vllm.lora.request import LoRARequest

    return engine.llm_engine.add_lora(LoRARequest(*lora, load_inplace=inplace))


def across(engine, prompt, after, change, max_tokens=64, **more):
    """Generate, and change weights after some tokens. Returns all."""
    from vllm import SamplingParams, TokensPrompt

    core = engine.llm_engine
    core.add_request(f"across {prompt[:4]}", TokensPrompt(prompt_token_ids=prompt), SamplingParams(
        temperature=0, max_tokens=max_tokens, ignore_eos=True, detokenize=False))
    tokens = []
    while len(tokens) < max_tokens:
        done = core.step()
        if done:
            tokens = list(done[0].outputs[0].token_ids)
        if change and len(tokens) >= after:
            OPERATIONS[change](engine, **more)
            change = None
    return tokens


class Compared:
    """Findings of the engine's comparisons, and how long they took."""

    excess, seconds = [], []

    @classmethod
    def remember(cls, _):
        from kvtrunk.vllm._pool import WorkerPool

        compare = WorkerPool.compare

        def remembering(*arguments):
            begin = time.perf_counter()
            finding = compare(*arguments)
            cls.seconds.append(time.perf_counter() - begin)
            cls.excess.append(finding.excess)
            return finding

        WorkerPool.compare = remembering
        return True


def check_every(engine, every):
    """Another `check_every` in the running engine."""
    from kvtrunk.vllm.connector import _engines

    [ours] = _engines.values()
    ours.checks._every = every


def model_of(engine):
    """That of an engine in this process."""
    return engine.llm_engine.model_executor.driver_worker.worker.model_runner.get_model().model


def plant(engine, fault):
    """A fault in the first layer that nothing names; trust() takes it away."""
    layer = model_of(engine).layers[0]
    values = {"norm": layer.input_layernorm.weight.data,
              "rope": layer.self_attn.rotary_emb.cos_sin_cache}[fault]
    engine.planted = values, values.clone()
    values.copy_(values * 1.05 if fault == "norm" else values.roll(1, 0))


def misplace(_, wrong):
    """Read side pages in a wrong order, or in the right one again: an engine in this process."""
    from kvtrunk.vllm._hybrid import Sides

    right = getattr(Sides.found, "right", Sides.found)

    def found(self, main, point):
        mixed = copy.copy(point)
        mixed.found = tuple(pages[::-1] for pages in reversed(point.found))
        return right(self, main, mixed)

    found.right = right
    Sides.found = found if wrong else right


def trust(engine):
    """Share under the name of before, as after a start."""
    from kvtrunk.vllm.connector import _engines

    if hasattr(engine, "planted"):
        values, right = engine.planted
        values.copy_(right)
        del engine.planted
    [ours] = _engines.values()
    ours.name.files(ours.name._base)


OPERATIONS = {
    "across": across,
    "check_every": check_every,
    "excess": lambda engine: Compared.excess,
    "generate": generate,
    "load": load,
    "metric": metric,
    "misplace": misplace,
    "reload": reload,
    "version": version,
    "zero": lambda engine: engine.collective_rpc("reset_weights"),
    "plant": plant,
    "remember": Compared.remember,
    "reset": lambda engine: engine.reset_prefix_cache(),
    "reweigh": reweigh,
    "seconds": lambda engine: Compared.seconds,
    "step": step,
    "sleep": lambda engine, level: engine.sleep(level=level),
    "trust": trust,
    "wake": lambda engine: engine.wake_up(),
}

if __name__ == "__main__":
    serve(started, OPERATIONS)

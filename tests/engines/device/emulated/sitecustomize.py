# SPDX-License-Identifier: Apache-2.0
"""A CUDA device for engines on a machine that has none: a folder for PYTHONPATH, for tests.

The engine is the released build for CUDA. Its tensors are on the CPU, Triton interprets its kernels,
and the driver is the stand-in of tests/whole/cuda, so pools, contexts, imports and fences are made by
calls of the driver. Found here: errors of imports, configuration, planning and layout, and writes to
pages of others. Not found here: errors of compiled kernels, of streams and events (nothing runs
beside Python), of graphs, of a real driver's memory.

EMULATED_PLANT names a fault that the process gets: see PLANTS.
"""
import collections
import ctypes
import importlib.abc
import importlib.util
import os
import sys
import threading
import types

NAME = "Stand-in"
TOTAL = int(os.environ["KVT_STANDIN_MEMORY"])
CONTEXT = 1 << 28
"""Bytes that are never free."""
CAPABILITY = (9, 0)

AFTER = {}
"""By the name of a module: what is done to it once it is loaded."""


def after(name):
    """Decorate what a module is handed to when it was imported."""
    def add(change):
        AFTER[name] = change
        return change

    return add


class Finder(importlib.abc.MetaPathFinder):
    """Hands modules to their functions of AFTER."""

    def __init__(self):
        self._busy = set()

    def find_spec(self, name, _path, _target=None):
        """The spec that the others find, with a loader that calls the function."""
        if name not in AFTER or name in self._busy:
            return None
        self._busy.add(name)
        try:
            spec = importlib.util.find_spec(name)
        finally:
            self._busy.discard(name)
        if spec is not None and spec.loader is not None:
            load = spec.loader.exec_module

            def exec_module(module):
                load(module)
                AFTER.pop(name, lambda _: None)(module)

            spec.loader.exec_module = exec_module
        return spec


def replace(where, values):
    """Set attributes. A value that is no class and cannot be called becomes a function's result."""
    for name, value in values.items():
        if not callable(value):
            value = _returns(value)
        elif not isinstance(value, type):
            value = _plain(value)
        setattr(where, name, value)


def _returns(value):
    return lambda *_arguments, **_options: value


def _plain(function):
    """Not bound to the class that it becomes an attribute of."""
    return lambda *arguments, **options: function(*arguments, **options)


# ---- what names the device


@after("vllm.third_party.pynvml")
def nvml(module):
    """NVML."""
    memory = types.SimpleNamespace(total=TOTAL, free=TOTAL - CONTEXT, used=CONTEXT)
    replace(module, {
        "nvmlInit": None, "nvmlShutdown": None, "nvmlDeviceGetCount": 1,
        "nvmlDeviceGetHandleByIndex": 0, "nvmlDeviceGetHandleByUUID": 0, "nvmlDeviceGetIndex": 0,
        "nvmlDeviceGetCudaComputeCapability": CAPABILITY, "nvmlDeviceGetName": NAME,
        "nvmlDeviceGetUUID": f"GPU-{NAME}", "nvmlDeviceGetCpuAffinity": [1],
        "nvmlDeviceGetP2PStatus": 0})
    replace(module, {"nvmlDeviceGetMemoryInfo": _returns(memory)})


AFTER["pynvml"] = nvml


# ---- torch


class Stream:
    """A stream on which all has run."""

    def __init__(self, *_arguments, **_options):
        self._made = 0

    @property
    def cuda_stream(self):
        """One of the driver, for fences."""
        if not self._made:
            driver = ctypes.CDLL("libcuda.so.1")
            context, stream, device = ctypes.c_void_p(), ctypes.c_void_p(), ctypes.c_int()
            failed = (driver.cuInit(0) or driver.cuDeviceGet(ctypes.byref(device), 0)
                      or driver.cuDevicePrimaryCtxRetain(ctypes.byref(context), device)
                      or driver.cuCtxPushCurrent_v2(context)
                      or driver.cuStreamCreate(ctypes.byref(stream), 1)
                      or driver.cuCtxPopCurrent_v2(ctypes.byref(context)))
            if failed:
                raise RuntimeError(f"the stand-in driver: error {failed}")
            self._made = stream.value
        return self._made

    def wait_stream(self, _stream):
        """All has run."""

    def wait_event(self, _event):
        """It has come."""

    def synchronize(self):
        """All has run."""

    def query(self):
        """All has run."""
        return True

    def record_event(self, event=None):
        """One that has come."""
        return event or Event()

    def __enter__(self):
        return self

    def __exit__(self, *_raised):
        pass


class Event:
    """It has come."""

    def __init__(self, *_arguments, **_options):
        pass

    def record(self, _stream=None):
        """It has come."""

    wait = synchronize = record

    def query(self):
        """It has come."""
        return True

    def elapsed_time(self, _event):
        """Milliseconds."""
        return 1.0


class Context:
    """A device or stream that is current within a block: there is one."""

    def __init__(self, *_arguments, **_options):
        pass

    def __enter__(self):
        return self

    def __exit__(self, *_raised):
        pass


def free_bytes(*_arguments, **_options):
    """Free bytes of the device, and all."""
    return TOTAL - 2 * CONTEXT, TOTAL


def counters(*_arguments, **_options):
    """Counters of an allocator that counts nothing."""
    return collections.defaultdict(int)


def is_cuda(device):
    """Whether it is what a call names the device by."""
    import torch

    if isinstance(device, torch.device):
        return device.type == "cuda"
    if isinstance(device, str):
        return device.startswith("cuda")
    return isinstance(device, int) and not isinstance(device, bool)


def on_the_cpu(torch):
    """A mode in which tensors of the device are on the CPU and say that they are on the device."""
    cpu = torch.device("cpu")
    as_they_are = {"pin_memory": lambda tensor, *_: tensor, "cuda": lambda tensor, *_: tensor,
                   "is_pinned": lambda *_: True, "record_stream": lambda *_: None}

    class Mode(torch.overrides.TorchFunctionMode):
        """See above."""

        def __torch_function__(self, function, _types, arguments=(), options=None):
            options = dict(options or {})
            if options.get("device") is not None and is_cuda(options["device"]):
                options["device"] = cpu
            if options.get("pin_memory"):
                options["pin_memory"] = False
            name = getattr(function, "__name__", "")
            if name in as_they_are:
                return as_they_are[name](*arguments)
            if function is torch.Tensor.is_cuda.__get__:
                return True
            if name in ("to", "as_tensor", "new_tensor"):
                arguments = tuple(
                    cpu if isinstance(each, (torch.device, str)) and is_cuda(each) else each
                    for each in arguments)
            return function(*arguments, **options)

    return Mode


def in_each_thread(enter):
    """Call it in this thread, and in each that begins."""
    run = threading.Thread.run

    def entered(thread):
        enter()
        run(thread)

    threading.Thread.run = entered
    enter()


@after("torch")
def device(torch):
    """torch.cuda, torch.accelerator, generators."""
    mode = on_the_cpu(torch)
    in_each_thread(lambda: mode().__enter__())  # pylint: disable=unnecessary-dunder-call
    properties = types.SimpleNamespace(
        name=NAME, major=CAPABILITY[0], minor=CAPABILITY[1], total_memory=TOTAL, uuid=NAME,
        multi_processor_count=4, is_integrated=0, warp_size=32, gcnArchName="",
        max_threads_per_block=1024, max_threads_per_multi_processor=2048,
        regs_per_multiprocessor=65536, shared_memory_per_block=49152,
        shared_memory_per_block_optin=232448, shared_memory_per_multiprocessor=233472,
        L2_cache_size=62914560)
    stream, mine = Stream(), torch.device("cuda")
    both = {"is_available": True, "device_count": 1, "memory_allocated": 0, "memory_reserved": 0,
            "max_memory_allocated": 0, "max_memory_reserved": 0, "memory_stats": counters,
            "reset_peak_memory_stats": None, "empty_cache": None, "synchronize": None,
            "set_stream": None, "current_stream": _returns(stream)}
    replace(torch.cuda, {
        **both, "current_device": 0, "set_device": None, "get_device_name": NAME,
        "get_device_capability": CAPABILITY, "get_device_properties": _returns(properties),
        "mem_get_info": free_bytes, "Stream": Stream, "Event": Event, "stream": Context,
        "StreamContext": Context, "device": Context, "default_stream": _returns(stream),
        "is_initialized": True, "_lazy_init": None, "init": None, "manual_seed": None,
        "manual_seed_all": None, "is_bf16_supported": True, "set_sync_debug_mode": None,
        "is_current_stream_capturing": False, "get_sync_debug_mode": 0, "ipc_collect": None,
        "graph_pool_handle": (0, 0), "_device_count_nvml": 1, "set_rng_state": None,
        "get_rng_state": lambda *_: torch.zeros(16, dtype=torch.uint8),
        "get_arch_list": ["sm_90"], "get_allocator_backend": NAME})
    replace(torch.cuda.memory, {"get_allocator_backend": NAME})
    replace(torch.accelerator, {
        **both, "current_device_index": 0, "current_device_idx": 0, "set_device_index": None,
        "set_device_idx": None, "current_accelerator": _returns(mine),
        "get_memory_info": free_bytes, "empty_host_cache": None, "device_index": Context,
        "get_device_capability": counters})
    replace(torch._C, {"_cuda_getDeviceCount": 1, "_cuda_getCurrentRawStream": 0,
                       "_cuda_isCurrentStreamCapturing": False, "_accelerator_getDeviceIndex": 0})
    torch.Stream, torch.Event = Stream, Event
    made = torch.Generator

    class Generator(made):
        """On the CPU."""

        def __new__(cls, _device=None):
            return made(device="cpu")

    torch.Generator = Generator


@after("torch.distributed.distributed_c10d")
def ranks(module):
    """gloo instead of NCCL."""
    begin, group = module.init_process_group, module.new_group

    def init_process_group(backend=None, *arguments, **options):
        del backend
        options.pop("device_id", None)
        return begin("gloo", *arguments, **options)

    def new_group(*arguments, **options):
        if options.get("backend"):
            options["backend"] = "gloo"
        return group(*arguments, **options)

    module.init_process_group, module.new_group = init_process_group, new_group


# ---- kvtrunk


@after("kvtrunk._pool")
def pool(module):
    """The stand-in driver maps memory of the host: for torch, too."""
    module._CUDA = module._HOST


# ---- vLLM


@after("vllm.platforms.cuda")
def platform(module):
    """Operators in torch, since the compiled ones take tensors of a device only."""
    def native(_cls, _config):
        from vllm.config.kernel import IrOpPriorityConfig

        return IrOpPriorityConfig.with_default(["native"])

    for kind in vars(module).values():
        if isinstance(kind, type) and "dispatch_key" in vars(kind):
            kind.dispatch_key = "CPU"
    module.CudaPlatformBase.get_default_ir_op_priority = classmethod(native)


@after("vllm.utils.torch_utils")
def views(module):
    """A tensor of the host is one of the device."""
    module.get_accelerator_view_from_cpu_tensor = lambda tensor: tensor


@after("vllm.v1.sample.ops.topk_topp_sampler")
def sampler(module):
    """Triton's interpreter does not take this kernel."""
    module.apply_top_k_top_p = module.apply_top_k_top_p_pytorch


# ---- SGLang


@after("sglang.kernels.ops.kvcache.kvcache")
def writes(module):
    """Not the kernel that SGLang compiles when it runs."""
    module.can_use_store_cache = _returns(False)


@after("sglang.srt.layers.dual_gemm")
def gemm(module):
    """Nor the one that CUTLASS compiles."""
    module.is_cuda = _returns(False)


# ---- faults, which the tests must find


def warm_up(module):
    """vLLM's warm-up writes to blocks of its own choice, as without kvtrunk."""
    module.keep_pages = lambda: None


def slots(module):
    """SGLang's slots are the first of the pool, as without kvtrunk."""
    def first(allocator, _lease, start, end):
        return module.torch.arange(allocator.page_size + start, allocator.page_size + end)

    module.KvtrunkAllocator._host_slots = first


PLANTS = {"warm-up": ("kvtrunk.vllm._start", warm_up), "slots": ("kvtrunk.sglang._pool", slots)}

if "EMULATED_PLANT" in os.environ:
    AFTER.update([PLANTS[os.environ["EMULATED_PLANT"]]])
os.environ["TRITON_INTERPRET"] = "1"
sys.meta_path.insert(0, Finder())

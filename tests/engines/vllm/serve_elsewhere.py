# SPDX-License-Identifier: Apache-2.0
"""serve.py, with weights that come from elsewhere than the model's folder: from the folder
ELSEWHERE, by a stand-in for vLLM's weight cache (--load-format ipc_cache), whose tensors lie on a
GPU, or attached while `dummy` weights are made, as replicas attach a leader's."""
import copy
import os

import torch
from serve import OPERATIONS, started
from serving import serve
from vllm.config import LoadConfig, get_current_vllm_config, set_current_vllm_config
from vllm.model_executor.model_loader import DefaultModelLoader, DummyModelLoader, IpcModelLoader
from vllm.model_executor.model_loader.weight_cache import daemon, ipc_loader, protocol


def elsewhere(model_config):
    """A loader, and the configuration with which it loads the other weights."""
    other = copy.copy(model_config)
    other.model = os.environ["ELSEWHERE"]
    return DefaultModelLoader(LoadConfig()), other


def cached(_, model_config):
    """Answer of a weight cache: the tensors that it has loaded."""
    loader, other = elsewhere(model_config)
    config = copy.deepcopy(get_current_vllm_config())  # which counts layers by their names
    with set_current_vllm_config(config):
        model = loader.create_model(config, other)
        loader.load_weights(model, other)
    entries, aliases = daemon.export_entries(model)
    return protocol.WeightCacheState(entries, aliases, {})


def attach(_, model, model_config):
    loader, other = elsewhere(model_config)
    loader.load_weights(model, other)


if __name__ == "__main__":
    torch.accelerator.current_device_index = lambda: 0
    ipc_loader.check_ipc_platform_support = lambda: None
    IpcModelLoader._fetch_entries = cached
    IpcModelLoader.get_external_weight_memory = lambda *_: 0
    DummyModelLoader.load_weights = attach
    serve(started, OPERATIONS)

# SPDX-License-Identifier: Apache-2.0
"""serve.py, with weights that come from elsewhere than the model's folder: from the folder
ELSEWHERE, by a stand-in for SGLang's weight cache (WAY=ipc_cache), whose tensors lie on a GPU, or
attached behind `dummy` weights (WAY=dummy), as replicas attach a leader's."""
import copy
import os
import types

from serve import OPERATIONS, started
from serving import serve
from sglang.srt.configs.load_config import LoadConfig
from sglang.srt.model_executor.model_runner_components import load_model_utils
from sglang.srt.model_loader.loader import DefaultModelLoader, DummyModelLoader
from sglang.srt.weight_cache import ipc_loader


def elsewhere(model_config, device_config):
    """A model with the other weights."""
    other = copy.copy(model_config)
    other.model_path = os.environ["ELSEWHERE"]
    return DefaultModelLoader(LoadConfig()).load_model(model_config=other,
                                                       device_config=device_config)


def cached(_, model_config, device_config):
    """Answer of a weight cache: the tensors that it has loaded."""
    model = elsewhere(model_config, device_config)
    entries = {name: {"tensor": tensor, "is_param": True}
               for name, tensor in model.named_parameters(remove_duplicate=False)}
    entries |= {name: {"tensor": tensor, "is_param": False}
                for name, tensor in model.named_buffers(remove_duplicate=False)}
    return {"entries": entries}


def choose(*, load_config):
    """As --weight-cache-mode client."""
    load_config.load_format = "ipc_cache"


def attached(_, *, model_config, device_config):
    return elsewhere(model_config, device_config)


# In each process: they import this.
ipc_loader.get_client_transport_backend = lambda *_: types.SimpleNamespace(
    name="stand-in", import_tensor=lambda entry: entry["tensor"].data)
ipc_loader.IpcModelLoader._fetch_from_cache = cached
if os.environ["WAY"] == "ipc_cache":
    load_model_utils.maybe_enable_ipc_weight_cache.__code__ = choose.__code__
DummyModelLoader.load_model = attached

if __name__ == "__main__":
    serve(started, OPERATIONS).shutdown()

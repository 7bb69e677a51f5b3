# SPDX-License-Identifier: Apache-2.0
"""serve.py for models with MLA. SGLang 0.5.23 takes the method of its Triton kernels for them where
attention is PyTorch's: the first chunk of a prompt as attention of all heads, which PyTorch's
backend has no path for. Here each chunk reads the latent rows, as later chunks and decode do."""
from serving import serve
from serve import OPERATIONS, started
from sglang.srt.models.deepseek_common import attention_backend_handler as handler

# In each process: they import this.
handler.AttentionBackendRegistry.register("torch_native", handler._dispatch_mla_subtype)

if __name__ == "__main__":
    serve(started, OPERATIONS).shutdown()

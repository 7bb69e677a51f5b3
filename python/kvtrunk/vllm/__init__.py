# SPDX-License-Identifier: Apache-2.0
"""vLLM engines that share one KV cache: docs/vllm.md.

    vllm serve MODEL --block-size 64 \\
        --kv-transfer-config '{"kv_connector":"KvtrunkConnector","kv_role":"kv_both"}'

vLLM finds register() by the entry point group vllm.general_plugins. This package imports neither
vLLM nor torch; its modules do when vLLM loads the connector.
"""


def register() -> None:
    """Register the connector. vLLM calls this in each of its processes, perhaps several times."""
    from vllm.distributed.kv_transfer.kv_connector.factory import KVConnectorFactory

    if "KvtrunkConnector" not in KVConnectorFactory._registry:
        KVConnectorFactory.register_connector("KvtrunkConnector", "kvtrunk.vllm.connector",
                                              "KvtrunkConnector")
    from ._updates import install

    install()

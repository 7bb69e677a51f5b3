# SPDX-License-Identifier: Apache-2.0
"""The table of what is replaced in a running vLLM is whole, and the document has it."""
import ast
import pathlib
import pkgutil

import pytest

import kvtrunk.vllm
from kvtrunk.engine import _replaced as shape
from kvtrunk.vllm._replaced import REPLACED

OURS = pathlib.Path(kvtrunk.vllm.__file__).parent
DOCUMENT = pathlib.Path(__file__).resolve().parents[3] / "docs" / "vllm.md"
# How our code spells those that it assigns to.
ASSIGNED = {
    "Executor.__init__", "executor.collective_rpc", "EngineCore.set_weight_version",
    "manager.__class__", "Scheduler.make_stats", "each._get_num_evictable_blocks",
    "module.Worker.compile_or_warm_up_model", "module.GPUModelRunner.sample_tokens",
    "vllm_config.cache_config.num_gpu_blocks_override",
    "vllm_config.kv_transfer_config.kv_load_failure_policy",
    "self.pool.__class__", "self._config.publisher",
}
# Our own objects, and marks on theirs that only we read.
OWN = {"arguments", "watch", "engine", "state", "fresh", "sources", "adapter", "cache", "config",
       "stats"}
OWN_FIELDS = {"executor.kvtrunk", "self._engine.worker", "self.watch.name"}
# vLLM's own switches and counters of what ours stands for.
THEIRS = {"tables.redirect_writes_to_null_block", "block.ref_cnt", "self.prefix_cache_stats.reset"}


def assigned():
    """Attributes that our code sets, beside those of a method's own object."""
    for file in OURS.glob("*.py"):
        for node in ast.walk(ast.parse(file.read_text())):
            if isinstance(node, ast.Call) and ast.unparse(node.func) == "around":
                yield f"{ast.unparse(node.args[0])}.{node.args[1].value}"
            targets = node.targets if isinstance(node, ast.Assign) else [
                node.target] if isinstance(node, ast.AugAssign) else []
            for target in targets:
                for each in target.elts if isinstance(target, ast.Tuple) else [target]:
                    if isinstance(each, ast.Attribute):
                        yield ast.unparse(each)


def test_all_that_is_assigned_to_is_in_the_table():
    found = {name for name in assigned()
             if name.partition(".")[0] not in OWN and (
                 not name.startswith("self.") or name.count(".") > 1)}
    assert found - OWN_FIELDS - THEIRS == ASSIGNED


@pytest.mark.parametrize("row", REPLACED, ids=lambda row: row.what)
def test_what_is_replaced_exists(row):
    owner, _, name = row.what.rpartition(".")
    found = pkgutil.resolve_name(owner)
    assert hasattr(found, name) or name in getattr(found, "__annotations__", {}) or (
        name in getattr(found, "__dataclass_fields__", {}))


def test_the_document_has_the_table():
    assert "\n" + "\n".join(shape.table(REPLACED)) + "\n\n" in DOCUMENT.read_text()

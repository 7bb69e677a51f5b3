# SPDX-License-Identifier: Apache-2.0
"""Two engines of a model with MLA, as DeepSeek's: its one plane on pages of kv_layout = latent.
serve_latent.py says what of vLLM's CPU backend stands aside."""
import conftest
import faults
import model
import pytest
from engine import started
from kills import kill_at, order  # noqa: F401
from sharing import expect_checked_reuse

from kvtrunk import testing

PAGE = 16
GEOMETRY = conftest.geometry(kv_heads=1, head_dim=576, kv_layout="latent", page_size=PAGE,
                             n_pages=512)


class Engine(conftest.Engine):
    program = "serve_latent.py"


@pytest.fixture(scope="module")
def engine_class():
    return Engine


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return model.write(tmp_path_factory.mktemp("model"), **model.latent())


@pytest.fixture(scope="module")
def daemon():
    with testing.daemon(**GEOMETRY) as made:
        yield made


@pytest.fixture(scope="module")
def engines(daemon, start, order):  # noqa: F811
    """One with a cache of its own, one that will be killed, and one that compares each reuse. The
    sizes of their schedulers differ, which changes no KV."""
    return started(start(processes=1, num_gpu_blocks_override=512),
                   start(daemon, environment={"KILL": str(order)}, max_num_batched_tokens=256),
                   start(daemon, processes=1, environment={"KVTRUNK_CHECK_EVERY": "1"},
                         max_num_seqs=8, max_model_len=1024))


def test_b_reuses_what_only_a_computed(daemon, engines):
    expect_checked_reuse(daemon, *engines, page=PAGE)


test_no_engine_writes_a_sealed_page_and_what_else_does_is_found = \
    faults.test_no_engine_writes_a_sealed_page_and_what_else_does_is_found


def test_a_kill_in_prefill(daemon, engines, order):  # noqa: F811
    private, a, b = engines
    kill_at("COMMIT", "EngineCore", daemon, order, [private, b, a])

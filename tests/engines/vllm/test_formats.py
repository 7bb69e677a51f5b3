# SPDX-License-Identifier: Apache-2.0
"""Whole engines with the weights of A behind a folder that has the files of B, by each way that
needs no GPU: none reads what B's weights made."""
import json

import model
import numpy as np
import pytest
import torch
from conftest import PAGE, Engine
from engine import prompt


class Elsewhere(Engine):
    program = "serve_elsewhere.py"


def tensors(folder):
    """Those of a model, by name."""
    import safetensors.torch

    return safetensors.torch.load_file(folder / "model.safetensors")


@pytest.fixture(scope="module")
def other(tmp_path_factory):
    """The folder of A."""
    return model.write(tmp_path_factory.mktemp("other") / "model", seed=1)


@pytest.fixture(scope="module")
def both(folder, other, tmp_path_factory):
    """B's folder, with B's weights in a .bin file and the copies that npcache made of A's."""
    path = model.write(tmp_path_factory.mktemp("both") / "model")
    torch.save(tensors(folder), path / "pytorch_model.bin")
    (path / "model.safetensors").unlink()
    (path / "np").mkdir()
    for name, tensor in tensors(other).items():
        with (path / "np" / name).open("wb") as file:
            np.save(file, tensor.numpy())
    (path / "np" / "weight_names.json").write_text(json.dumps(list(tensors(other))))
    return path


@pytest.fixture(scope="module")
def started(daemon, folder, both, other, tmp_path_factory):
    """Start an engine, which the test ends."""
    logs = tmp_path_factory.mktemp("logs")

    def start(kind=Elsewhere, at=folder, **options):
        return kind(at, logs / options.get("load_format", "auto"), daemon, processes=1,
                    environment={"ELSEWHERE": str(other)}, **options).wait()

    return start


def ask(engine, text, **more):
    answer = engine.generate(text, **more)[0]
    return answer["tokens"], answer["cached"]


@pytest.fixture(scope="module")
def answers(started, both, other):
    """Answers of engines that have loaded the files of B, as safetensors and as .bin, and of A: B's
    prompt is in the pool."""
    text, found = prompt(7100, 300), []
    for folder in (None, both, other):
        engine = started(**({"at": folder} if folder else {}))
        found.append(ask(engine, text)[0])
        assert ask(engine, text) == (found[-1], (300 - 1) // PAGE * PAGE)
        engine.kill()
    assert found[0] == found[1] != found[2]
    return text, found[2]


@pytest.mark.parametrize("load_format", ["ipc_cache", "dummy", "npcache"])
def test_weights_that_are_not_the_folder_s_reuse_nothing_of_them(
        started, both, answers, load_format):
    text, expected = answers
    engine = started(load_format=load_format, **({"at": both} if load_format == "npcache" else {}))
    assert ask(engine, text) == (expected, 0)
    assert ask(engine, text) == (expected, (300 - 1) // PAGE * PAGE)  # its own
    assert "shares with no other" in engine.said()
    engine.kill()

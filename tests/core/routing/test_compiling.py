"""What is compiled ahead is all that a text and its continuation run, and leaves the model as it was."""

from __future__ import annotations

import subprocess
import sys

import pytest
import torch

from focus_core import FocusConfig, retrofit
from focus_core.models import default_model
from focus_core.routing.narrow.compiling import compile_ahead

PROGRAM = """
import importlib, pkgutil, sys
import focus_core.routing.narrow.compiled as compiled
from numba.core.dispatcher import Dispatcher
from focus_core.generation import prompt_ids, write
from focus_core.models import load_model
from focus_core.routing.attach import attached
from focus_core.routing.narrow.compiling import compile_ahead

modules = [importlib.import_module(found.name) for found in pkgutil.walk_packages(compiled.__path__, compiled.__name__ + ".")]
def signatures():
    named = {value for module in modules for value in vars(module).values() if isinstance(value, Dispatcher)}
    return {(each.__module__, each.__name__): set(each.signatures) for each in named}

with attached(load_model()) as (loaded, focus):
    before = signatures()
    with focus.routing("hard", **CHANGES):
        compile_ahead(focus)
    ahead = signatures()
    ids = prompt_ids(loaded, "A lamp, a stair and a door. The keeper saw the sea. " * 20)
    write(focus, loaded.tokenizer, ids, max_new_tokens=70, changes=CHANGES)
    later = signatures()
print(ahead != before, later == ahead)
"""


@pytest.mark.skipif(not default_model.is_cached(), reason="the default model has not been fetched")
@pytest.mark.parametrize("changes", [{}, {"cache_bits": 8}], ids=["as it is", "8 bits"])
def test_nothing_is_left_to_compile_while_a_model_writes(changes):
    program = PROGRAM.replace("CHANGES", repr(changes))
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert done.stdout.split() == ["True", "True"], done.stdout + done.stderr


@pytest.mark.parametrize("positions", [2, 40, 512])
@pytest.mark.parametrize("router", ["narrow", "layer"])
def test_a_model_is_as_before(tiny_llama, router, positions):
    model = tiny_llama.model
    model.config.max_position_embeddings = positions
    share = {"read_share": 0.2, "page_size": 4} if router == "narrow" else {}
    config = FocusConfig(router=router, num_groups=6, top_k=2, window=8, balance="calibrated", **share)
    focus = retrofit(model, config)
    ids = torch.arange(20)[None] % 7
    before, said = focus(input_ids=ids).logits, []
    compile_ahead(focus, progress=lambda message, share: said.append(message))
    assert torch.equal(focus(input_ids=ids).logits, before)
    assert len(said) == (router == "narrow")
    hooks = [len(module._forward_hooks) for module in focus.attention_modules.values()]
    assert hooks == [1] * len(hooks)

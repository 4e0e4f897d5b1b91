"""Fixtures that all tests share."""

from __future__ import annotations

import gc
import os
import shutil
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest
import torch
from model_workers import model_workers
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

from focus_core import FocusConfig, retrofit
from focus_core.bench.measures import timing
from focus_core.cluster import Cluster
from focus_core.models import LoadedModel, ModelInfo, load_model
from focus_core.progress import Progress

ROOT = Path(__file__).parents[1]


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Slow files first: where processes share the files, none is left alone with a long one at the end."""
    slow = {item.path for item in items if item.get_closest_marker("slow")}
    items.sort(key=lambda item: item.path not in slow)


def pytest_collection_finish() -> None:
    """Leave what is imported out of every collection of garbage, which training asks for again and again."""
    gc.collect()
    gc.freeze()


@pytest.fixture
def holds_in_a_fork() -> Callable[[Callable[[], bool]], bool]:
    """Whether something is true in a forked process, which has to say so within a minute."""

    def ask(question: Callable[[], bool]) -> bool:
        child = os.fork()
        if child == 0:
            answer = False
            try:
                answer = question()
            finally:
                os._exit(0 if answer else 1)
        deadline = time.monotonic() + 60
        while (ended := os.waitpid(child, os.WNOHANG))[0] == 0 and time.monotonic() < deadline:
            time.sleep(0.01)
        if ended[0] == 0:
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)
        return ended == (child, 0)

    return ask


@pytest.fixture(scope="session", autouse=True)
def short_timings() -> Iterator[None]:
    """Time short calls as often as asked, and not until their median is steady: no test rests on a time."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(timing, "STEADY_SECONDS", 0.0)
        yield


@pytest.fixture(scope="session")
def default_model() -> LoadedModel:
    """The real default model, fetched if it is not in the cache. Shared: change nothing in it."""
    return load_model()


@pytest.fixture(scope="session")
def shared_data() -> Path:
    """Books and benchmark files that are not part of the project."""
    for folder in (ROOT / "shared" / "data", ROOT.parent / "shared" / "data"):
        if folder.is_dir():
            return folder
    pytest.skip("the books and benchmark files are not on this machine")


@pytest.fixture(scope="session")
def byte_tokenizer() -> PreTrainedTokenizerFast:
    """A byte-level vocabulary without merges: one token per byte of UTF-8."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocabulary = {"<s>": 0, **{character: index + 1 for index, character in enumerate(alphabet)}}
    backend = Tokenizer(models.BPE(vocab=vocabulary, merges=[]))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    return PreTrainedTokenizerFast(tokenizer_object=backend, bos_token="<s>", eos_token="<s>", pad_token="<s>")


@pytest.fixture
def opening_tokenizer(byte_tokenizer) -> PreTrainedTokenizerFast:
    """The bytes again, each text after `<s>`, as Llama and Gemma have it, and before another, as BERT has."""
    backend = Tokenizer.from_str(byte_tokenizer.backend_tokenizer.to_str())
    backend.post_processor = processors.TemplateProcessing(single="<s> $A <s>", special_tokens=[("<s>", 0)])
    return PreTrainedTokenizerFast(tokenizer_object=backend, bos_token="<s>")


@pytest.fixture
def tiny_llama(byte_tokenizer) -> LoadedModel:
    """A random Llama with grouped queries and 3 layers, for anything that needs no trained weights. A fresh one."""
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=len(byte_tokenizer),
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=3,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=512,
    )
    model = LlamaForCausalLM(config).eval()
    parameters = sum(parameter.numel() for parameter in model.parameters())
    return LoadedModel(model, byte_tokenizer, ModelInfo("tiny", "folder", "0" * 12, "LlamaForCausalLM", parameters))


@pytest.fixture
def model_folder(tiny_llama, tmp_path) -> Path:
    """A folder with that model and, in `routers`, routers that are not those of seed 0."""
    tiny_llama.model.save_pretrained(tmp_path / "model")
    tiny_llama.tokenizer.save_pretrained(tmp_path / "model")
    focus = retrofit(tiny_llama.model, FocusConfig(num_groups=4, top_k=2), seed=5)
    focus.save_pretrained(tmp_path / "model" / "routers")
    focus.detach()
    return tmp_path / "model"


@pytest.fixture(scope="session")
def two_cores() -> Iterator[None]:
    """Two cores of this machine as a Ray cluster, which starts once for all tests of a process."""
    ray = pytest.importorskip("ray", reason="needs pip install 'focus-workbench[ray]'")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("RAY_USAGE_STATS_ENABLED", "0")
        patch.setenv("RAY_worker_niceness", "0")  # of 15, workers would wait for every other test process
        patch.setenv("OMP_WAIT_POLICY", "PASSIVE")  # or threads that wait would spin on cores that others need
        ray.init(address="local", num_cpus=2, include_dashboard=False, log_to_driver=False, logging_level="ERROR")
        yield
        ray.shutdown()


@pytest.fixture
def cluster(two_cores: None) -> Cluster:
    """That cluster, without a worker of an earlier test."""
    _, left = psutil.wait_procs(model_workers(psutil.Process()), timeout=240)  # beside other work they end late
    assert not left
    return Cluster(workers=2)


@pytest.fixture
def stops() -> Callable[[str, float], Progress]:
    """Makes a progress function that stops the work which a message names, as Ctrl-C does, after a share of it."""

    def stop(message: str, after: float) -> Progress:
        def progress(told: str, share: float) -> None:
            if told.startswith(message) and share > after:
                raise KeyboardInterrupt

        return progress

    return stop


@pytest.fixture(scope="session")
def chromium() -> str:
    """Path of a Chromium."""
    names = ("chromium-headless-shell", "chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
    path = os.environ.get("FOCUS_CHROMIUM") or next(filter(None, map(shutil.which, names)), None)
    if path is None:
        pytest.skip("no Chromium found: install one, or set FOCUS_CHROMIUM to its path")
    return path

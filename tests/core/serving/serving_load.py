"""Concurrent streams against `focus serve`: none lost or mixed, and the memory of the server.

    python tests/core/serving/serving_load.py FOLDER --streams 10 --minutes 2 --out data/results/serving-load.json

Each stream asks again and again, for texts of its own. Every answer is compared with what the same server wrote for
that text before, alone.
"""

from __future__ import annotations

import argparse
import os
import signal
import socket
import statistics
import subprocess
import sys
import threading
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import openai
import psutil

from focus_core.resources import data_dir
from focus_core.results import record_run

TOKENS = 16


@contextmanager
def served(folder: Path, *, patience: float = 120) -> Iterator[tuple[str, int]]:
    """`focus serve` in a process of its own: its address and process id; stopped as by Ctrl-C."""
    with socket.socket() as free:
        free.bind(("localhost", 0))
        port = free.getsockname()[1]
    command = [sys.executable, "-m", "focus_core.cli", "serve", str(folder), "--port", str(port), "--device", "cpu"]
    environment = {**os.environ, "OMP_NUM_THREADS": os.environ.get("OMP_NUM_THREADS", "1")}
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, env=environment)
    try:
        end = time.monotonic() + patience
        while True:
            if process.poll() is not None:
                raise RuntimeError(process.communicate()[1])
            try:
                urllib.request.urlopen(f"http://localhost:{port}/health", timeout=5).close()
                break
            except OSError:
                if time.monotonic() > end:
                    raise
                time.sleep(0.1)
        yield f"http://localhost:{port}/v1", process.pid
    finally:
        process.send_signal(signal.SIGINT)
        process.communicate(timeout=60)


def prompts(count: int) -> list[str]:
    """Texts of 600 to 1,500 characters, each of another beginning."""
    text = (data_dir() / "samples" / "dialogue.txt").read_text(encoding="utf-8")
    text += (data_dir() / "samples" / "code.py.txt").read_text(encoding="utf-8")
    step = max(1, (len(text) - 1500) // count)
    return [text[place * step : place * step + 600 + 900 * (place % 4) // 3] for place in range(count)]


def answer(client: openai.OpenAI, model: str, prompt: str) -> tuple[str, int, float]:
    """One stream: its text, its number of tokens, and the seconds to its first piece."""
    begin, first, parts, tokens = time.monotonic(), 0.0, [], 0
    for chunk in client.completions.create(
        model=model, prompt=prompt, temperature=0, max_tokens=TOKENS, stream=True, timeout=120
    ):
        first = first or time.monotonic() - begin
        parts.append(chunk.choices[0].text)
        tokens = chunk.usage.completion_tokens if chunk.usage else tokens
    return "".join(parts), tokens, first


def load(folder: Path, streams: int, minutes: float) -> dict[str, Any]:
    """The run: settings and results of a record."""
    texts = prompts(2 * streams)
    answers: list[tuple[float, str, int, float]] = []
    errors: list[str] = []
    mixed: list[dict[str, str]] = []
    memory: list[tuple[float, int]] = []
    with served(folder) as (address, pid):
        client = openai.OpenAI(base_url=address, api_key="none", max_retries=0)
        expected = {text: answer(client, str(folder), text)[0] for text in texts}
        process, begin = psutil.Process(pid), time.monotonic()
        end = begin + 60 * minutes

        def stream(number: int) -> None:
            own = texts[2 * number : 2 * number + 2]
            asked = 0
            while time.monotonic() < end:
                text = own[asked % 2]
                asked += 1
                try:
                    found, tokens, first = answer(client, str(folder), text)
                except Exception as error:  # every failure is a lost answer, whatever its kind
                    errors.append(f"{type(error).__name__}: {error}")
                    continue
                answers.append((time.monotonic() - begin, found, tokens, first))
                if found != expected[text]:
                    mixed.append({"expected": expected[text], "found": found})

        threads = [threading.Thread(target=stream, args=(number,)) for number in range(streams)]
        for thread in threads:
            thread.start()
        while any(thread.is_alive() for thread in threads):
            memory.append((round(time.monotonic() - begin, 1), process.memory_info().rss))
            time.sleep(2)
        for thread in threads:
            thread.join()
        seconds = time.monotonic() - begin
    half = [bytes_now for place, bytes_now in memory if place >= seconds / 2]
    waits = sorted(first for _, _, _, first in answers)
    return {
        "schema": "focus-serving-load/1",
        "settings": {
            "streams": streams,
            "minutes": minutes,
            "tokens": TOKENS,
            "texts": len(texts),
            "distinct_answers": len(set(expected.values())),
        },
        "results": {
            "answers": len(answers),
            "lost": len(errors),
            "errors": errors[:10],
            "mixed": len(mixed),
            "differing": mixed[:10],
            "seconds": seconds,
            "tokens_per_second": sum(tokens for _, _, tokens, _ in answers) / seconds,
            "first_token_s": {"median": statistics.median(waits), "largest": waits[-1]},
            "memory": memory,
            "memory_growth_second_half": max(half) - half[0],
            "load_average": os.getloadavg()[0],
            "cores": os.cpu_count(),
        },
    }


def main() -> None:
    """Run, print and write the record; exit with 1 if an answer is lost or mixed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, help="that focus export wrote")
    parser.add_argument("--streams", type=int, default=10)
    parser.add_argument("--minutes", type=float, default=2.0)
    parser.add_argument("--out", type=Path, required=True)
    options = parser.parse_args()
    record = record_run(options.out, load(options.folder, options.streams, options.minutes))
    found = record["results"]
    print({name: found[name] for name in ("answers", "lost", "mixed", "seconds", "memory_growth_second_half")})
    sys.exit(found["lost"] + found["mixed"] > 0 or not found["answers"])


if __name__ == "__main__":
    main()

"""Retrofit the default model with shipped routers and generate with sparse attention.

python examples/retrofit_and_generate.py "Once upon a time" --tokens 40
"""

from __future__ import annotations

import argparse

from focus_core import FocusModel, load_model


def main() -> None:
    """Print the untouched model's text, then that of the routed one."""
    parser = argparse.ArgumentParser(description="Generate with the untouched model and with hard routing.")
    parser.add_argument("prompt", nargs="?", default="The lighthouse keeper climbed the stairs, and")
    parser.add_argument("--routers", default="smollm2-135m-narrow64", help="a shipped name or a folder")
    parser.add_argument("--tokens", type=int, default=40, help="new tokens")
    arguments = parser.parse_args()

    model, tokenizer, _ = load_model()
    focus = FocusModel.from_pretrained(model, arguments.routers)
    inputs = tokenizer(arguments.prompt, return_tensors="pt")
    for mode in ("off", "hard"):
        with focus.routing(mode):
            tokens = focus.generate(
                **inputs, max_new_tokens=arguments.tokens, do_sample=False, pad_token_id=tokenizer.eos_token_id
            )
        print(f"{mode}: {tokenizer.decode(tokens[0])}")


if __name__ == "__main__":
    main()

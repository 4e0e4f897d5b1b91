"""Parts of experiments alone: training remedies, candidates of the recipe, LoRA, settings by layer."""

"""What only experiments need: training remedies, candidates of the recipe, LoRA, settings by layer."""

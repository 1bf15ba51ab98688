"""Models that generate and learn: the torch session and its parts, vLLM, LoRA, loading."""

"""Text around a model: prompts, parsing of replies, tokenizers, and constraints on generation."""

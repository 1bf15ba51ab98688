"""Text around a model: prompts, rendering, parsing of replies, tokens, constraints on what may be generated."""

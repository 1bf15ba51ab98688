"""Text around a model: prompts, parsing of replies, tokens, constraints on what may be generated."""

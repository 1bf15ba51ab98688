"""What a run will take - episodes, tokens, bytes, memory, hours - told from its configuration, before anything is opened."""

"""The cost of a run - episodes, tokens, bytes, memory, hours - computed from its configuration, before anything is opened."""

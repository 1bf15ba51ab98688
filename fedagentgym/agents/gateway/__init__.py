"""A program of others plays with the policy: an OpenAI-compatible server in this process, which records the exact tokens."""

"""An OpenAI-compatible server in this process, through which external programs play with the policy. It records exact tokens."""

"""Statistics and figures of a client split."""

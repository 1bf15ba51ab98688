"""Environments in which an agent answers with a whole reply: mathematics, questions over facts, programs."""

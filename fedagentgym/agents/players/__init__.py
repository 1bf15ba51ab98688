"""Agents without a model in this process: scripted agents, people, hosted models, and agents of your own."""

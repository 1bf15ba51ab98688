"""Agents without a model of their own in this process: scripted, human, hosted endpoints."""

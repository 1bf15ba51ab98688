"""Aggregation rules with a file of their own: Krum with Multi-Krum, and q-FedAvg."""

"""Aggregation rules with a file each: Krum, Multi-Krum and q-FedAvg."""

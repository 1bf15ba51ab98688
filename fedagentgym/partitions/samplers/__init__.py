"""Samplers of client splits, one file each, and the arithmetic that they share."""

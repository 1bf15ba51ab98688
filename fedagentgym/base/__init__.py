"""Errors, randomness, registries, encoding, files, progress, settings. Imports neither gymnasium nor torch."""

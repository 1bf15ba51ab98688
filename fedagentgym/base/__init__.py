"""Floor 0: errors, randomness, registries, encoding, files, progress, settings. Knows neither gymnasium nor torch."""

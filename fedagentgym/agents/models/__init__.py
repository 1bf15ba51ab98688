"""Language models by name: fetched or copied once into the cache, and then found there."""

"""Language models by name: fetched or copied once into the cache, and found there afterwards."""

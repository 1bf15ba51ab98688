"""ALFWorld: household tasks as text, in the real engine or in a native one that answers byte for byte as it does."""

"""The arithmetic that samplers share: draws for many clients at once, sizes within bounds, items dealt to clients."""

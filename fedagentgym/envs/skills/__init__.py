"""A world of skills: the same questions in many towns, of which each has its own procedure."""

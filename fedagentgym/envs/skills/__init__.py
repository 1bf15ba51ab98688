"""An environment of skills: the same questions in many towns, each with its own procedure."""

"""An environment of skills: the same questions in many categories, each with its own procedure."""

"""Shared by the pages: templates, the style sheet, scripts, charts, and the data of the episode browser."""

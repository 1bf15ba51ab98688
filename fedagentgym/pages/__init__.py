"""Parts that all HTML pages share: templates, the style sheet, scripts, charts, and the data of the episode browser."""

"""The page of `fedagentgym compare`: static and self-contained, with the style and the charts of the run report."""

"""Every row of the papers' tables, run in small."""

"""Questions over a site's SQLite database: domains and their rows, questions and queries, guarded execution, grading."""

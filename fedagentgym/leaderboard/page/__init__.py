"""The leaderboard as a page: static files from results. Plays nothing and changes no result."""
